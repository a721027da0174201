"""The kernel call: its tensors and the members of the by-value ``Params`` struct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mla_codegen.plan.model import Argument, ParamField

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

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
    q_tokens, k_tokens = _tokens(spec)
    q_rope = (
        "q_rope",
        rope,
        (*q_tokens, "heads", rope_depth),
        "tensor",
        f"queries, rotated{divided['q_scale']}",
    )
    k_rope = (
        "k_rope",
        rope,
        (*k_tokens, "1", rope_depth),
        "tensor",
        f"keys, rotated, one head{divided['k_scale']}",
    )
    rows = [
        ("q_nope", qkv, (*q_tokens, "heads", nope), "tensor", "queries, not rotated"),
        *([q_rope] if spec.dims.rope else []),
        ("k_nope", qkv, (*k_tokens, "kv_heads", nope), "tensor", "keys, not rotated"),
        *([k_rope] if spec.dims.rope else []),
        ("v", qkv, _v_axes(spec), "tensor", "values"),
    ]
    rows += [
        (name, "f32", axes, "scale", meaning) for name, form, axes, meaning in _scales(spec) if form != "none"
    ]
    rows += [
        (f"cu_seqlens_{side}", "i32", ("batch + 1",), "lengths", f"cumulative {kind} lengths")
        for side, kind, layout in (("q", "query", spec.layout.q), ("k", "key", spec.layout.kv))
        if layout == "ragged"
    ]
    rows.append(("out", spec.dtypes.out, (*q_tokens, "heads", ov), "output", "output"))
    if spec.softmax.lse != "none":
        rows.append(("lse", "f32", _lse_axes(spec), "output", f"log-sum-exp, {spec.softmax.lse}"))
    return tuple(
        Argument(name=name, dtype=dtype, axes=axes, kind=kind, comment=comment)
        for name, dtype, axes, kind, comment in rows
    )


def _tokens(spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that count queries, and those that count keys."""
    q = ("total_q",) if spec.layout.q == "ragged" else ("batch", "q_len")
    k = ("total_k",) if spec.layout.kv == "ragged" else ("batch", "kv_len")
    return q, k


def _v_axes(spec: Spec) -> tuple[str, ...]:
    ov = str(spec.dims.v)
    if spec.layout.v == "rows":
        return (*_tokens(spec)[1], "kv_heads", ov)
    batch = () if spec.layout.kv == "ragged" else ("batch",)
    return (*batch, "kv_heads", ov, "v_columns")


def _lse_axes(spec: Spec) -> tuple[str, ...]:
    *batch, tokens = _tokens(spec)[0]
    if spec.softmax.lse_layout == "head_token":
        return (*batch, "heads", tokens)
    return (*batch, tokens, "heads")


