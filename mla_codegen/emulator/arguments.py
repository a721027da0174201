"""A call on NumPy arrays, checked against the plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mla_codegen.arch import ARCHS, ArchLimits
from mla_codegen.call_rules import (
    checked_max_seqlen,
    checked_softmax_scale,
    content_faults,
    default_softmax_scale,
    overlaps_itself,
)
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import Diagnostic, LaunchError
from mla_codegen.plan.model import Argument, Plan, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked call: arrays by argument name (k_rope without its head axis), sizes and scale."""

    arrays: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    max_seqlen_q: int
    softmax_scale: float

    def grid(self, variant: Variant) -> tuple[int, int, int]:
        """x = query tiles x heads; y and z count the sequences."""
        batch, limit = self.sizes["batch"], variant.launch.grid_y_limit
        return self.query_tiles(variant) * self.sizes["heads"], min(batch, limit), -(-batch // limit)

    def query_tiles(self, variant: Variant) -> int:
        """Tiles of the longest sequence that is allowed."""
        return -(-self.max_seqlen_q // variant.launch.block_m)


def check_call(
    plan: Plan, given: Mapping[str, np.ndarray | None], max_seqlen_q: int | None, softmax_scale: float | None
) -> Call:
    """The call; LaunchError with every fault. `given` holds all inputs by name and, where passed, outputs."""
    rules = {argument.name: argument for argument in plan.arguments}
    faults = list(_presence_faults(rules, given))
    _raise_if(faults)
    arrays = {
        name: _without_head(name, array)
        for name, array in given.items()
        if array is not None and name in rules
    }
    for name, array in arrays.items():
        faults += _type_faults(rules[name], array)
    _raise_if(faults)
    sizes = _sizes(plan, arrays)
    for name, array in arrays.items():
        faults += _shape_faults(rules[name], array, sizes)
    _raise_if(faults)
    for name, array in arrays.items():
        faults += _memory_faults(rules[name], array, ARCHS[plan.arch])
    _raise_if(faults)
    return Call(
        arrays=arrays,
        sizes=sizes,
        max_seqlen_q=checked_max_seqlen(max_seqlen_q),
        softmax_scale=checked_softmax_scale(softmax_scale, default_softmax_scale(plan.spec["dims"])),
    )


def new_output(argument: Argument, call: Call, align_bytes: int) -> np.ndarray:
    """An output full of NaN, aligned as the kernel needs it."""
    shape = tuple(call.sizes[axis] if axis in call.sizes else int(axis) for axis in argument.axes)
    dtype = numpy_dtype(DTYPES[argument.dtype])
    raw = np.empty(math.prod(shape) * dtype.itemsize + align_bytes, np.uint8)
    start = -raw.ctypes.data % align_bytes
    array = raw[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    array[...] = np.nan
    return array


def check_contents(plan: Plan, call: Call) -> None:
    """LaunchError where lengths or scales cannot be right."""
    names = [argument.name for argument in plan.arguments if argument.kind in ("lengths", "scale")]
    sizes = {name: call.sizes[name] for name in ("total_q", "total_k")}
    copies = {name: call.arrays[name] for name in names}
    first_axes = {argument.name: argument.axes[0] for argument in plan.arguments}
    _raise_if(list(content_faults(copies, first_axes, **sizes, max_seqlen_q=call.max_seqlen_q)))


def _presence_faults(
    rules: Mapping[str, Argument], given: Mapping[str, np.ndarray | None]
) -> Iterator[Diagnostic]:
    for name, rule in rules.items():
        if given.get(name) is None and rule.kind != "output":
            yield _fault(
                "argument-missing",
                f"{name} is missing, the spec requires it as {rule.dtype} [{', '.join(rule.axes)}]",
                f"pass {name}=",
            )
    for name, array in given.items():
        if array is None:
            continue
        if name not in rules:
            yield _fault(
                "argument-not-declared",
                f"{name} is passed, but the spec does not declare it",
                f"leave {name} out",
            )
        elif not isinstance(array, np.ndarray):
            yield _fault(
                "no-array",
                f"{name} is of type {type(array).__name__}, the emulator takes NumPy arrays",
                "copy it to host memory",
            )


def _without_head(name: str, array: np.ndarray) -> np.ndarray:
    """k_rope as [tokens, rope]: its one shared head, of length 1 or stride 0, is dropped."""
    if name == "k_rope" and array.ndim == 3 and (array.shape[1] == 1 or array.strides[1] == 0):
        return array[:, 0, :]
    return array


def _axes(rule: Argument) -> tuple[str, ...]:
    return tuple(axis for axis in rule.axes if axis != "1" or len(rule.axes) == 1)


def _type_faults(rule: Argument, array: np.ndarray) -> Iterator[Diagnostic]:
    names = ("int32",) if rule.dtype == "i32" else DTYPES[rule.dtype].accepted_names()
    found = array.dtype.name if array.dtype.isnative else f"{array.dtype.name} of the other byte order"
    if found not in names:
        yield _fault(
            "dtype",
            f"{rule.name} has dtype {found}, {rule.dtype} is needed ({' or '.join(names)})",
            f"convert {rule.name}",
        )
    if array.ndim != len(_axes(rule)):
        yield _fault(
            "rank",
            f"{rule.name} has shape {list(array.shape)}, [{', '.join(rule.axes)}] is needed",
            f"reshape {rule.name}",
        )


def _sizes(plan: Plan, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    heads, group = arrays["q_nope"].shape[1], plan.spec["heads"]["group"]
    fixed = plan.spec["heads"]["q"]
    if heads == 0 or heads % group or fixed not in ("any", heads):
        allowed = f"a multiple of {group}" if fixed == "any" else str(fixed)
        raise LaunchError.single(
            "heads", f"q_nope has {heads} heads, {allowed} is needed", help="pass all heads"
        )
    offsets = arrays["cu_seqlens_q"].shape[0]
    if offsets == 0:
        raise LaunchError.single("cu-seqlens", "cu_seqlens_q has 0 elements, batch + 1 are needed")
    return {
        "total_q": arrays["q_nope"].shape[0],
        "total_k": arrays["k_nope"].shape[0],
        "heads": heads,
        "kv_heads": heads // group,
        "batch": offsets - 1,
        "batch + 1": offsets,
    }


def _shape_faults(rule: Argument, array: np.ndarray, sizes: Mapping[str, int]) -> Iterator[Diagnostic]:
    needed = [sizes[axis] if axis in sizes else int(axis) for axis in _axes(rule)]
    if list(array.shape) != needed:
        yield _fault(
            "shape",
            f"{rule.name} has shape {list(array.shape)}, {needed} is needed ([{', '.join(rule.axes)}])",
            "total_q and heads are those of q_nope, total_k those of k_nope",
        )


def _memory_faults(rule: Argument, array: np.ndarray, limits: ArchLimits) -> Iterator[Diagnostic]:
    if array.size == 0:
        return
    if rule.kind == "output" and not array.flags.writeable:
        yield _fault(
            "read-only", f"{rule.name} is read-only, a writable array is needed", f"copy {rule.name}"
        )
    if rule.kind in ("tensor", "output") and rule.name != "lse":
        yield from _tensor_faults(rule, array, limits)
        return
    if array.ctypes.data % array.itemsize:
        yield _alignment_fault(rule, array, array.itemsize)
    if rule.kind == "scale":
        yield from _scale_faults(rule, array)
    elif not array.flags.c_contiguous:
        yield _fault(
            "contiguous",
            f"{rule.name} has strides {list(array.strides)} B, a contiguous array is needed",
            f"make {rule.name} contiguous",
        )


def _alignment_fault(rule: Argument, array: np.ndarray, align_bytes: int) -> Diagnostic:
    return _fault(
        "alignment",
        f"{rule.name} starts at address {array.ctypes.data:#x}, a multiple of {align_bytes} is needed",
        f"start the view at a multiple of {align_bytes} bytes, or copy it",
    )


def _scale_faults(rule: Argument, array: np.ndarray) -> Iterator[Diagnostic]:
    for axis, extent, stride in zip(_axes(rule), array.shape, array.strides, strict=True):
        if extent > 1 and (stride < 0 or stride % array.itemsize):
            yield _fault(
                "stride",
                f"{rule.name} has a stride of {stride} B along {axis}, a multiple of {array.itemsize} B "
                "of at least 0 is needed",
                f"make {rule.name} contiguous",
            )


def _tensor_faults(rule: Argument, array: np.ndarray, limits: ArchLimits) -> Iterator[Diagnostic]:
    align_bytes, limit_bytes = limits.tensor_map_stride_step_bytes, limits.tensor_map_stride_limit_bytes
    if array.strides[-1] != array.itemsize:
        yield _fault(
            "last-stride",
            f"{rule.name} has a last stride of {array.strides[-1]} B, {array.itemsize} B "
            "(contiguous) is needed",
            f"make {rule.name} contiguous",
        )
    if array.ctypes.data % align_bytes:
        yield _alignment_fault(rule, array, align_bytes)
    for axis, (extent, stride) in enumerate(zip(array.shape[:-1], array.strides, strict=False)):
        shared = stride == 0 and axis == 1 and rule.kind != "output"
        if extent != 1 and not shared and (stride % align_bytes or not 0 < stride < limit_bytes):
            yield _fault(
                "stride",
                f"{rule.name} has a stride of {stride} B along {rule.axes[axis]}, a multiple of "
                f"{align_bytes} B above 0 and below 2^{limit_bytes.bit_length() - 1} B is needed",
                f"make {rule.name} contiguous",
            )
    if rule.kind == "output" and overlaps_itself(array.shape, array.strides):
        yield _fault(
            "overlap",
            f"{rule.name} has strides of {list(array.strides)} B for shape {list(array.shape)}, so that "
            "elements share memory, an output whose elements lie apart is needed",
            f"make {rule.name} contiguous",
        )


def _fault(code: str, message: str, help_text: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, help=help_text)


def _raise_if(faults: list[Diagnostic]) -> None:
    if faults:
        raise LaunchError(faults)
