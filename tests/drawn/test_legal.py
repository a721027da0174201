"""Drawn specs: planned or refused for their size; what is planned compiles, and its emulation is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mla_codegen.arch import ARCHS
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.errors import PlanError
from mla_codegen.plan import Plan, make_plan
from mla_codegen.plan.checks import broken_invariants
from mla_codegen.render import render
from mla_codegen.runtime.nvrtc import compile_source
from mla_codegen.spec import Spec
from tests.compile.support import assert_as_planned, nvrtc_missing
from tests.drawn.examples import examples
from tests.drawn.problems import DrawnProblem, judge_emulated, problems
from tests.drawn.specs import KINDS, legal_specs

WIDTH = 110
SIZE_CODES = {"register-overflow", "smem-overflow"}


@st.composite
def cases(draw: st.DrawFn, kind: str) -> tuple[dict[str, Any], DrawnProblem]:
    """A legal spec and a problem for it."""
    spec = draw(legal_specs(kind))
    return spec, draw(problems(spec))


def planned(spec: Spec) -> Plan | None:
    """The plan, or None where the planner says what takes too much room and what to do about it."""
    try:
        return make_plan(spec)
    except PlanError as error:
        for fault in error.diagnostics:
            note(fault.render())
            assert fault.code in SIZE_CODES
            assert fault.field and fault.message and fault.help and fault.notes
        return None


def assert_readable(source: str) -> None:
    assert source.endswith("\n") and "\t" not in source and "\n\n\n" not in source
    for line in source.splitlines():
        assert len(line) <= WIDTH, f"{len(line)} columns: {line}"
        assert line == line.rstrip()


def assert_compiles(plan: Plan, source: str) -> None:
    """Without spills, notes or warnings, with the registers and barriers of the plan."""
    result = compile_source(source, arch=plan.arch, name=plan.name)
    for variant in plan.variants:
        assert_as_planned(variant, result)


@pytest.mark.parametrize("kind", KINDS)
@examples(ci=10, nightly=50)
@given(data=st.data())
def test_a_legal_spec_is_planned_compiled_and_right_or_refused_for_its_size(
    kind: str, data: st.DataObject
) -> None:
    said, problem = data.draw(cases(kind))
    plan = planned(Spec.from_mapping(said))
    if plan is None:
        return
    assert broken_invariants(plan, ARCHS[plan.arch]) == ()
    assert Plan.from_json(plan.to_json()) == plan
    source = render(plan)
    assert_readable(source)
    if nvrtc_missing() is None:
        assert_compiles(plan, source)
    judge_emulated(plan, EmulatedKernel(plan, source), problem)
