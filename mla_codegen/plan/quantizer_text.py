"""The comment at the top of a generated quantiser: what it computes, its kernels and their roles."""

from __future__ import annotations

from mla_codegen.plan.model import Smem
from mla_codegen.plan.quantizer_model import QuantizerKernel
from mla_codegen.tensors import TensorFacts

DOES = {
    "largest_q": "largest elements of q by atomic maxima",
    "largest_k": "largest elements of k_nope, and of k_rope where it is divided, by atomic maxima",
    "largest_v": "largest elements of v by atomic maxima",
    "scale_v": "scales of v, which transpose_v needs for tokens of one head at a time",
    "quantize_q": "q to q_nope and q_rope",
    "quantize_kv": "kv to k_nope and v, with k_rope",
    "quantize_k": "kv to k_nope, with k_rope",
    "quantize_v": "kv to v",
    "transpose_v": "v to tokens along rows, 16 columns of one head a warp, through shared memory",
}


def formula(facts: TensorFacts) -> tuple[str, ...]:
    """What each output is."""
    lines = []
    for tensor, form in (("q", facts.q_scale), ("k", facts.k_scale), ("v", facts.v_scale)):
        segment = "v" if tensor == "v" else f"{tensor}_nope"
        if form == "none":
            lines.append(f"{segment} = e4m3({segment})")
            continue
        group = {"tensor": "", "head": "[h]", "token": "[t]", "token_head": "[t,h]"}[form]
        scale = f"{tensor}_scale{group}"
        lines.append(
            f"{scale} = max |{segment}| / 448, 1 where that is 0;  {segment} = e4m3({segment} / {scale})"
        )
    if facts.rope:
        lines += _rope(facts)
    if facts.v_transposed:
        lines.append("v has tokens along rows, permuted in groups of 16, and zeros where a group has fewer")
    lines.append("e4m3 rounds to nearest even and saturates; a NaN makes scale and codes of its group NaN")
    return tuple(lines)


def _rope(facts: TensorFacts) -> list[str]:
    dtype = facts.rope_dtype
    if not facts.rope_prescaled:
        return [f"q_rope, k_rope = {dtype}(rope)"]
    limit = {"e4m3": "448", "f16": "65504", "bf16": "2^48"}[dtype]
    return [
        f"q_rope, k_rope = {dtype}(rope / the scale of q, of k), scales raised where that would pass {limit}"
    ]


def role_table(kernels: tuple[QuantizerKernel, ...]) -> tuple[str, ...]:
    """A line per kernel and per role."""
    lines = []
    for kernel in kernels:
        lines.append(f"{kernel.entry}_bf16, {kernel.entry}_f16: {kernel.does}")
        lines += [f"  {part.function}: {part.does}" for part in kernel.roles]
    return tuple(lines)


def smem_table(smem: Smem) -> tuple[str, ...]:
    """Offset, bytes, field, content."""
    return tuple(
        f"{field.offset_bytes:6} {field.size_bytes:6}  {field.name}: {field.content}" for field in smem.fields
    )
