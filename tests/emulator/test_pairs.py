"""Every two features in one emulated kernel, and every shipped spec: numbers, hazards, NaN around."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec
from tests.forms import form
from tests.gpu.checks import shipped_names, spec_path
from tests.pairs import BEHIND, faults_of, pairwise_specs, problem_for

PROBLEMS = {
    "one tile and a tail": ((70,), (150,)),
    "several sequences": ((5, 0, 130), (300, 7, 33)),
}


SPECS: dict[str, Spec] = {
    **pairwise_specs(),
    **{name: load_spec(spec_path(name)) for name in shipped_names()},
}


@functools.cache
def kernel_of(name: str) -> EmulatedKernel:
    plan = make_plan(SPECS[name])
    return EmulatedKernel(plan, render(plan))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", SPECS)
def test_the_contract_is_kept_without_hazards(name: str, problem: str) -> None:
    spec = SPECS[name]
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


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("name", ["fp8_token_head", "fp8_lse", "raw_k_none", "bf16_lse"])
def test_rows_that_see_no_key_are_0_whatever_their_scale_is(name: str, wrong: float) -> None:
    """The first 20 of 90 causal queries see none of 70 keys."""
    spec = form(name)
    arguments = problem_for(spec, (90,), (70,))
    if "q_scale" in arguments:
        arguments["q_scale"][:20] = wrong
    plan = make_plan(spec)
    report = EmulatedKernel(plan, render(plan)).run(**arguments)
    out = report.out[:90].astype(np.float32)
    assert (out[:20] == 0).all()
    assert np.isfinite(out).all()
    if report.lse is not None:
        by_token = report.lse[:, :90] if spec.softmax.lse_layout == "head_token" else report.lse[:90].T
        assert (by_token[:, :20] == -np.inf).all() and np.isfinite(by_token[:, 20:]).all()
