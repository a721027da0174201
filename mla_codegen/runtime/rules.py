"""What a call may pass, as rules taken from the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.arch import ARCHS
from mla_codegen.plan.model import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """One argument: `axes` are symbols (`total_q`, `heads`, ...) or numbers, without axes of fixed length 1.

    Tensors have strides of their own and are moved in pieces of 16 bytes; all others are contiguous.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    is_tensor: bool
    is_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The arguments that a kernel takes, and the numbers of its spec and launch."""

    arguments: tuple[ArgumentRule, ...]
    dims: Mapping[str, int]
    group: int
    heads: int | None
    block_m: int
    grid_y_limit: int
    align_bytes: int
    stride_limit_bytes: int

    def find(self, name: str) -> ArgumentRule | None:
        return next((rule for rule in self.arguments if rule.name == name), None)


def call_rules(plan: Plan) -> CallRules:
    """The rules of a plan, from its arguments and the numbers of its spec and launch."""
    spec, launch, limits = plan.spec, plan.variants[0].launch, ARCHS[plan.arch]
    heads = spec["heads"]
    return CallRules(
        arguments=tuple(
            ArgumentRule(
                name=argument.name,
                dtype=argument.dtype,
                axes=tuple(axis for axis in argument.axes if axis != "1" or len(argument.axes) == 1),
                is_tensor=argument.kind in ("tensor", "output") and argument.name != "lse",
                is_output=argument.kind == "output",
            )
            for argument in plan.arguments
        ),
        dims=spec["dims"],
        group=heads["group"],
        heads=None if heads["q"] == "any" else heads["q"],
        block_m=launch.block_m,
        grid_y_limit=launch.grid_y_limit,
        align_bytes=limits.tensor_map_stride_step_bytes,
        stride_limit_bytes=limits.tensor_map_stride_limit_bytes,
    )
