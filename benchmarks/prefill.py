"""Measures prefill kernels on a GPU: correctness first, then TFLOP/s and the share of the roofline.

    python benchmarks/prefill.py specs/dsv3_fp8_sm90.yaml --shape 1x128x8192 --out prefill.json

A shape is BATCHxHEADSxQ_LEN or BATCHxHEADSxQ_LENxKV_LEN.
FLOP = 2 * batch * heads * visible pairs * (192 + 128).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from protocol import context, matmul_rates, measure, rates, roofline, rotation, write_json

import mla_codegen as mla

CHECKED_HEADS = 2
CHECKED_ROWS = 256
ERROR_LIMIT = {"e4m3": 4e-2, "bf16": 5e-3}


@dataclass(frozen=True, slots=True)
class Shape:
    batch: int
    heads: int
    q_len: int
    kv_len: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`1x128x8192` or `1x128x512x8192`."""
        numbers = [int(part) for part in text.split("x")]
        if len(numbers) not in (3, 4):
            raise click.BadParameter(
                f"{text} has {len(numbers)} numbers, a shape is BATCHxHEADSxQ_LEN or BATCHxHEADSxQ_LENxKV_LEN"
            )
        return cls(*numbers[:3], numbers[-1])

    def visible_pairs(self, mask: str) -> int:
        """Query-key pairs of one head of one sequence."""
        if mask == "full":
            return self.q_len * self.kv_len
        shift = self.kv_len - self.q_len
        first = max(0, -shift)
        rows = self.q_len - first
        return rows * (shift + first + 1) + rows * (rows - 1) // 2

    def flop(self, mask: str) -> float:
        return 2.0 * self.batch * self.heads * self.visible_pairs(mask) * (192 + 128)


def make_inputs(spec: Any, shape: Shape, seed: int) -> dict[str, Any]:
    """Random N(0,1) activations through `mla.quantize`, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tokens_q, tokens_k = shape.batch * shape.q_len, shape.batch * shape.kv_len

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

    lengths = torch.arange(shape.batch + 1, device="cuda", dtype=torch.int32)
    return mla.quantize(
        spec,
        normal(tokens_q, shape.heads, 192),
        normal(tokens_k, shape.heads, 256),
        normal(tokens_k, 64),
        cu_seqlens_q=lengths * shape.q_len,
        cu_seqlens_k=lengths * shape.kv_len,
        max_seqlen_q=shape.q_len,
    )


def relative_error(spec: Any, shape: Shape, packed: dict[str, Any], out: torch.Tensor) -> float:
    """Relative Frobenius error against float64, on a few heads and rows of the last sequence."""
    rows = torch.unique(torch.linspace(0, shape.q_len - 1, CHECKED_ROWS, device="cuda").long())
    q_first, k_first = (shape.batch - 1) * shape.q_len, (shape.batch - 1) * shape.kv_len
    keys = slice(k_first, k_first + shape.kv_len)
    q_scale = packed["q_scale"][q_first + rows].double()[:, None] if "q_scale" in packed else 1.0
    k_scale = packed["k_scale"][keys].double()[:, None] if "k_scale" in packed else 1.0
    k_rope = packed["k_rope"].reshape(-1, 64)[keys].double() * k_scale
    difference, norm = 0.0, 0.0
    for head in torch.linspace(0, shape.heads - 1, CHECKED_HEADS).long().tolist():
        q_nope = packed["q_nope"][q_first + rows, head].double() * q_scale
        q_rope = packed["q_rope"][q_first + rows, head].double() * q_scale
        scores = q_nope @ (packed["k_nope"][keys, head].double() * k_scale).t() + q_rope @ k_rope.t()
        if spec.mask == "causal":
            hidden = torch.arange(shape.kv_len, device="cuda") > (rows + shape.kv_len - shape.q_len)[:, None]
            scores.masked_fill_(hidden, float("-inf"))
        expected = torch.softmax(scores / 192**0.5, dim=1) @ packed["v"][keys, head].double()
        difference += (out[q_first + rows, head].double() - expected).square().sum().item()
        norm += expected.square().sum().item()
    return (difference / norm) ** 0.5


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
        "shape": [shape.batch, shape.heads, shape.q_len, shape.kv_len],
        "mask": spec.mask,
        "error": error,
        **rates(times, shape.flop(spec.mask)),
    }
    for kind in ("burst", "sustained"):
        row[f"{kind}_share"] = row[f"{kind}_tflops"] / roofline(spec.dtypes.qkv, matmul, kind)
    return row


def _bound(kernel: Any, packed: dict[str, Any], out: torch.Tensor) -> Callable[[], Any]:
    return lambda: kernel(**packed, out=out)


def measure_cudnn(shape: Shape, mask: str, matmul: dict[str, Any]) -> dict[str, Any]:
    """The same attention in bf16 by cuDNN through torch, heads in front of tokens as that interface wants."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def normal(tokens: int, depth: int) -> torch.Tensor:
        return torch.randn(shape.batch, shape.heads, tokens, depth, device="cuda", dtype=torch.bfloat16)

    q, k, v = normal(shape.q_len, 192), normal(shape.kv_len, 192), normal(shape.kv_len, 128)

    def launch() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        times = measure([launch])
    row = {
        "spec": "cudnn bf16 (torch)",
        "shape": [shape.batch, shape.heads, shape.q_len, shape.kv_len],
        "mask": mask,
        **rates(times, shape.flop(mask)),
    }
    for kind in ("burst", "sustained"):
        row[f"{kind}_share"] = row[f"{kind}_tflops"] / roofline("bf16", matmul, kind)
    return row


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--shape", "shapes", multiple=True, default=("1x128x8192",), help="BATCHxHEADSxQ_LEN[xKV_LEN]")
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
        if cudnn and shape.q_len == shape.kv_len:
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
