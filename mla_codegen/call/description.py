"""What a kernel says of itself, on the GPU and under the emulator alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mla_codegen.plan.model import Plan

_LSE_BASES = {"natural": "e", "log2": "2"}


def plan_mapping(plan: Plan) -> Mapping[str, Any]:
    """The contents of plan.json, read-only all the way down."""
    frozen: Mapping[str, Any] = _frozen(plan.to_mapping())
    return frozen


def lse_info(plan: Plan) -> Mapping[str, Any] | None:
    """Base of the logarithm, layout, value of rows that see no key; None where there is no LSE."""
    softmax = plan.spec["softmax"]
    if softmax["lse"] == "none":
        return None
    return MappingProxyType(
        {"base": _LSE_BASES[softmax["lse"]], "layout": softmax["lse_layout"], "empty": float("-inf")}
    )


def _frozen(value: object) -> Any:
    """`value` with mappings made read-only and lists made tuples, all the way down."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value
