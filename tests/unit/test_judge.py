"""judge: what is kept, what is broken, and what the JSON object says, with launches made of NumPy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mla_codegen.accuracy import contract_bound
from mla_codegen.build import plan_spec
from mla_codegen.errors import LaunchError
from mla_codegen.judge import Launch, Problem, judge
from mla_codegen.plan.model import Plan
from mla_codegen.reference import measure, reference
from mla_codegen.resources import specs_folder
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec

PROBLEM = Problem(q_lens=(5, 0, 3), kv_lens=(7, 4, 2), heads=2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_spec(load_spec(specs_folder() / "dsv3_fp8_sm90.yaml"))


def exact_launch(plan: Plan, hazards: tuple[str, ...] | None = None) -> Launch:
    """The float64 result rounded to the output's dtype."""

    def launch(
        arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int
    ) -> tuple[str, ...] | None:
        expected, expected_lse = reference(plan.spec, **arguments)
        out[...] = expected.astype(out.dtype)
        if lse is not None:
            lse[...] = expected_lse
        return hazards

    return launch


def test_an_exact_kernel_keeps_the_contract(plan: Plan) -> None:
    verdict = judge(plan, PROBLEM, exact_launch(plan))
    assert verdict.contract_kept
    assert verdict.clean
    assert verdict.hazards is None
    assert verdict.error.rel_frobenius < 5e-3


@pytest.mark.parametrize("data", ["normal", "mean", "peaked"])
def test_all_data_has_a_bound(plan: Plan, data: str) -> None:
    problem = dataclasses.replace(PROBLEM, data=data)
    verdict = judge(plan, problem, exact_launch(plan), launches=1)
    assert verdict.contract_kept
    assert verdict.bound.rel_frobenius >= 5e-3


def test_an_element_that_is_not_written_breaks_it(plan: Plan) -> None:
    exact = exact_launch(plan)

    def forgetful(
        arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int
    ) -> tuple[str, ...] | None:
        written = out.copy()
        exact(arguments, written, lse, number)
        out[1:] = written[1:]
        return None

    verdict = judge(plan, PROBLEM, forgetful)
    assert not verdict.contract_kept
    assert verdict.error.nonfinite_mismatch[0] == (0, 0, 0)


def test_bits_that_differ_between_launches_break_it(plan: Plan) -> None:
    exact = exact_launch(plan)

    def restless(
        arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int
    ) -> tuple[str, ...] | None:
        exact(arguments, out, lse, number)
        if number:
            out.view(np.uint16)[-1, 0, 0] ^= 1
        return None

    verdict = judge(plan, PROBLEM, restless)
    assert not verdict.same_bits
    assert not verdict.contract_kept


def test_hazards_are_collected_and_are_not_clean(plan: Plan) -> None:
    verdict = judge(plan, PROBLEM, exact_launch(plan, ("kv_smem is read before it is written",)), launches=3)
    assert verdict.contract_kept
    assert not verdict.clean
    assert verdict.to_mapping()["hazard_count"] == 3


def test_the_json_object_has_the_promised_keys(plan: Plan) -> None:
    found = json.loads(json.dumps(judge(plan, PROBLEM, exact_launch(plan, ())).to_mapping(), allow_nan=False))
    promised = {"spec", "arch", "problem", "seed", "schedules", "hazards", "hazard_count", "error", "bound"}
    assert promised | {"contract_kept", "seconds"} <= set(found)
    assert {"rel_frobenius", "worst_row", "lse_abs"} <= set(found["error"])
    assert found["problem"] == {
        "batch": 3,
        "heads": 2,
        "q_len": [5, 0, 3],
        "kv_len": [7, 4, 2],
        "data": "normal",
    }
    assert found["hazards"] == []


def test_a_problem_that_does_not_fit_is_diagnosed(plan: Plan) -> None:
    with pytest.raises(LaunchError, match=r"error\[problem\]: q_lens is \[1, 2\]"):
        judge(plan, Problem(q_lens=(1, 2), kv_lens=(3, 4, 5)), exact_launch(plan))


def test_the_bound_rests_on_how_the_plan_rounds_p(plan: Plan) -> None:
    problem = Problem(q_lens=(5,), kv_lens=(672,), heads=2)
    arguments = problem.arguments(plan.spec)
    expected, _ = reference(plan.spec, **arguments)
    emulated, _ = reference(plan.spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    error = measure(emulated, expected).rel_frobenius
    assert error > 5e-3
    found = judge(plan, problem, exact_launch(plan), launches=1).bound.rel_frobenius
    assert found == pytest.approx(1.3 * error)


@pytest.mark.parametrize(
    ("rope", "dtype", "lse_abs"), [(64, "e4m3", 2e-3), (64, "bf16", 1e-3), (0, "e4m3", 1e-3)]
)
def test_an_e4m3_rope_has_the_lse_bound_of_its_sums(rope: int, dtype: str, lse_abs: float) -> None:
    dims, dtypes = {"nope": 128, "rope": rope, "v": 128}, {"qkv": "bf16", "rope_gmem": dtype}
    spec = {"name": "k", "arch": "sm_90a", "dims": dims, "dtypes": dtypes}
    bound = contract_bound(Spec.from_mapping(spec))
    assert (bound.lse_abs, bound.rel_frobenius) == (lse_abs, 5e-3)
