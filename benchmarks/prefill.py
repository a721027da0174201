"""Measures prefill kernels on a GPU: correctness first, then TFLOP/s and the share of the roofline.

    python benchmarks/prefill.py specs/dsv3_fp8_sm90.yaml --shape 1x128x8192 --out prefill.json

A shape is BATCHxHEADSxQ_LEN or BATCHxHEADSxQ_LENxKV_LEN; a length may be a range, LOW-HIGH.
FLOP = 2 * batch * heads * visible pairs * (192 + 128).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
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
from mla_codegen.tensors import transposed_v_columns

CHECKED_HEADS = 2
CHECKED_ROWS = 256
ERROR_LIMIT = {"e4m3": 4e-2, "bf16": 5e-3}
SHAPE_HELP = "BATCHxHEADSxQ_LEN[xKV_LEN], a length LOW-HIGH is drawn for each sequence"
RAGGED_SEED = 7


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads, and for each sequence its queries and keys."""

    text: str
    heads: int
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`1x128x8192`, `1x128x512x8192`, or `32x128x100-8000` for lengths drawn evenly from a range."""
        fields = text.split("x")
        if len(fields) not in (3, 4) or not all(re.fullmatch(r"\d+(-\d+)?", field) for field in fields):
            raise click.BadParameter(f"{text} is no shape, {SHAPE_HELP} is allowed")
        batch, heads = int(fields[0]), int(fields[1])
        q_lens = _lengths(fields[2], batch)
        return cls(text, heads, q_lens, _lengths(fields[3], batch) if len(fields) == 4 else q_lens)

    def visible_pairs(self, mask: str) -> int:
        """Query-key pairs of one head."""
        return sum(_visible_pairs(*lengths, mask) for lengths in zip(self.q_lens, self.kv_lens, strict=True))

    def flop(self, mask: str) -> float:
        return 2.0 * self.heads * self.visible_pairs(mask) * (192 + 128)

    @property
    def is_square(self) -> bool:
        """Whether all sequences have the same length, of queries as of keys."""
        return len({*self.q_lens, *self.kv_lens}) == 1


def _lengths(field: str, batch: int) -> tuple[int, ...]:
    low, _, high = field.partition("-")
    if not high:
        return (int(low),) * batch
    generator = random.Random(RAGGED_SEED)
    return tuple(generator.randint(int(low), int(high)) for _ in range(batch))


def _visible_pairs(q_len: int, kv_len: int, mask: str) -> int:
    if mask == "full":
        return q_len * kv_len
    shift = kv_len - q_len
    first = max(0, -shift)
    rows = q_len - first
    return rows * (shift + first + 1) + rows * (rows - 1) // 2


def make_inputs(spec: Any, shape: Shape, seed: int) -> dict[str, Any]:
    """Random N(0,1) activations through `mla.quantize`, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tokens_q, tokens_k = sum(shape.q_lens), sum(shape.kv_lens)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

    return mla.quantize(
        spec,
        normal(tokens_q, shape.heads, 192),
        normal(tokens_k, shape.heads, 256),
        normal(tokens_k, 64),
        cu_seqlens_q=_cumulative(shape.q_lens),
        cu_seqlens_k=_cumulative(shape.kv_lens),
        max_seqlen_q=max(shape.q_lens),
    )


def _cumulative(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], device="cuda", dtype=torch.int32)


def relative_error(spec: Any, shape: Shape, packed: dict[str, Any], out: torch.Tensor) -> float:
    """Relative Frobenius error against float64, on a few heads and rows of the last sequence."""
    q_len, kv_len = shape.q_lens[-1], shape.kv_lens[-1]
    rows = torch.unique(torch.linspace(0, q_len - 1, CHECKED_ROWS, device="cuda").long())
    q_first, k_first = sum(shape.q_lens[:-1]), sum(shape.kv_lens[:-1])
    keys = slice(k_first, k_first + kv_len)
    v = _value_rows(spec, packed["v"], shape.kv_lens)
    q_scale = packed["q_scale"][q_first + rows].double()[:, None] if "q_scale" in packed else 1.0
    k_scale = packed["k_scale"][keys].double()[:, None] if "k_scale" in packed else 1.0
    k_rope = packed["k_rope"].reshape(-1, 64)[keys].double() * k_scale
    difference, norm = 0.0, 0.0
    for head in torch.linspace(0, shape.heads - 1, CHECKED_HEADS).long().tolist():
        q_nope = packed["q_nope"][q_first + rows, head].double() * q_scale
        q_rope = packed["q_rope"][q_first + rows, head].double() * q_scale
        scores = q_nope @ (packed["k_nope"][keys, head].double() * k_scale).t() + q_rope @ k_rope.t()
        if spec.mask == "causal":
            hidden = torch.arange(kv_len, device="cuda") > (rows + kv_len - q_len)[:, None]
            scores.masked_fill_(hidden, float("-inf"))
        expected = torch.softmax(scores / 192**0.5, dim=1) @ v[:, head]
        difference += (out[q_first + rows, head].double() - expected).square().sum().item()
        norm += expected.square().sum().item()
    return (difference / norm) ** 0.5


