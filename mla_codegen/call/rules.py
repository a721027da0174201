"""What a call may pass, as rules taken from the plan."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.arch import ARCHS
from mla_codegen.call.numbers import default_softmax_scale
from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.model import Argument, Plan

INPUT_NAMES = (
    "q_nope",
    "q_rope",
    "k_nope",
    "k_rope",
    "v",
    "q_scale",
    "k_scale",
    "v_scale",
    "k_rope_scale",
    "cu_seqlens_q",
    "cu_seqlens_k",
)
"""All inputs that a kernel may have, in the order in which calls carry them."""

_INT32_BYTES = 4


class Layout(enum.Enum):
    """How an argument may lie in memory."""

    ROWS = "rows"
    """A contiguous last axis, moved in units of the architecture's alignment; other axes have strides."""
    ELEMENTS = "elements"
    """Single elements at any strides that are not negative."""
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """One argument: `axes` are symbols (`total_q`, `heads`, ...) or numbers, without axes of fixed length 1.

    Its address, and the strides that it may have, are multiples of `align_bytes`. `one_head_axis` is where an
    axis of one head, or of heads that all lie in the same place, may stand among `axes`; None for nowhere.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    one_head_axis: int | None
    layout: Layout
    align_bytes: int
    is_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The arguments that a kernel takes, and numbers of its spec.

    `batch_source` is the argument that gives the batch, `softmax_scale` the default.
    """

    arguments: tuple[ArgumentRule, ...]
    group: int
    heads: int | None
    stride_limit_bytes: int
    softmax_scale: float
    batch_source: str

    def find(self, name: str) -> ArgumentRule | None:
        """The rule of an argument; None where the plan does not have it."""
        return next((rule for rule in self.arguments if rule.name == name), None)

    def rule(self, name: str) -> ArgumentRule:
        """The rule of an argument that the plan has."""
        return next(rule for rule in self.arguments if rule.name == name)

    @property
    def outputs(self) -> tuple[ArgumentRule, ...]:
        """The rules of what the kernel writes."""
        return tuple(rule for rule in self.arguments if rule.is_output)

    @property
    def contents(self) -> tuple[ArgumentRule, ...]:
        """The rules of inputs whose elements `check=True` looks at: lengths and scales."""
        return tuple(rule for rule in self.arguments if rule.layout is not Layout.ROWS and not rule.is_output)

    @property
    def ragged_q(self) -> bool:
        """Whether queries of different lengths follow each other, rather than one length for all."""
        return self.find("cu_seqlens_q") is not None


def call_rules(plan: Plan) -> CallRules:
    """The rules of a plan, from its arguments and the numbers of its spec."""
    heads, limits = plan.spec["heads"], ARCHS[plan.arch]
    axes = {argument.name: argument.axes for argument in plan.arguments}
    return CallRules(
        arguments=tuple(_rule(argument, limits.tensor_map_stride_step_bytes) for argument in plan.arguments),
        group=heads["group"],
        heads=None if heads["q"] == "any" else heads["q"],
        stride_limit_bytes=limits.tensor_map_stride_limit_bytes,
        softmax_scale=default_softmax_scale(plan.spec["dims"]),
        batch_source=batch_sources(axes)[0],
    )


def batch_sources(axes: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The arguments, by name with their axes, that say how many queries' and keys' sequences there are."""
    names = ("cu_seqlens_q", "cu_seqlens_k", "q_nope", "k_nope")
    return [name for name in names if axes.get(name, ("",))[0] in ("batch", "batch + 1")]


def _rule(argument: Argument, unit_bytes: int) -> ArgumentRule:
    layout = Layout.CONTIGUOUS
    if argument.kind in ("tensor", "output") and argument.name != "lse":
        layout = Layout.ROWS
    elif argument.kind == "scale":
        layout = Layout.ELEMENTS
    item_bytes = _INT32_BYTES if argument.dtype == "i32" else DTYPES[argument.dtype].bytes
    has_one_head = len(argument.axes) > 1 and "1" in argument.axes
    return ArgumentRule(
        name=argument.name,
        dtype=argument.dtype,
        axes=tuple(axis for axis in argument.axes if axis != "1" or not has_one_head),
        one_head_axis=argument.axes.index("1") if has_one_head else None,
        layout=layout,
        align_bytes=unit_bytes if layout is Layout.ROWS else item_bytes,
        is_output=argument.kind == "output",
    )
