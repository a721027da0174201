"""Drawn faults: each is refused with a diagnostic that says what to do, and nothing else is ever raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_codegen.errors import Diagnostic, PlanError, SpecError
from mla_codegen.plan import Plan, make_plan
from mla_codegen.spec import Spec
from mla_codegen.spec_faults import scalar_fields
from tests.drawn.examples import examples
from tests.drawn.faults import (
    ALWAYS_WRONG,
    CONTRADICTIONS,
    JSON_VALUES,
    Contradiction,
    Faulty,
    contradictory_specs,
    put,
    unknown_keys,
    wrong_values,
)
from tests.drawn.specs import KINDS, legal_specs

FIELDS = (*scalar_fields(Spec), *Spec.model_fields)


def plan_or_refusals(spec: Mapping[str, Any]) -> Plan | tuple[Diagnostic, ...]:
    try:
        return make_plan(Spec.from_mapping(spec))
    except (SpecError, PlanError) as error:
        return error.diagnostics


def assert_refused(faulty: Faulty) -> None:
    """One diagnostic is about the field, and says what was found, what is allowed and a way out."""
    refusals = plan_or_refusals(faulty.spec)
    assert not isinstance(refusals, Plan), f"planned with {faulty.field} {faulty.found}"
    assert_complete(refusals)
    about = [one for one in refusals if f"{one.field}.".startswith(f"{faulty.field}.")]
    assert about, [one.render() for one in refusals]
    assert any(faulty.found in one.message for one in about), [one.render() for one in about]
    assert all("allowed" in one.message or "this version makes" in one.message for one in about)


def assert_complete(refusals: tuple[Diagnostic, ...]) -> None:
    for one in refusals:
        assert one.code and one.field and one.message and one.help, one.render()
        assert "\n" not in one.render().replace("\n  note: ", "").replace("\n  help: ", "")


@pytest.mark.parametrize("contradiction", CONTRADICTIONS, ids=lambda function: function.__name__.strip("_"))
@examples(ci=10, nightly=100)
@given(data=st.data())
def test_what_contradicts_the_rest_is_refused(contradiction: Contradiction, data: st.DataObject) -> None:
    assert_refused(data.draw(contradictory_specs(contradiction)))


@pytest.mark.parametrize("field", ALWAYS_WRONG)
@examples(ci=10, nightly=100)
@given(data=st.data())
def test_a_wrong_value_is_refused(field: str, data: st.DataObject) -> None:
    assert_refused(data.draw(wrong_values(field)))


@examples(ci=50, nightly=500)
@given(unknown_keys())
def test_an_unknown_key_is_refused(faulty: Faulty) -> None:
    assert_refused(faulty)


@examples(ci=200, nightly=5000)
@given(
    spec=st.sampled_from(KINDS).flatmap(legal_specs),
    said=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, min_size=1, max_size=3),
)
def test_whatever_is_said_is_planned_or_refused(spec: dict[str, Any], said: dict[str, Any]) -> None:
    for field, value in said.items():
        section = spec.get(field.rpartition(".")[0], {})
        if isinstance(section, dict) and field.count(".") < 2:
            spec = put(spec, field, value)
    result = plan_or_refusals(spec)
    if not isinstance(result, Plan):
        assert_complete(result)
