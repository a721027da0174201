"""The generated quantisers against the copy bandwidth, and fp8 with them against the bf16 kernel.

    python benchmarks/quantize.py --out quantize.json

Batch 1, 128 heads, bf16 inputs that are larger than three times the L2 cache from 2,048 tokens on. Every
quantiser is compared bit by bit with NumPy on a small problem before it is timed. `share` is the time in
which the device copies as many bytes as the quantiser reads and writes, half each, over the time of the
quantiser. Launches are replayed from CUDA graphs, so that the host takes no part, except in `eager` figures.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from protocol import context, measure_burst, write_json

import mla_codegen as mla
from mla_codegen.arrays import host_values
from mla_codegen.files import cache_folder
from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.render import render_quantizer
from mla_codegen.runtime.cache import default_cache
from mla_codegen.runtime.quantizer import Quantizer
from mla_codegen.spec import Spec
from mla_codegen.tensors import tensor_facts

HEADS = 128
TOKENS = (2048, 4096, 8192, 16384)
CHECKED_TOKENS, CHECKED_HEADS = 77, 16
SPECS = ("dsv3_fp8_sm90", "dsv3_fp8_vt_sm90")
BF16_SPEC = "dsv3_bf16_sm90"
FORMS_TOKENS = 8192
"""Where forms and numbers of threads are compared."""
THREADS = (256, 512)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "no scales": {},
    "tensor": {"scales": {"q": "tensor", "k": "tensor", "v": "tensor", "rope": "prescaled"}},
    "token_head, raw": {"scales": {"q": "token_head", "k": "token_head", "v": "token_head", "rope": "raw"}},
    "v token, transposed": {
        "scales": {"q": "token", "k": "token", "v": "token", "rope": "prescaled"},
        "layout": {"v": "transposed"},
    },
}

Inputs = dict[str, Any]


def spec_path(name: str) -> Path:
    return Path(__file__).parents[1] / "specs" / f"{name}.yaml"


def form_spec(changes: Mapping[str, Any]) -> Spec:
    base = {"name": "form", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
    return Spec.from_mapping({**base, "dtypes": {"qkv": "e4m3"}, **changes})


def make_inputs(tokens: int, heads: int, seed: int = 0) -> Inputs:
    """One sequence of N(0, 1)."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

    lengths = torch.tensor([0, tokens], device="cuda", dtype=torch.int32)
    return {
        "q": normal(tokens, heads, 192),
        "kv": normal(tokens, heads, 256),
        "k_rope": normal(tokens, 64),
        "cu_seqlens_q": lengths,
        "cu_seqlens_k": lengths,
        "max_seqlen_q": tokens,
    }


