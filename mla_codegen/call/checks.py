"""The checks of a call: its arguments against the rules, against each other and against the launch's limits.

All faults that can be told apart are reported together, as one LaunchError before anything is launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mla_codegen.call.faults import fault, memory_faults, missing, not_declared, shape_faults, type_faults
from mla_codegen.call.forms import NO_FORM, ArrayView
from mla_codegen.call.launch import query_tiles
from mla_codegen.call.numbers import MAX_INT32
from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import ArgumentRule, CallRules
from mla_codegen.call.sizes import call_sizes, origins, size_faults
from mla_codegen.errors import Diagnostic, LaunchError
from mla_codegen.plan.model import Variant

_GRID_Z_LIMIT = 65535
_MOST_TOKENS = MAX_INT32 - 1024
"""Queries and keys together: a kernel adds both, and a tile more of each, in 32 bits."""


@dataclass(frozen=True, slots=True)
class CheckedInputs:
    """A problem, and the inputs that are there, `k_rope` without an axis for its one head."""

    problem: Problem
    views: Mapping[str, ArrayView]


def check_inputs(
    rules: CallRules, views: Mapping[str, ArrayView], *, max_seqlen_q: int | None, softmax_scale: float
) -> CheckedInputs:
    """What the inputs describe; LaunchError with every fault. `views` may have some with NO_FORM.

    `max_seqlen_q` is None where queries are dense.
    """
    raise_if(_presence_faults(rules, views))
    present = [
        (rule, _without_one_head(rule, views[rule.name])) for rule in rules.arguments if not rule.is_output
    ]
    raise_if(one for rule, view in present for one in type_faults(rule, view.form))
    device = _common_device(present)
    forms = {rule.name: view.form for rule, view in present}
    raise_if(size_faults(rules, forms))
    sizes = call_sizes(rules, forms)
    raise_if(
        one for rule, view in present for one in shape_faults(rule, view.form, sizes, origins(rules, rule))
    )
    raise_if(one for rule, view in present for one in memory_faults(rule, view, rules.stride_limit_bytes))
    problem = Problem(
        device=device,
        sizes=sizes,
        max_seqlen_q=sizes["q_len"] if max_seqlen_q is None else max_seqlen_q,
        softmax_scale=softmax_scale,
    )
    return CheckedInputs(problem, {rule.name: view for rule, view in present})


def check_output(rule: ArgumentRule, view: ArrayView, problem: Problem, rules: CallRules) -> None:
    """LaunchError where an output does not fit the problem."""
    raise_if(type_faults(rule, view.form))
    raise_if(shape_faults(rule, view.form, problem.sizes, origins(rules, rule)))
    raise_if(memory_faults(rule, view, rules.stride_limit_bytes))
    if view.form.device not in (-1, problem.device):
        raise LaunchError.single(
            "device",
            f"{rule.name} is on device {view.form.device}, the inputs are on device {problem.device}",
            help=f"pass {rule.name} on device {problem.device}",
        )


def check_limits(problem: Problem, variant: Variant) -> None:
    """LaunchError where the problem is larger than its grid or its 32-bit sizes can be."""
    sizes, tiles = problem.sizes, query_tiles(variant, problem)
    limits = (
        ("queries + keys", _tokens(sizes, "q") + _tokens(sizes, "k"), _MOST_TOKENS),
        ("v_columns", sizes.get("v_columns", 0), MAX_INT32),
        ("query tiles x heads", tiles * problem.heads, MAX_INT32),
        ("batch", problem.batch, variant.launch.grid_y_limit * _GRID_Z_LIMIT),
    )
    raise_if(
        fault("too-large", f"{name} is {found}, at most {allowed} is allowed", "split the batch")
        for name, found, allowed in limits
        if found > allowed
    )


def _tokens(sizes: Mapping[str, int], side: str) -> int:
    """Tokens of all sequences of a ragged side, or of one of a dense side."""
    dense = {"q": "q_len", "k": "kv_len"}[side]
    return sizes[dense] if dense in sizes else sizes[f"total_{side}"]


def output_shape(rule: ArgumentRule, problem: Problem) -> tuple[int, ...]:
    """The shape of an output of this problem."""
    return tuple(problem.sizes[axis] if axis in problem.sizes else int(axis) for axis in rule.axes)


def raise_if(faults: Iterable[Diagnostic]) -> None:
    """LaunchError with all of them where there are any."""
    found = tuple(faults)
    if found:
        raise LaunchError(found)


def _without_one_head(rule: ArgumentRule, view: ArrayView) -> ArrayView:
    """`k_rope` without the axis of its one shared head, which has length 1 or stride 0 where it is there."""
    axis, form = rule.one_head_axis, view.form
    if axis is None or len(form.shape) != len(rule.axes) + 1 or not form.is_one_along(axis):
        return view
    return ArrayView(view.pointer, form.without(axis))


def _presence_faults(rules: CallRules, views: Mapping[str, ArrayView]) -> Iterator[Diagnostic]:
    """Inputs that are missing, or that the spec does not have."""
    for name, view in views.items():
        rule = rules.find(name)
        if rule is None and view.form is not NO_FORM:
            yield not_declared(name)
        if rule is not None and view.form is NO_FORM:
            yield missing(rule)


def _common_device(present: list[tuple[ArgumentRule, ArrayView]]) -> int:
    """The device of the inputs; 0 where no array says."""
    known = [(rule.name, view.form.device) for rule, view in present if view.form.device >= 0]
    if not known:
        return 0
    first_name, first = known[0]
    raise_if(
        fault(
            "device",
            f"{name} is on device {device}, {first_name} is on device {first}, one device is needed",
            f"move {name} to device {first}",
        )
        for name, device in known[1:]
        if device != first
    )
    return first
