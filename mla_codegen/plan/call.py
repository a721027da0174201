"""The kernel call: its tensors and the members of the by-value ``Params`` struct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mla_codegen.plan.model import Argument, ParamField

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

_HEADS = ("heads", "kv_heads")
_SCALE_AXES = {
    "tensor": ("1",),
    "head": ("{heads}",),
    "token": ("{tokens}",),
    "token_head": ("{tokens}", "{heads}"),
}
"""Axes of a scale by its form."""
_PER = {
    "none": "",
    "tensor": ", one for all",
    "head": ", per head",
    "token": ", per token",
    "token_head": ", per token and head",
}


def plan_arguments(spec: Spec) -> tuple[Argument, ...]:
    """Every tensor of the call, in the order of the call; all are required."""
    qkv, rope = spec.dtypes.qkv, spec.dtypes.rope_gmem
    nope, rope_depth, ov = str(spec.dims.nope), str(spec.dims.rope), str(spec.dims.v)
    divided = {
        name: f"; divided by {name}" if spec.scales.rope == "prescaled" else ""
        for name in ("q_scale", "k_scale")
    }
    rows = [
        ("q_nope", qkv, ("total_q", "heads", nope), "tensor", "queries, not rotated"),
        ("q_rope", rope, ("total_q", "heads", rope_depth), "tensor", f"queries, rotated{divided['q_scale']}"),
        ("k_nope", qkv, ("total_k", "kv_heads", nope), "tensor", "keys, not rotated"),
        (
            "k_rope",
            rope,
            ("total_k", "1", rope_depth),
            "tensor",
            f"keys, rotated, one head{divided['k_scale']}",
        ),
        ("v", qkv, ("total_k", "kv_heads", ov), "tensor", "values"),
    ]
    rows += [
        (name, "f32", axes, "scale", meaning) for name, form, axes, meaning in _scales(spec) if form != "none"
    ]
    rows += [
        ("cu_seqlens_q", "i32", ("batch + 1",), "lengths", "cumulative query lengths"),
        ("cu_seqlens_k", "i32", ("batch + 1",), "lengths", "cumulative key lengths"),
        ("out", spec.dtypes.out, ("total_q", "heads", ov), "output", "output"),
    ]
    if spec.softmax.lse != "none":
        axes = ("heads", "total_q") if spec.softmax.lse_layout == "head_token" else ("total_q", "heads")
        rows.append(("lse", "f32", axes, "output", f"log-sum-exp, {spec.softmax.lse}"))
    return tuple(
        Argument(name=name, dtype=dtype, axes=axes, kind=kind, comment=comment)
        for name, dtype, axes, kind, comment in rows
    )


def _scales(spec: Spec) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, form, axes and meaning of each scale."""
    scales = spec.scales
    if scales.rope == "prescaled":
        q, k = "q_nope and q_rope are", "k_nope and k_rope are"
    else:
        q, k = "q_nope is", "k_nope is"
    rows = (
        ("q_scale", scales.q, "total_q", "heads", q),
        ("k_scale", scales.k, "total_k", "kv_heads", k),
        ("v_scale", scales.v, "total_k", "kv_heads", "v is"),
    )
    return [
        (name, form, _axes(form, tokens, heads), f"what {scaled} multiplied by{_PER[form]}")
        for name, form, tokens, heads, scaled in rows
    ]


def _axes(form: str, tokens: str, heads: str) -> tuple[str, ...]:
    return tuple(axis.format(tokens=tokens, heads=heads) for axis in _SCALE_AXES.get(form, ()))


def plan_params(spec: Spec, arguments: tuple[Argument, ...]) -> tuple[ParamField, ...]:
    """Members of ``Params``; strides are 0 along an axis that a scale does not have."""
    axes = {argument.name: argument.axes for argument in arguments}
    fields = [
        _field("u8*", "out", "[total_q, heads, kOvDepth]"),
        _field("const i32*", "cu_seqlens_q", "[batch + 1], first query of each sequence"),
        _field("const i32*", "cu_seqlens_k", "[batch + 1], first key of each sequence"),
        *_strides("out", axes),
        _field("i32", "batch", "sequences"),
        _field("i32", "heads", "query heads"),
        _field("i32", "query_tiles", "tiles of the longest sequence that is allowed"),
        _head_step("q_nope", axes, "0 where all heads share one (head stride 0), else 1"),
        *(_head_step(name, axes, f"the same for {name}") for name in ("q_rope", "k_nope", "v")),
    ]
    scaled = [(name, form) for name, form, _, _ in _scales(spec) if form != "none"]
    fields += [_field("const float*", name, f"[{', '.join(axes[name])}]") for name, _ in scaled]
    fields += _scale_strides(scaled, axes)
    if spec.softmax.lse != "none":
        fields += [_field("float*", "lse", f"[{', '.join(axes['lse'])}]"), *_strides("lse", axes)]
    fields.append(_field("float", "scale_log2", "softmax_scale * log2(e)"))
    return tuple(fields)


def _scale_strides(
    scaled: list[tuple[str, str]], axes: Mapping[str, tuple[str, ...]]
) -> Iterator[ParamField]:
    """The strides that the kernel reads: per row or column, and per head where it does not use the first."""
    seen: set[str] = set()
    for name, form in scaled:
        token, head = _strides(name, axes)
        per_token = name == "q_scale" or form in ("token", "token_head")
        per_head = form in ("head", "token_head") or not per_token
        for stride, wanted in ((token, per_token), (head, per_head)):
            if wanted:
                again = stride.axis is not None and stride.comment in seen
                seen.add(stride.comment)
                yield replace(stride, comment=f"the same for {name}") if again else stride


def _field(ctype: str, name: str, comment: str) -> ParamField:
    return ParamField(ctype=ctype, name=name, comment=comment)


def _head_step(name: str, axes: Mapping[str, tuple[str, ...]], comment: str) -> ParamField:
    axis = next(index for index, symbol in enumerate(axes[name]) if symbol in _HEADS)
    return ParamField(ctype="u32", name=f"{name}_head_step", comment=comment, axis=axis)


def _strides(name: str, axes: Mapping[str, tuple[str, ...]]) -> tuple[ParamField, ParamField]:
    """Strides from one token and from one head to the next, in elements."""
    made = []
    for kind, symbols in (("token", ("total_q", "total_k")), ("head", _HEADS)):
        axis = next((index for index, symbol in enumerate(axes[name]) if symbol in symbols), None)
        comment = f"elements from one {kind} to the next" if axis is not None else f"0: one for all {kind}s"
        made.append(ParamField(ctype="i64", name=f"{name}_{kind}_stride", comment=comment, axis=axis))
    return made[0], made[1]
