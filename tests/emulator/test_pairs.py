"""Every two features of the planner in one emulated kernel: numbers, hazards, NaN around the sequences."""

from __future__ import annotations

import functools

import pytest

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.render import render
from tests.pairs import BEHIND, faults_of, pairwise_specs, problem_for

PROBLEMS = {
    "one tile and a tail": ((70,), (150,)),
    "several sequences": ((5, 0, 130), (300, 7, 33)),
}


@functools.cache
def kernel_of(name: str) -> EmulatedKernel:
    plan = make_plan(pairwise_specs()[name])
    return EmulatedKernel(plan, render(plan))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", pairwise_specs())
def test_the_contract_is_kept_without_hazards(name: str, problem: str) -> None:
    spec = pairwise_specs()[name]
    arguments = problem_for(spec, *PROBLEMS[problem], seed=3)
    kernel = kernel_of(name)
    report = kernel.run(**arguments, schedules=2, seed=1)
    assert [hazard.message for hazard in report.hazards] == []
    assert report.unwritten_elements == _behind(spec.layout.q, report.out.shape)
    used = report.out, report.lse
    broken, _ = faults_of(make_plan(spec), arguments, *used)
    assert broken == []


def _behind(layout: str, shape: tuple[int, ...]) -> int:
    """Elements of the queries behind the last sequence, which no CTA writes."""
    return BEHIND * shape[1] * shape[2] if layout == "ragged" else 0
