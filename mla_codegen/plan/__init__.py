"""The planner: Spec -> Plan. Names are loaded on first use, so that reading a plan needs no planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_codegen.plan.builder import make_plan
    from mla_codegen.plan.model import Plan

__all__ = ["Plan", "make_plan"]


def __getattr__(name: str) -> object:
    if name == "Plan":
        from mla_codegen.plan.model import Plan

        return Plan
    if name == "make_plan":
        from mla_codegen.plan.builder import make_plan

        return make_plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
