"""The checks of a call: its arguments against the rules, against each other and against the launch's limits.

All faults that can be told apart are reported together, as one LaunchError before anything is launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mla_codegen.errors import Diagnostic, LaunchError
from mla_codegen.plan.model import Launch
from mla_codegen.runtime.arrays import NO_FORM, ArrayView, array_form
from mla_codegen.runtime.faults import fault, memory_faults, shape_faults, type_faults
from mla_codegen.runtime.problem import Problem
from mla_codegen.runtime.rules import ArgumentRule, CallRules

_MAX_INT32 = 2**31 - 1
_GRID_Z_LIMIT = 65535


@dataclass(frozen=True, slots=True)
class CheckedInputs:
    """A problem, and the inputs that are there, `k_rope` as [tokens, rope]."""

    problem: Problem
    views: Mapping[str, ArrayView]


def check_inputs(
    rules: CallRules, views: Mapping[str, ArrayView], *, max_seqlen_q: int, softmax_scale: float
) -> CheckedInputs:
    """What the inputs describe; LaunchError with every fault. `views` may have some with NO_FORM."""
    _raise_if(_presence_faults(rules, views))
    found = ((rule, views[rule.name]) for rule in rules.arguments if not rule.is_output)
    present = [(rule, without_head_axis(view) if rule.name == "k_rope" else view) for rule, view in found]
    _raise_if(one for rule, view in present for one in type_faults(rule, view.form))
    device = _common_device(present)
    by_name = {rule.name: view for rule, view in present}
    _raise_if(_size_faults(rules, by_name))
    sizes = _sizes(rules, by_name)
    _raise_if(one for rule, view in present for one in shape_faults(rule, view.form, sizes))
    _raise_if(one for rule, view in present for one in memory_faults(rule, view, rules.stride_limit_bytes))
    problem = Problem(
        device=device,
        batch=sizes["batch + 1"] - 1,
        heads=sizes["heads"],
        total_q=sizes["total_q"],
        total_k=sizes["total_k"],
        max_seqlen_q=max_seqlen_q,
        softmax_scale=softmax_scale,
    )
    return CheckedInputs(problem, by_name)


def check_output(rule: ArgumentRule, view: ArrayView, problem: Problem, rules: CallRules) -> None:
    """LaunchError where an output does not fit the problem."""
    _raise_if(type_faults(rule, view.form))
    _raise_if(shape_faults(rule, view.form, _output_sizes(problem)))
    _raise_if(memory_faults(rule, view, rules.stride_limit_bytes))
    if view.form.device not in (-1, problem.device):
        raise LaunchError.single(
            "device",
            f"{rule.name} is on device {view.form.device}, the inputs are on device {problem.device}",
            help=f"pass {rule.name} on device {problem.device}",
        )


def check_limits(problem: Problem, launch: Launch) -> None:
    """LaunchError where the problem is larger than its grid or its 32-bit sizes can be."""
    query_tiles = -(-problem.max_seqlen_q // launch.block_m)
    limits = (
        ("total_q", problem.total_q, _MAX_INT32),
        ("total_k", problem.total_k, _MAX_INT32),
        ("query tiles x heads", query_tiles * problem.heads, _MAX_INT32),
        ("batch", problem.batch, launch.grid_y_limit * _GRID_Z_LIMIT),
    )
    _raise_if(
        fault("too-large", f"{name} is {found}, at most {allowed} is allowed", "split the batch")
        for name, found, allowed in limits
        if found > allowed
    )


def output_shape(rule: ArgumentRule, problem: Problem) -> tuple[int, ...]:
    """The shape of an output of this problem."""
    sizes = _output_sizes(problem)
    return tuple(sizes[axis] if axis in sizes else int(axis) for axis in rule.axes)


def without_head_axis(view: ArrayView) -> ArrayView:
    """`k_rope` as [tokens, rope]: its one shared head, given as length 1 or as stride 0, is dropped."""
    form = view.form
    if len(form.shape) != 3 or (form.shape[1] != 1 and form.strides[1] != 0):
        return view
    shape, strides = (form.shape[0], form.shape[2]), (form.strides[0], form.strides[2])
    return ArrayView(
        view.pointer, array_form(shape, strides, form.item_bytes, form.dtype, form.device, form.library)
    )


def _output_sizes(problem: Problem) -> Mapping[str, int]:
    return {"total_q": problem.total_q, "heads": problem.heads}


def _presence_faults(rules: CallRules, views: Mapping[str, ArrayView]) -> Iterator[Diagnostic]:
    """Inputs that are missing, or that the spec does not have."""
    for name, view in views.items():
        rule = rules.find(name)
        if rule is None and view.form is not NO_FORM:
            yield fault("argument-not-declared", *_not_declared(name))
        if rule is not None and view.form is NO_FORM:
            message = f"{name} is missing, the spec requires it as {rule.dtype} [{', '.join(rule.axes)}]"
            yield fault("argument-missing", message, f"pass {name}=")


def _not_declared(name: str) -> tuple[str, str]:
    if name.endswith("_scale"):
        field = f"scales.{name.removesuffix('_scale')}"
        return f"{name} is passed, but {field} of the spec is none", f"leave {name} out, or declare {field}"
    return f"{name} is passed, but dims.rope of the spec is 0", f"pass None as {name}"


def _common_device(present: list[tuple[ArgumentRule, ArrayView]]) -> int:
    """The device of the inputs; 0 where no array says."""
    known = [(rule.name, view.form.device) for rule, view in present if view.form.device >= 0]
    if not known:
        return 0
    first_name, first = known[0]
    _raise_if(
        fault(
            "device",
            f"{name} is on device {device}, {first_name} is on device {first}, one device is needed",
            f"move {name} to device {first}",
        )
        for name, device in known[1:]
        if device != first
    )
    return first


def _size_faults(rules: CallRules, views: Mapping[str, ArrayView]) -> Iterator[Diagnostic]:
    heads = _heads(rules, views)
    if heads % rules.group or heads == 0:
        yield fault(
            "heads",
            f"q_nope has {heads} heads, a multiple of heads.group {rules.group} above 0 is needed",
            "pass all heads of a group",
        )
    if views["cu_seqlens_q"].form.is_empty:
        message = "cu_seqlens_q has 0 elements, batch + 1 are needed"
        yield fault("cu-seqlens", message, "pass [0] for an empty batch")


def _sizes(rules: CallRules, views: Mapping[str, ArrayView]) -> dict[str, int]:
    """The value of each symbol: tokens and heads as in q_nope and k_nope, batch as in cu_seqlens_q."""
    heads = _heads(rules, views)
    return {
        "total_q": views["q_nope"].form.shape[0],
        "total_k": views["k_nope"].form.shape[0],
        "heads": heads,
        "kv_heads": heads // rules.group,
        "batch + 1": views["cu_seqlens_q"].form.shape[0],
    }


def _heads(rules: CallRules, views: Mapping[str, ArrayView]) -> int:
    return views["q_nope"].form.shape[1] if rules.heads is None else rules.heads


def _raise_if(faults: Iterable[Diagnostic]) -> None:
    found = tuple(faults)
    if found:
        raise LaunchError(found)