def check_bits(spec: Any, name: str) -> int:
    """Bytes compared with NumPy's; ClickException where one differs."""
    inputs = make_inputs(CHECKED_TOKENS, CHECKED_HEADS, seed=1)
    inputs["q"][3, :, :128] = 0
    inputs["k_rope"][5] *= 2.0**60
    facts, compared = tensor_facts(spec), 0
    found = mla.quantize(spec, **inputs)
    on_host = {
        key: host_values(value, "bf16") if key in ("q", "kv", "k_rope") else value.cpu().numpy()
        for key, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    expected = mla.quantize(spec, **on_host, max_seqlen_q=inputs["max_seqlen_q"])
    for key, wanted in expected.items():
        if not isinstance(wanted, np.ndarray):
            continue
        codes = found[key].contiguous().view(torch.uint8).cpu().numpy().reshape(-1)
        if not np.array_equal(codes, np.ascontiguousarray(wanted).view(np.uint8).reshape(-1)):
            raise click.ClickException(f"{name}: {key} differs from NumPy's ({facts})")
        compared += codes.size
    return compared


def moved_bytes(inputs: Inputs, packed: Mapping[str, Any]) -> int:
    """Bytes that a quantiser has to read and write once."""
    read = sum(inputs[name].nbytes for name in ("q", "kv", "k_rope"))
    names = ("q_nope", "q_rope", "k_nope", "k_rope", "v", "q_scale", "k_scale", "v_scale")
    return int(read + sum(packed[name].nbytes for name in names if name in packed))


def graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The launches of a call as a CUDA graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_ms(size: int) -> float:
    """Milliseconds of a copy that moves `size` bytes, half read, half written: the faster of two ways.

    A copy between large buffers may go to a copy engine, which is slower than a kernel that copies.
    """
    source = torch.empty(size // 8, dtype=torch.float32, device="cuda").fill_(1.0)
    target = torch.empty_like(source)
    ways = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
    return min(measure_burst([graphed(way)])["burst_ms"] for way in ways)


def measure_quantizer(spec: Any, name: str, inputs: Inputs, copy: Callable[[int], float]) -> dict[str, Any]:
    """Time, bandwidth and share of the copy of one quantiser at one size."""
    packed = mla.quantize(spec, **inputs)
    size = moved_bytes(inputs, packed)
    times = measure_burst([graphed(lambda: mla.quantize(spec, **inputs, out=packed))])
    copied = copy(size)
    row = {
        "quantizer": name,
        "tokens": inputs["q"].shape[0],
        "bytes": size,
        **times,
        "gb_per_s": size / times["burst_ms"] * 1e-6,
        "copy_ms": copied,
        "copy_gb_per_s": size / copied * 1e-6,
        "share": copied / times["burst_ms"],
    }
    click.echo(
        f"{name:20} {row['tokens']:6} tokens {row['burst_ms']:.4f} ms {row['gb_per_s']:5.0f} GB/s, "
        f"copy {row['copy_gb_per_s']:5.0f} GB/s, share {row['share']:.3f}"
    )
    return row


def measure_threads(spec: Any, name: str, inputs: Inputs) -> list[dict[str, Any]]:
    """Time with each number of threads of a CTA."""
    arrays = {key: inputs[key] for key in ("q", "kv", "k_rope")}
    lengths = inputs["cu_seqlens_k"] if tensor_facts(spec).v_transposed else None
    rows = []
    for threads in THREADS:
        plan = plan_quantizer(spec, threads=threads)
        if plan is None:
            raise click.ClickException(f"{name} has no quantiser")
        quantizer = Quantizer(plan, render_quantizer(plan), cache=default_cache(cache_folder()))
        packed = quantizer(arrays, cu_seqlens_k=lengths)
        call = functools.partial(quantizer, arrays, cu_seqlens_k=lengths, out=packed)
        rows.append({"quantizer": name, "threads": threads, **measure_burst([graphed(call)])})
        click.echo(f"{name:20} {threads:6} threads {rows[-1]['burst_ms']:.4f} ms")
    return rows


def host_us(call: Callable[[], Any]) -> float:
    """Median host time of a call."""
    times = []
    for number in range(200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if number % 10 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def measure_end_to_end(
    kernels: Mapping[str, Any], specs: Mapping[str, Any], inputs: Inputs
) -> dict[str, Any]:
    """bf16 kernel on slices of the inputs, against quantiser and fp8 kernel."""
    q, kv = inputs["q"], inputs["kv"]
    lengths = {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q")}
    slices = (q[..., :128], q[..., 128:], kv[..., :128], inputs["k_rope"], kv[..., 128:])
    out = torch.empty(*q.shape[:2], 128, device="cuda", dtype=torch.bfloat16)
    bf16 = measure_burst([graphed(lambda: kernels[BF16_SPEC](*slices, **lengths, out=out))])["burst_ms"]
    row: dict[str, Any] = {"tokens": q.shape[0], "bf16_ms": bf16}
    text = f"end to end           {q.shape[0]:6} tokens bf16 {bf16:.4f} ms"
    for name in SPECS:
        packed = mla.quantize(specs[name], **inputs)

        def both(name: str = name, packed: dict[str, Any] = packed) -> None:
            mla.quantize(specs[name], **inputs, out=packed)
            kernels[name](**packed, out=out)

        def alone(name: str = name, packed: dict[str, Any] = packed) -> None:
            kernels[name](**packed, out=out)

        row[f"{name}_ms"] = measure_burst([graphed(both)])["burst_ms"]
        row[f"{name}_eager_ms"] = measure_burst([both])["burst_ms"]
        row[f"{name}_alone_ms"] = measure_burst([graphed(alone)])["burst_ms"]
        row[f"{name}_speedup"] = bf16 / row[f"{name}_ms"]
        text += f", {name} {row[f'{name}_ms']:.4f} ms ({row[f'{name}_speedup']:.3f})"
    click.echo(text)
    return row


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="JSON file to write")
@click.option("--tokens", multiple=True, type=int, default=TOKENS, help="tokens of the one sequence")
@click.option("--no-forms", is_flag=True, help="only the shipped specs")
def main(out: Path | None, tokens: tuple[int, ...], no_forms: bool) -> None:
    """Checks bits, measures quantisers and end to end, and writes the file after each size."""
    specs: dict[str, Any] = {name: mla.load_spec(spec_path(name)) for name in SPECS}
    kernels = {name: mla.load(spec_path(name)) for name in (*SPECS, BF16_SPEC)}
    forms = {} if no_forms else {name: form_spec(changes) for name, changes in FORMS.items()}
    result: dict[str, Any] = {"context": context(), "quantizers": [], "threads": [], "end_to_end": []}
    result["bytes_equal"] = {name: check_bits(spec, name) for name, spec in {**specs, **forms}.items()}
    click.echo(f"bytes equal to NumPy's: {result['bytes_equal']}")
    copies: dict[int, float] = {}

    def copy(size: int) -> float:
        """The same number of bytes to within 4 % is copied once."""
        near = [known for known in copies if abs(known - size) < 0.04 * size]
        if not near:
            copies[size] = copy_ms(size)
            near = [size]
        return copies[near[0]] * size / near[0]

    for count in tokens:
        inputs = make_inputs(count, HEADS)
        for name, spec in specs.items():
            result["quantizers"].append(measure_quantizer(spec, name, inputs, copy))
            if count == FORMS_TOKENS:
                result["threads"] += measure_threads(spec, name, inputs)
        for name, spec in forms.items() if count == FORMS_TOKENS else ():
            result["quantizers"].append(measure_quantizer(spec, name, inputs, copy))
        result["end_to_end"].append(measure_end_to_end(kernels, specs, inputs))
        if "host_us" not in result:
            packed = mla.quantize(specs[SPECS[0]], **inputs)
            result["host_us"] = host_us(
                lambda inputs=inputs, packed=packed: mla.quantize(specs[SPECS[0]], **inputs, out=packed)
            )
            click.echo(f"host time of a call {result['host_us']:.1f} us")
        del inputs
        torch.cuda.empty_cache()
        if out is not None:
            write_json(out, result)


if __name__ == "__main__":
    main()
