"""The kernel call: its tensors and the members of the by-value ``Params`` struct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen.plan.model import Argument, ParamField

if TYPE_CHECKING:
    from mla_codegen.spec import Spec


def plan_arguments(spec: Spec, *, has_scales: bool) -> tuple[Argument, ...]:
    """Every tensor of the call, in the order of the call; all are required."""
    qkv, rope = spec.dtypes.qkv, spec.dtypes.rope_gmem
    nope, rope_depth, ov = str(spec.dims.nope), str(spec.dims.rope), str(spec.dims.v)
    rows = [
        ("q_nope", qkv, ("total_q", "heads", nope), "tensor", "queries, not rotated"),
        ("q_rope", rope, ("total_q", "heads", rope_depth), "tensor", "queries, rotated"),
        ("k_nope", qkv, ("total_k", "heads", nope), "tensor", "keys, not rotated"),
        ("k_rope", rope, ("total_k", "1", rope_depth), "tensor", "keys, rotated, one head"),
        ("v", qkv, ("total_k", "heads", ov), "tensor", "values"),
    ]
    if has_scales:
        rows[1] = (*rows[1][:4], "queries, rotated; divided by q_scale")
        rows[3] = (*rows[3][:4], "keys, rotated, one head; divided by k_scale")
        rows += [
            ("q_scale", "f32", ("total_q",), "scale", "what q_nope and q_rope are multiplied by, per token"),
            ("k_scale", "f32", ("total_k",), "scale", "what k_nope and k_rope are multiplied by, per token"),
        ]
    rows += [
        ("cu_seqlens_q", "i32", ("batch + 1",), "lengths", "cumulative query lengths"),
        ("cu_seqlens_k", "i32", ("batch + 1",), "lengths", "cumulative key lengths"),
        ("out", spec.dtypes.out, ("total_q", "heads", ov), "output", "output"),
    ]
    return tuple(
        Argument(name=name, dtype=dtype, axes=axes, kind=kind, comment=comment)
        for name, dtype, axes, kind, comment in rows
    )


def plan_params(*, has_scales: bool) -> tuple[ParamField, ...]:
    """Members of ``Params``, the widest first."""
    rows = [
        ("u8*", "out", "[total_q, heads, kOvDepth]"),
        ("const i32*", "cu_seqlens_q", "[batch + 1], first query of each sequence"),
        ("const i32*", "cu_seqlens_k", "[batch + 1], first key of each sequence"),
        ("i64", "out_token_stride", "elements from one token to the next"),
        ("i64", "out_head_stride", "elements from one head to the next"),
        ("i32", "batch", "sequences"),
        ("i32", "heads", "query heads"),
        ("i32", "query_tiles", "tiles of the longest sequence that is allowed"),
        ("u32", "q_nope_head_step", "0 where all heads share one (head stride 0), else 1"),
        ("u32", "q_rope_head_step", "the same for q_rope"),
        ("u32", "k_nope_head_step", "the same for k_nope"),
        ("u32", "v_head_step", "the same for v"),
    ]
    if has_scales:
        rows += [
            ("const float*", "q_scale", "[total_q]"),
            ("const float*", "k_scale", "[total_k]"),
            ("i64", "q_scale_token_stride", "elements from one token to the next"),
            ("i64", "k_scale_token_stride", "the same for k_scale"),
        ]
    rows.append(("float", "scale_log2", "softmax_scale * log2(e)"))
    return tuple(ParamField(ctype=ctype, name=name, comment=comment) for ctype, name, comment in rows)