def _scales(spec: Spec) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, form, axes and meaning of each scale."""
    scales = spec.scales
    if scales.rope == "prescaled":
        q, k = "q_nope and q_rope are", "k_nope and k_rope are"
    else:
        q, k = "q_nope is", "k_nope is"
    q_tokens, k_tokens = _tokens(spec)
    rows = (
        ("q_scale", scales.q, q_tokens, "heads", q),
        ("k_scale", scales.k, k_tokens, "kv_heads", k),
        ("v_scale", scales.v, k_tokens, "kv_heads", "v is"),
        ("k_rope_scale", scales.rope_k, k_tokens, "1", "k_rope is"),
    )
    return [
        (name, form, _scale_axes(form, tokens, heads), f"what {scaled} multiplied by{_PER[form]}")
        for name, form, tokens, heads, scaled in rows
    ]


def _scale_axes(form: str, tokens: tuple[str, ...], heads: str) -> tuple[str, ...]:
    axes = {"tensor": ("1",), "head": (heads,), "token": tokens, "token_head": (*tokens, heads)}
    return axes.get(form, ())


def plan_params(
    spec: Spec, arguments: tuple[Argument, ...], *, runs_of_heads: bool = False
) -> tuple[ParamField, ...]:
    """Members of ``Params``; strides are 0 along an axis that a scale does not have."""
    axes = {argument.name: argument.axes for argument in arguments}
    fields = [_field("u8*", "out", f"[{', '.join((*axes['out'][:-1], 'kOvDepth'))}]")]
    fields += [
        _field("const i32*", f"cu_seqlens_{side}", f"[batch + 1], first {kind} of each sequence")
        for side, kind in (("q", "query"), ("k", "key"))
        if f"cu_seqlens_{side}" in axes
    ]
    fields += _strides("out", axes)
    fields += [_field("i32", "batch", "sequences"), _field("i32", "heads", "query heads")]
    if spec.layout.q == "dense":
        fields.append(_field("i32", "q_len", "queries of every sequence"))
    if spec.layout.kv == "dense":
        fields.append(_field("i32", "kv_len", "keys of every sequence"))
    fields.append(_field("i32", "query_tiles", "tiles of the longest sequence that is allowed"))
    if runs_of_heads:
        fields.append(_field("i32", "run_heads", "heads that a CTA goes through, one after the other"))
        fields.append(_field("i32", "head_runs", "CTAs that it takes for all heads"))
    fields += _steps(axes)
    scaled = [(name, form) for name, form, _, _ in _scales(spec) if form != "none"]
    fields += [_field("const float*", name, f"[{', '.join(axes[name])}]") for name, _ in scaled]
    fields += _scale_strides(scaled, axes)
    if spec.softmax.lse != "none":
        fields += [_field("float*", "lse", f"[{', '.join(axes['lse'])}]"), *_strides("lse", axes)]
    fields.append(_field("float", "scale_log2", "softmax_scale * log2(e)"))
    return tuple(fields)


def _steps(axes: Mapping[str, tuple[str, ...]]) -> Iterator[ParamField]:
    """Factors from a head or sequence number to the coordinate of a tensor map: a map takes no stride 0."""
    seen: set[str] = set()
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v"):
        for kind, symbols in (("head", ("heads", "kv_heads")), ("batch", ("batch",))):
            axis = _axis(axes.get(name, ()), symbols)
            if axis is None:
                continue
            comment = f"the same for {name}"
            if kind not in seen:
                what = {"head": "heads share one (head", "batch": "sequences share one (batch"}[kind]
                comment = f"0 where all {what} stride 0), else 1"
            seen.add(kind)
            yield ParamField(ctype="u32", name=f"{name}_{kind}_step", comment=comment, axis=axis)


def _scale_strides(
    scaled: list[tuple[str, str]], axes: Mapping[str, tuple[str, ...]]
) -> Iterator[ParamField]:
    """The strides that the kernel reads: those of every axis, and of query rows even where it is 0."""
    seen: set[str] = set()
    for name, form in scaled:
        token, head, *batch = _strides(name, axes)
        per_token = name == "q_scale" or form in ("token", "token_head")
        per_head = form in ("head", "token_head")
        for stride, wanted in ((token, per_token), (head, per_head), *((one, True) for one in batch)):
            if wanted:
                again = stride.axis is not None and stride.comment in seen
                seen.add(stride.comment)
                yield replace(stride, comment=f"the same for {name}") if again else stride


def _field(ctype: str, name: str, comment: str) -> ParamField:
    return ParamField(ctype=ctype, name=name, comment=comment)


def _strides(name: str, axes: Mapping[str, tuple[str, ...]]) -> list[ParamField]:
    """Strides from one token, from one head and, where there is that axis, from one sequence to the next."""
    kinds = (
        ("token", ("total_q", "total_k", "q_len", "kv_len")),
        ("head", ("heads", "kv_heads")),
        ("batch", ("batch",)),
    )
    made = []
    for kind, symbols in kinds:
        axis = _axis(axes[name], symbols)
        if kind == "batch" and axis is None:
            continue
        thing = "sequence" if kind == "batch" else kind
        comment = f"elements from one {thing} to the next" if axis is not None else f"0: one for all {thing}s"
        made.append(ParamField(ctype="i64", name=f"{name}_{kind}_stride", comment=comment, axis=axis))
    return made


def _axis(axes: tuple[str, ...], symbols: tuple[str, ...]) -> int | None:
    """Place of the axis with one of these symbols; a head axis of fixed length 1 is not counted."""
    counted = [axis for axis in axes if axis != "1"]
    return next((index for index, axis in enumerate(counted) if axis in symbols), None)
