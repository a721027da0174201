"""Strategies of problems for a spec, and how what an emulated kernel computes of them is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mla_codegen.accuracy import ContractBound, ErrorReport, contract_bound, measure
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.judge import poisoned_outputs
from mla_codegen.plan.model import Plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import natural_lse, reference
from mla_codegen.tensors import tensor_facts
from tests.drawn.specs import sometimes

SCHEDULES = 3
LONGEST_Q, LONGEST_KV = 300, 400
EDGES = (16, 32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288)
"""Lengths around which tiles, swizzled chunks and groups of transposed V end."""
LARGE_SCORES = ("peaked", "outlier")
"""Data whose scores are so large that the tensor core's sums of e4m3 products show in the log-sum-exp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnProblem:
    """Lengths of each sequence and what else a call and its random data are made of."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: int
    data: str
    seed: int
    softmax_scale: float | None
    spare_capacity: int
    """max_seqlen_q beyond the longest sequence, for ragged queries."""

    def arguments(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The kernel's arguments."""
        arguments = random_problem(
            spec,
            heads=self.heads,
            q_lens=self.q_lens,
            kv_lens=self.kv_lens,
            data=self.data,
            seed=self.seed,
        )
        if "max_seqlen_q" in arguments:
            arguments["max_seqlen_q"] += self.spare_capacity
        return arguments | {"softmax_scale": self.softmax_scale}


def lengths(longest: int) -> st.SearchStrategy[int]:
    """Any length, and often 0, 1 or one at an edge or beside it."""
    edges = sorted({edge + off for edge in EDGES for off in (-1, 0, 1) if edge + off <= longest})
    return st.integers(1, longest) | st.sampled_from(edges) | st.sampled_from([0, 1])


@st.composite
def problems(draw: st.DrawFn, spec: Mapping[str, Any]) -> DrawnProblem:
    """A problem of at most four sequences and two groups of heads that the spec takes."""
    batch = draw(st.integers(1, 4))
    heads, layout = spec["heads"], spec["layout"]

    def side(name: str, longest: int) -> tuple[int, ...]:
        if layout[name] == "dense":
            return (draw(lengths(longest)),) * batch
        return tuple(draw(st.lists(lengths(longest), min_size=batch, max_size=batch)))

    return DrawnProblem(
        q_lens=side("q", LONGEST_Q),
        kv_lens=side("kv", LONGEST_KV),
        heads=heads["group"] * draw(st.integers(1, 2)) if heads["q"] == "any" else heads["q"],
        data=draw(st.sampled_from(["normal", "mean", "peaked", "outlier"])),
        seed=draw(st.integers(0, 999)),
        softmax_scale=draw(sometimes(None, st.sampled_from([0.02, 0.1, 0.25]))),
        spare_capacity=draw(sometimes(0, st.integers(1, 200))),
    )


def judge_emulated(plan: Plan, kernel: EmulatedKernel, problem: DrawnProblem) -> None:
    """Asserts no hazard, every element written, and errors within the contract."""
    arguments = problem.arguments(plan.spec)
    out, lse = poisoned_outputs(tensor_facts(plan.spec), arguments)
    outputs = {"out": out} if lse is None else {"out": out, "lse": lse}
    report = kernel.run(**arguments, **outputs, seed=problem.seed, schedules=SCHEDULES)
    assert not report.hazards, report.render()
    assert report.unwritten_elements == 0
    expected, expected_lse = reference(plan.spec, **arguments)
    error = measure(out, expected, out_dtype=plan.spec["dtypes"]["out"])
    assert not error.nonfinite_mismatch
    bound = _bound(plan, problem, arguments, expected)
    assert error.rel_frobenius <= bound.rel_frobenius, f"{error} is beyond {bound}"
    if lse is None:
        return
    dtypes = plan.spec["dtypes"]
    if "e4m3" in (dtypes["qkv"], dtypes["rope_mma"]) and _large_scores(problem):
        assert_lse(plan, lse, expected_lse, bound=None)
        kernel.run(**arguments, **outputs, arithmetic="exact", hazard_checks=False)
    assert_lse(plan, lse, expected_lse, bound=bound)


def assert_lse(plan: Plan, lse: np.ndarray, expected: np.ndarray, *, bound: ContractBound | None) -> None:
    """Infinities stand where they should, and with a bound, the rest is within it."""
    error = _lse_error(plan, lse, expected)
    assert not error.lse_nonfinite_mismatch
    assert error.lse_excess is not None
    assert bound is None or error.lse_excess <= bound.lse_abs, f"{error} is beyond {bound}"


def _lse_error(plan: Plan, lse: np.ndarray, expected: np.ndarray) -> ErrorReport:
    nothing = np.zeros((0, 1), np.float32)
    return measure(nothing, nothing, natural_lse(plan.spec, lse), expected, out_dtype="f32")


def _large_scores(problem: DrawnProblem) -> bool:
    return problem.data in LARGE_SCORES or problem.softmax_scale is not None


def _bound(
    plan: Plan, problem: DrawnProblem, arguments: Mapping[str, Any], expected: np.ndarray
) -> ContractBound:
    with_mean = problem.data == "mean"
    if plan.spec["dtypes"]["qkv"] != "e4m3" or with_mean:
        return contract_bound(plan.spec, v_has_mean=with_mean)
    emulated, _ = reference(plan.spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    return contract_bound(plan.spec, expected=expected, emulated=emulated)
