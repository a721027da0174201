"""What scale forms, conventions of rope, layouts and dimensions cost beside the default form, in one run.

    python benchmarks/forms.py --out forms.json

Every kernel is checked against float64 on a small problem before it is timed. A cost is the time of a form
over that of the default form of its group; `share` is of the roofline of its own products (see `protocol`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
from protocol import (
    context,
    matmul_rates,
    measure,
    product_depths,
    rates,
    roofline,
    rotation,
    write_json,
)

import mla_codegen as mla
from mla_codegen.accuracy import measure as measure_error
from mla_codegen.spec import Spec
from mla_codegen.tensors import tensor_facts

HEADS, TOKENS = 128, 8192
CHECKED = (1, 2, 1000)
"""Sequences, heads and tokens of the problem that is compared with float64."""
ERROR_LIMIT = {"e4m3": 4e-2, "bf16": 5e-3, "f16": 5e-3}

_DEFAULT = {"scales": {"q": "token", "k": "token", "rope": "prescaled"}}
_BF16 = {"dtypes": {"qkv": "bf16"}}


def _scales(**scales: str) -> dict[str, Any]:
    return {"scales": scales}


GROUPS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "e4m3 128/64/128": {
        "token, prescaled": _DEFAULT,
        "no scales": _scales(),
        "tensor": _scales(q="tensor", k="tensor", rope="prescaled"),
        "q token_head": _scales(q="token_head", k="token", rope="prescaled"),
        "raw, token": _scales(q="token", k="token", rope="raw"),
        "raw, token_head": _scales(q="token_head", k="token_head", rope="raw"),
        "raw, q token, k head": _scales(q="token", k="head", rope="raw"),
        "v head": _scales(q="token", k="token", v="head", rope="prescaled"),
        "v token": _scales(q="token", k="token", v="token", rope="prescaled"),
        "v token, 2 consumers": {
            **_scales(q="token", k="token", v="token", rope="prescaled"),
            "schedule": {"consumers": 2},
        },
        "v token, online": {
            **_scales(q="token", k="token", v="token", rope="prescaled"),
            "softmax": {"variant": "online"},
        },
        "v transposed": {**_DEFAULT, "layout": {"v": "transposed"}},
        "v transposed, raw": {**_scales(q="token", k="token", rope="raw"), "layout": {"v": "transposed"}},
        "rope e4m3": {
            **_DEFAULT,
            "dtypes": {"qkv": "e4m3", "rope_gmem": "e4m3", "rope_mma": "e4m3"},
        },
        "dense": {**_DEFAULT, "layout": {"q": "dense", "kv": "dense"}},
        "lse": {**_DEFAULT, "softmax": {"lse": "natural"}},
        "rope 0": {**_scales(q="token", k="token"), "dims": {"nope": 128, "rope": 0, "v": 128}},
        "192/64/256": {**_DEFAULT, "dims": {"nope": 192, "rope": 64, "v": 256}},
        "192/64/256, v transposed": {
            **_DEFAULT,
            "dims": {"nope": 192, "rope": 64, "v": 256},
            "layout": {"v": "transposed"},
        },
        "64/64/64": {**_DEFAULT, "dims": {"nope": 64, "rope": 64, "v": 64}},
        "v 192": {**_DEFAULT, "dims": {"nope": 128, "rope": 64, "v": 192}},
    },
    "bf16 128/64/128": {
        "default": _BF16,
        "f16": {"dtypes": {"qkv": "f16"}},
        "dense": {**_BF16, "layout": {"q": "dense", "kv": "dense"}},
        "192/64/256": {**_BF16, "dims": {"nope": 192, "rope": 64, "v": 256}},
        "64/64/64": {**_BF16, "dims": {"nope": 64, "rope": 64, "v": 64}},
    },
}


def spec_of(changes: Mapping[str, Any]) -> Spec:
    """The causal spec of a form."""
    base = {"name": "form", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
    return Spec.from_mapping({**base, "dtypes": {"qkv": "e4m3"}, **changes})


def make_inputs(spec: Spec, heads: int, tokens: int, seed: int) -> dict[str, Any]:
    """One sequence of N(0, 1) through `mla.quantize`, on the GPU."""
    facts = tensor_facts(spec)
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(ragged: bool, *size: int) -> torch.Tensor:
        values = torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)
        return values if ragged else values[None]

    lengths = torch.tensor([0, tokens], device="cuda", dtype=torch.int32)
    sides = {"cu_seqlens_q": facts.q_ragged, "cu_seqlens_k": facts.kv_ragged}
    return mla.quantize(
        spec,
        normal(facts.q_ragged, tokens, heads, facts.nope + facts.rope),
        normal(facts.kv_ragged, tokens, heads, facts.nope + facts.v),
        normal(facts.kv_ragged, tokens, facts.rope) if facts.rope else None,
        **{name: lengths for name, ragged in sides.items() if ragged},
        **({"max_seqlen_q": tokens} if facts.q_ragged else {}),
    )


def checked_error(spec: Spec, kernel: Any) -> float:
    """Relative Frobenius error on a small problem; ClickException where it is too large."""
    _, heads, tokens = CHECKED
    arguments = make_inputs(spec, heads, tokens, seed=1)
    out = kernel(**arguments)
    out = out[0] if isinstance(out, tuple) else out
    expected, _ = mla.reference(spec, **arguments)
    error = measure_error(out.float().cpu().numpy(), expected, out_dtype="f32").rel_frobenius
    if not error <= ERROR_LIMIT[spec.dtypes.qkv]:
        raise click.ClickException(f"{spec.to_mapping()} has error {error:.2e}")
    return error


def measure_form(spec: Spec, matmul: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Error, time and share of one form."""
    facts = tensor_facts(spec)
    kernel = mla.load(spec)
    error = checked_error(spec, kernel)
    first = make_inputs(spec, HEADS, TOKENS, seed=0)
    size = sum(value.nbytes for value in first.values() if isinstance(value, torch.Tensor))
    inputs = [first, *(make_inputs(spec, HEADS, TOKENS, seed) for seed in range(1, rotation(size)))]
    out = kernel(**first)
    given = {"out": out} if not isinstance(out, tuple) else {"out": out[0], "lse": out[1]}
    times = measure([lambda packed=packed: kernel(**packed, **given) for packed in inputs])
    flop = HEADS * TOKENS * (TOKENS + 1.0) * (facts.nope + facts.rope + facts.v)
    launch = mla.make_plan(spec).variants[0].launch
    row = {
        "source_digest": kernel.plan["source_digest"][:12],
        "block_m": launch.block_m,
        "block_n": launch.block_n,
        "error": error,
        **rates(times, flop),
    }
    return {**row, "burst_share": row["burst_tflops"] / roofline(product_depths(spec), matmul, "burst")}


@click.command()
@click.option("--only", multiple=True, help="forms whose name contains this text, and the default ones")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file to write")
def main(only: tuple[str, ...], out: Path | None) -> None:
    """Measures every form and writes the file after each."""
    matmul = matmul_rates()
    result: dict[str, Any] = {"context": context(), "matmul": matmul, "rows": []}
    for group, forms in GROUPS.items():
        default = next(iter(forms))
        base_ms = 0.0
        for name, changes in forms.items():
            if only and name != default and not any(text in name for text in only):
                continue
            row = {"group": group, "form": name, **measure_form(spec_of(changes), matmul)}
            base_ms = base_ms or row["burst_ms"]
            row["cost"] = row["burst_ms"] / base_ms
            click.echo(
                f"{group:16} {name:22} {row['burst_ms']:7.3f} ms {row['burst_tflops']:5.0f} TFLOP/s "
                f"({row['burst_share']:.3f})  cost {row['cost']:.3f}  error {row['error']:.1e}"
            )
            result["rows"].append(row)
            torch.cuda.empty_cache()
            if out is not None:
                write_json(out, result)


if __name__ == "__main__":
    main()
