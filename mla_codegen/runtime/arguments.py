"""The checks of a call: each fault names the tensor, the value found and the value allowed.

All faults that can be told apart are reported together, as one LaunchError before anything is launched.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import Diagnostic, LaunchError
from mla_codegen.runtime.arrays import ArrayView
from mla_codegen.runtime.rules import ArgumentRule, CallRules

Views: TypeAlias = "Mapping[str, ArrayView | None]"

_MAX_INT32 = 2**31 - 1
_GRID_Z_LIMIT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A checked call: its sizes, its device, and the scale that is in force."""

    device: int
    batch: int
    heads: int
    total_q: int
    total_k: int
    max_seqlen_q: int
    query_tiles: int
    softmax_scale: float

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        return self.batch == 0 or self.total_q == 0 or self.query_tiles == 0


def without_head_axis(view: ArrayView) -> ArrayView:
    """`k_rope` as [tokens, rope]: its one shared head, given as length 1 or as stride 0, is dropped."""
    if len(view.shape) == 3 and (view.shape[1] == 1 or view.strides[1] == 0):
        return view._replace(shape=(view.shape[0], view.shape[2]), strides=(view.strides[0], view.strides[2]))
    return view


def check_call(
    rules: CallRules,
    views: Views,
    *,
    max_seqlen_q: int,
    softmax_scale: float,
    device_of: Callable[[int], int],
) -> Problem:
    """The problem that the inputs describe; LaunchError with every fault.

    `device_of` gives the device of a pointer whose array does not say. Outputs are checked by `check_output`.
    """
    present = _present_inputs(rules, views)
    _raise_if(fault for rule, view in present for fault in _type_faults(rule, view))
    device = _common_device(present, device_of)
    sizes = _sizes(rules, dict((rule.name, view) for rule, view in present))
    _raise_if(fault for rule, view in present for fault in _shape_faults(rule, view, sizes))
    _raise_if(fault for rule, view in present for fault in _memory_faults(rule, view, rules))
    problem = Problem(
        device=device,
        batch=sizes["batch + 1"] - 1,
        heads=sizes["heads"],
        total_q=sizes["total_q"],
        total_k=sizes["total_k"],
        max_seqlen_q=max_seqlen_q,
        query_tiles=-(-max_seqlen_q // rules.block_m),
        softmax_scale=softmax_scale,
    )
    _check_limits(problem, rules)
    return problem


def checked_max_seqlen(value: object) -> int:
    """`max_seqlen_q` as an int; LaunchError where it is none or negative."""
    help_text = "pass the largest query length that this call, or a replay of it, may meet"
    if value is None:
        _refuse("max-seqlen", "max_seqlen_q is missing, a number of tokens is needed", help_text)
    try:
        tokens = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _refuse("max-seqlen", f"max_seqlen_q is {value!r}, an integer is needed", help_text)
    if not 0 <= tokens <= _MAX_INT32 or isinstance(value, bool):
        _refuse("max-seqlen", f"max_seqlen_q is {value!r}, 0 to {_MAX_INT32} is allowed", help_text)
    return tokens


def checked_softmax_scale(value: object, rules: CallRules) -> float:
    """`softmax_scale` as a float or its default; LaunchError where it is no finite number of at least 0."""
    if value is None:
        return 1.0 / math.sqrt(rules.dims["nope"] + rules.dims["rope"])
    help_text = "leave it out for 1 / sqrt(nope + rope)"
    try:
        scale = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        _refuse("softmax-scale", f"softmax_scale is {value!r}, a number is needed", help_text)
    if not math.isfinite(scale) or scale < 0:
        _refuse(
            "softmax-scale", f"softmax_scale is {scale}, a finite number of at least 0 is needed", help_text
        )
    return scale


def output_shape(rule: ArgumentRule, problem: Problem) -> tuple[int, ...]:
    """The shape of an output of this problem."""
    sizes = {"total_q": problem.total_q, "heads": problem.heads}
    return tuple(sizes[axis] if axis in sizes else int(axis) for axis in rule.axes)


def check_output(
    rule: ArgumentRule, view: ArrayView, problem: Problem, rules: CallRules, device_of: Callable[[int], int]
) -> None:
    """LaunchError where an output does not fit the problem."""
    _raise_if(_type_faults(rule, view))
    sizes = {"total_q": problem.total_q, "heads": problem.heads}
    _raise_if(_shape_faults(rule, view, sizes))
    _raise_if(_memory_faults(rule, view, rules))
    device = _device(view, device_of)
    if device not in (-1, problem.device):
        _refuse("device", f"{rule.name} is on device {device}, the inputs are on device {problem.device}")


def _present_inputs(rules: CallRules, views: Views) -> list[tuple[ArgumentRule, ArrayView]]:
    """The inputs with their rules; LaunchError where one is missing or one too many is there."""
    faults = []
    for name, view in views.items():
        rule = rules.find(name)
        if rule is None and view is not None:
            faults.append(_fault("argument-not-declared", *_not_declared(name)))
        if rule is not None and view is None and not rule.is_output:
            message = f"{name} is missing, the spec requires it as {rule.dtype} [{', '.join(rule.axes)}]"
            faults.append(_fault("argument-missing", message, f"pass {name}="))
    _raise_if(faults)
    found = ((rule, views.get(rule.name)) for rule in rules.arguments if not rule.is_output)
    return [
        (rule, without_head_axis(view) if rule.name == "k_rope" else view)
        for rule, view in found
        if view is not None
    ]


def _not_declared(name: str) -> tuple[str, str]:
    if name.endswith("_scale"):
        field = f"scales.{name.removesuffix('_scale')}"
        return f"{name} is passed, but {field} of the spec is none", f"leave {name} out, or declare {field}"
    if name == "lse":
        return "lse is passed, but softmax.lse of the spec is none", "leave lse out, or declare softmax.lse"
    return f"{name} is passed, but dims.rope of the spec is 0", f"pass None as {name}"


def _type_faults(rule: ArgumentRule, view: ArrayView) -> Iterator[Diagnostic]:
    names = ("int32",) if rule.dtype == "i32" else DTYPES[rule.dtype].accepted_names()
    if view.dtype not in names:
        message = f"{rule.name} has dtype {view.dtype}, {rule.dtype} is needed ({' or '.join(names)})"
        yield _fault("dtype", message, f"convert {rule.name}, or build a spec for its dtype")
    if len(view.shape) != len(rule.axes):
        yield _fault(
            "rank",
            f"{rule.name} has shape {list(view.shape)} of rank {len(view.shape)}, "
            f"[{', '.join(rule.axes)}] of rank {len(rule.axes)} is needed",
            f"reshape {rule.name}",
        )


def _common_device(present: list[tuple[ArgumentRule, ArrayView]], device_of: Callable[[int], int]) -> int:
    devices = [(rule.name, _device(view, device_of)) for rule, view in present]
    known = [(name, device) for name, device in devices if device >= 0]
    if not known:
        return 0
    first_name, first = known[0]
    _raise_if(
        _fault(
            "device",
            f"{name} is on device {device}, {first_name} is on device {first}, one device is needed",
            f"move {name} to device {first}",
        )
        for name, device in known[1:]
        if device != first
    )
    return first


def _device(view: ArrayView, device_of: Callable[[int], int]) -> int:
    return device_of(view.pointer) if view.device < 0 and view.pointer else view.device


def _sizes(rules: CallRules, views: Mapping[str, ArrayView]) -> dict[str, int]:
    """The value of each symbol: tokens and heads as in q_nope and k_nope, batch as in cu_seqlens_q."""
    heads = views["q_nope"].shape[1] if rules.heads is None else rules.heads
    if heads % rules.group or heads == 0:
        _refuse(
            "heads",
            f"q_nope has {heads} heads, a multiple of heads.group {rules.group} above 0 is needed",
            "pass all heads of a group",
        )
    offsets = views["cu_seqlens_q"].shape[0]
    if offsets == 0:
        _refuse(
            "cu-seqlens", "cu_seqlens_q has 0 elements, batch + 1 are needed", "pass [0] for an empty batch"
        )
    return {
        "total_q": views["q_nope"].shape[0],
        "total_k": views["k_nope"].shape[0],
        "heads": heads,
        "kv_heads": heads // rules.group,
        "batch + 1": offsets,
    }


def _shape_faults(rule: ArgumentRule, view: ArrayView, sizes: Mapping[str, int]) -> Iterator[Diagnostic]:
    needed = [sizes[axis] if axis in sizes else int(axis) for axis in rule.axes]
    if list(view.shape) != needed:
        yield _fault(
            "shape",
            f"{rule.name} has shape {list(view.shape)}, {needed} is needed ([{', '.join(rule.axes)}])",
            "total_q and heads are those of q_nope, total_k those of k_nope, batch that of cu_seqlens_q",
        )


def _memory_faults(rule: ArgumentRule, view: ArrayView, rules: CallRules) -> Iterator[Diagnostic]:
    if 0 in view.shape:
        return
    if not rule.is_tensor:
        yield from _contiguous_faults(rule, view)
        return
    strides = view.byte_strides()
    copy_help = f"make {rule.name} contiguous"
    limit_bits = rules.stride_limit_bytes.bit_length() - 1
    if strides[-1] != view.item_bytes:
        message = (
            f"{rule.name} has a last stride of {strides[-1]} B, {view.item_bytes} B (contiguous) is needed"
        )
        yield _fault("last-stride", message, copy_help)
    if view.pointer % rules.align_bytes:
        message = (
            f"{rule.name} starts at address {view.pointer:#x}, a multiple of {rules.align_bytes} is needed"
        )
        yield _fault(
            "alignment", message, f"start the view at a multiple of {rules.align_bytes} bytes, or copy it"
        )
    for axis, (extent, stride) in enumerate(zip(view.shape[:-1], strides, strict=False)):
        shared_head = stride == 0 and axis == 1 and not rule.is_output
        if extent == 1 or shared_head:
            continue
        if stride % rules.align_bytes or not 0 < stride < rules.stride_limit_bytes:
            message = (
                f"{rule.name} has a stride of {stride} B along {rule.axes[axis]}, a multiple of "
                f"{rules.align_bytes} B above 0 and below 2^{limit_bits} B is needed"
            )
            yield _fault("stride", message, copy_help)


def _contiguous_faults(rule: ArgumentRule, view: ArrayView) -> Iterator[Diagnostic]:
    if not view.is_contiguous():
        message = (
            f"{rule.name} has strides of {list(view.byte_strides())} B for shape {list(view.shape)}, "
            "a contiguous array is needed"
        )
        yield _fault("contiguous", message, f"make {rule.name} contiguous")
    if view.pointer % view.item_bytes:
        message = (
            f"{rule.name} starts at address {view.pointer:#x}, a multiple of {view.item_bytes} is needed"
        )
        yield _fault("alignment", message, f"copy {rule.name}")


def _check_limits(problem: Problem, rules: CallRules) -> None:
    limits = (
        ("total_q", problem.total_q, _MAX_INT32),
        ("total_k", problem.total_k, _MAX_INT32),
        ("query tiles x heads", problem.query_tiles * problem.heads, _MAX_INT32),
        ("batch", problem.batch, rules.grid_y_limit * _GRID_Z_LIMIT),
    )
    _raise_if(
        _fault("too-large", f"{name} is {found}, at most {allowed} is allowed", "split the batch")
        for name, found, allowed in limits
        if found > allowed
    )


def _fault(code: str, message: str, help_text: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, help=help_text)


def _refuse(code: str, message: str, help_text: str | None = None) -> NoReturn:
    raise LaunchError.single(code, message, help=help_text)


def _raise_if(faults: Iterable[Diagnostic]) -> None:
    found = tuple(faults)
    if found:
        raise LaunchError(found)