def _value_rows(spec: Any, v: torch.Tensor, kv_lens: tuple[int, ...]) -> torch.Tensor:
    """V of the last sequence as float64 [tokens, heads, v], also where it is stored transposed."""
    if spec.layout.v == "rows":
        return v[-kv_lens[-1] :].double()
    columns = transposed_v_columns(np.array([0, *itertools.accumulate(kv_lens)]))[-kv_lens[-1] :]
    return v[..., torch.from_numpy(columns).to(v.device)].double().permute(2, 0, 1)


def measure_spec(path: Path, shape: Shape, matmul: dict[str, Any]) -> dict[str, Any]:
    """One row of the result: error, times, rates and shares of the roofline."""
    spec = mla.load_spec(path)
    kernel = mla.load(path)
    first = make_inputs(spec, shape, seed=0)
    input_bytes = sum(value.nbytes for value in first.values() if isinstance(value, torch.Tensor))
    inputs = [first, *(make_inputs(spec, shape, seed) for seed in range(1, rotation(input_bytes)))]
    out = kernel(**first)
    error = relative_error(spec, shape, first, out)
    limit = ERROR_LIMIT[spec.dtypes.qkv]
    if not error <= limit:
        raise click.ClickException(f"{spec.name} has error {error:.2e} at {shape}, {limit:.0e} is allowed")
    times = measure([_bound(kernel, packed, out) for packed in inputs])
    row = {
        "spec": spec.name,
        "source_digest": kernel.plan["source_digest"][:12],
        "shape": shape.text,
        "mask": spec.mask,
        "error": error,
        **rates(times, shape.flop(spec.mask)),
    }
    for kind in ("burst", "sustained"):
        row[f"{kind}_share"] = row[f"{kind}_tflops"] / roofline(product_depths(spec), matmul, kind)
    return row


def _bound(kernel: Any, packed: dict[str, Any], out: torch.Tensor) -> Callable[[], Any]:
    return lambda: kernel(**packed, out=out)


def measure_cudnn(shape: Shape, mask: str, matmul: dict[str, Any]) -> dict[str, Any]:
    """The same attention in bf16 by cuDNN through torch, heads in front of tokens as that interface wants."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def normal(tokens: int, depth: int) -> torch.Tensor:
        size = (len(shape.q_lens), shape.heads, tokens, depth)
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    (length,) = {*shape.q_lens, *shape.kv_lens}
    q, k, v = normal(length, 192), normal(length, 192), normal(length, 128)

    def launch() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        times = measure([launch])
    row = {
        "spec": "cudnn bf16 (torch)",
        "shape": shape.text,
        "mask": mask,
        **rates(times, shape.flop(mask)),
    }
    for kind in ("burst", "sustained"):
        row[f"{kind}_share"] = row[f"{kind}_tflops"] / roofline({"bf16": 320}, matmul, kind)
    return row


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--shape", "shapes", multiple=True, default=("1x128x8192",), help=SHAPE_HELP)
@click.option("--cudnn", is_flag=True, help="also measure cuDNN's bf16 attention through torch")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file to write")
def main(specs: tuple[Path, ...], shapes: tuple[str, ...], cudnn: bool, out: Path | None) -> None:
    """Measures every spec at every shape and writes the file after each shape."""
    matmul = matmul_rates()
    result: dict[str, Any] = {"context": context(), "matmul": matmul, "rows": []}
    click.echo("matmul " + str({kind: round(rate["burst_tflops"]) for kind, rate in matmul.items()}))
    for text in shapes:
        shape = Shape.parse(text)
        rows = [measure_spec(path, shape, matmul) for path in specs]
        if cudnn and shape.is_square:
            masks = dict.fromkeys(row["mask"] for row in rows)
            rows += [measure_cudnn(shape, mask, matmul) for mask in masks]
        for row in rows:
            click.echo(
                f"{row['spec']:20} {text:16} "
                f"burst {row['burst_tflops']:6.0f} TFLOP/s ({row['burst_share']:.3f})  "
                f"sustained {row['sustained_tflops']:6.0f} ({row['sustained_share']:.3f})  "
                f"error {row.get('error', float('nan')):.1e}"
            )
        result["rows"] += rows
        torch.cuda.empty_cache()
        if out is not None:
            write_json(out, result)


if __name__ == "__main__":
    main()
