"""What can be wrong with one argument: its dtype, rank, shape, address and strides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from mla_codegen.call.forms import ArrayForm, ArrayView
from mla_codegen.call.rules import ArgumentRule, Layout
from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import Diagnostic

_SHARED_AXES = ("heads", "kv_heads", "batch", "total_q", "total_k", "q_len", "kv_len")
"""Axes along which inputs may have stride 0: all indices are the same place."""
_FIELDS = {
    "q_rope": ("dims.rope", "0", "pass None as q_rope"),
    "k_rope": ("dims.rope", "0", "pass None as k_rope"),
    "q_scale": ("scales.q", "none", "leave q_scale out, or declare scales.q"),
    "k_scale": ("scales.k", "none", "leave k_scale out, or declare scales.k"),
    "v_scale": ("scales.v", "none", "leave v_scale out, or declare scales.v"),
    "k_rope_scale": ("scales.rope_k", "none", "leave k_rope_scale out, or declare scales.rope_k"),
    "cu_seqlens_q": ("layout.q", "dense", "leave cu_seqlens_q out, or declare layout.q: ragged"),
    "cu_seqlens_k": ("layout.kv", "dense", "leave cu_seqlens_k out, or declare layout.kv: ragged"),
    "lse": ("softmax.lse", "none", "leave lse out, or declare softmax.lse"),
}
"""The field of the spec, and its value, with which an argument does not exist; then a way out."""


def fault(code: str, message: str, help_text: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, message=message, help=help_text)


def missing(rule: ArgumentRule) -> Diagnostic:
    """An input that the plan has and the call does not."""
    message = f"{rule.name} is missing, the spec requires it as {rule.dtype} [{', '.join(rule.axes)}]"
    return fault("argument-missing", message, f"pass {rule.name}=")


def not_declared(name: str) -> Diagnostic:
    """An argument of the call that the plan does not have."""
    field, value, way_out = _FIELDS[name]
    return fault("argument-not-declared", f"{name} is passed, but {field} of the spec is {value}", way_out)


def type_faults(rule: ArgumentRule, form: ArrayForm) -> Iterator[Diagnostic]:
    """Another dtype or another rank than the rule says."""
    names = ("int32",) if rule.dtype == "i32" else DTYPES[rule.dtype].accepted_names()
    if form.dtype not in names:
        message = f"{rule.name} has dtype {form.dtype}, {rule.dtype} is needed ({' or '.join(names)})"
        yield fault("dtype", message, f"convert {rule.name}, or build a spec for its dtype")
    if len(form.shape) != len(rule.axes):
        yield fault(
            "rank",
            f"{rule.name} has shape {list(form.shape)} of rank {len(form.shape)}, "
            f"[{', '.join(rule.axes)}] of rank {len(rule.axes)} is needed",
            f"reshape {rule.name}",
        )


def shape_faults(
    rule: ArgumentRule, form: ArrayForm, sizes: Mapping[str, int], origins: str
) -> Iterator[Diagnostic]:
    """Another shape than the sizes of the call give, which `origins` says the source of."""
    needed = [sizes[axis] if axis in sizes else int(axis) for axis in rule.axes]
    if list(form.shape) != needed:
        yield fault(
            "shape",
            f"{rule.name} has shape {list(form.shape)}, {needed} is needed ([{', '.join(rule.axes)}])",
            origins or f"reshape {rule.name}, or build a spec for its dims",
        )


def memory_faults(rule: ArgumentRule, view: ArrayView, stride_limit_bytes: int) -> Iterator[Diagnostic]:
    """An address or strides that the kernel cannot take; nothing can be wrong with an empty array."""
    if view.form.is_empty:
        return
    yield from _LAYOUT_FAULTS[rule.layout](rule, view.form, stride_limit_bytes)
    if view.pointer % rule.align_bytes:
        yield fault(
            "alignment",
            f"{rule.name} starts at address {view.pointer:#x}, a multiple of {rule.align_bytes} is needed",
            f"start {rule.name} at a multiple of {rule.align_bytes} bytes, or copy it",
        )


def _row_faults(rule: ArgumentRule, form: ArrayForm, limit_bytes: int) -> Iterator[Diagnostic]:
    if form.strides[-1] != form.item_bytes:
        yield fault(
            "last-stride",
            f"{rule.name} has a last stride of {form.strides[-1]} B, {form.item_bytes} B (contiguous) is "
            "needed",
            f"make {rule.name} contiguous",
        )
    for axis, (extent, stride) in enumerate(zip(form.shape[:-1], form.strides, strict=False)):
        is_shared = stride == 0 and rule.axes[axis] in _SHARED_AXES and not rule.is_output
        if extent == 1 or is_shared:
            continue
        if stride % rule.align_bytes or not 0 < stride < limit_bytes:
            yield fault(
                "stride",
                f"{rule.name} has a stride of {stride} B along {rule.axes[axis]}, a multiple of "
                f"{rule.align_bytes} B above 0 and below 2^{limit_bytes.bit_length() - 1} B is needed",
                f"make {rule.name} contiguous",
            )
    if rule.is_output and overlaps_itself(form.shape, form.strides):
        yield fault(
            "overlap",
            f"{rule.name} has strides of {list(form.strides)} B for shape {list(form.shape)}, so that "
            "elements share memory, an output whose elements lie apart is needed",
            f"make {rule.name} contiguous",
        )


def _element_faults(rule: ArgumentRule, form: ArrayForm, limit_bytes: int) -> Iterator[Diagnostic]:
    for axis, extent, stride in zip(rule.axes, form.shape, form.strides, strict=True):
        if extent > 1 and (stride % rule.align_bytes or stride < 0):
            yield fault(
                "stride",
                f"{rule.name} has a stride of {stride} B along {axis}, a multiple of {rule.align_bytes} B "
                "of at least 0 is needed",
                f"make {rule.name} contiguous",
            )


def _contiguous_faults(rule: ArgumentRule, form: ArrayForm, limit_bytes: int) -> Iterator[Diagnostic]:
    if not form.is_contiguous():
        yield fault(
            "contiguous",
            f"{rule.name} has strides of {list(form.strides)} B for shape {list(form.shape)}, "
            "a contiguous array is needed",
            f"make {rule.name} contiguous",
        )


_LAYOUT_FAULTS: Mapping[Layout, Callable[[ArgumentRule, ArrayForm, int], Iterator[Diagnostic]]] = {
    Layout.ROWS: _row_faults,
    Layout.ELEMENTS: _element_faults,
    Layout.CONTIGUOUS: _contiguous_faults,
}


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of an array may share memory; shape in elements, strides of above 0 in bytes.

    False only where each axis steps over all of the next inner one, which is what views of whole arrays do.
    """
    axes = sorted((stride, extent) for extent, stride in zip(shape, strides, strict=True) if extent > 1)
    return any(outer < extent * stride for (stride, extent), (outer, _) in itertools.pairwise(axes))
