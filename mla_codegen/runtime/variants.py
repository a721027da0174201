"""Which of a plan's kernels runs a problem."""

from __future__ import annotations

from mla_codegen.call.problem import Problem
from mla_codegen.plan.model import Plan, Variant


def main_variant(plan: Plan) -> Variant:
    """The variant that a kernel's figures and debug reports are about."""
    return plan.variants[0]


def variant_for(plan: Plan, problem: Problem) -> Variant:
    """The variant that runs `problem`; the same for equal specs and maxima, whatever else is in the batch."""
    return main_variant(plan)
