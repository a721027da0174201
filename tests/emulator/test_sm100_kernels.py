"""Blackwell kernels under the emulator: results against float64, hazards, bits that depend on no other."""

from __future__ import annotations

import numpy as np
import pytest

from mla_codegen.accuracy import contract_bound
from mla_codegen.judge import Problem
from mla_codegen.reference import reference
from mla_codegen.resources import specs_folder
from tests.emulator import sm100_forms
from tests.emulator.sm100_forms import FORMS, problem_of, verdict_of
from tests.emulator.support import BOUNDS, kernel_of, make_problem, plan_of, relative_error

SHIPPED = sorted(path.stem for path in specs_folder().glob("*_sm100.yaml"))
DEEPSEEK = [name for name in SHIPPED if name.startswith("dsv3_")]
"""Those that the hand-made problems fit."""
HAZARD_SCHEDULES = 30
PROBLEMS = {
    "aligned": ((512,), (512,)),
    "one query, one key": ((1,), (1,)),
    "one query": ((1,), (900,)),
    "one key": ((300,), (1,)),
    "tile edges": ((127, 128, 129), (127, 128, 129)),
    "edges of two halves": ((255, 256, 257), (255, 256, 257)),
    "phases wrap": ((64, 200), (11 * 128, 13 * 128 + 1)),
    "ragged with empty ones": ((0, 30, 0, 7), (5, 0, 0, 100)),
    "rows that see nothing": ((300,), (20,)),
    "a half that sees nothing": ((400,), (100,)),
}
"""Query and key lengths."""


@pytest.mark.parametrize("name", FORMS)
def test_forms_keep_the_contract(name: str) -> None:
    plan = sm100_forms.plan_of(name)
    verdict = verdict_of(sm100_forms.kernel_of(name), plan, problem_of(plan), schedules=6)
    assert verdict.hazards == ()
    assert verdict.same_bits
    assert verdict.error.kept(verdict.bound), (verdict.error, verdict.bound)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernels_show_no_hazard_in_many_schedules(name: str) -> None:
    plan = plan_of(name)
    verdict = verdict_of(kernel_of(name), plan, problem_of(plan), schedules=HAZARD_SCHEDULES)
    assert verdict.launches == HAZARD_SCHEDULES
    assert verdict.clean, (verdict.hazards, verdict.error, verdict.bound)


@pytest.mark.parametrize("data", ["mean", "peaked"])
@pytest.mark.parametrize("name", SHIPPED)
def test_values_with_a_mean_and_peaked_logits(name: str, data: str) -> None:
    plan = plan_of(name)
    verdict = verdict_of(kernel_of(name), plan, problem_of(plan, data), schedules=3)
    assert verdict.clean, (verdict.hazards, verdict.error, verdict.bound)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", DEEPSEEK)
def test_lengths_with_nan_behind_the_last_sequence(name: str, problem: str) -> None:
    data = make_problem(name, *PROBLEMS[problem], 2)
    report = kernel_of(name).run(**data.arguments, schedules=3, check=True)
    assert not report.hazards, report.render()
    assert report.unwritten_elements == 0
    assert relative_error(report.out, data.expected) <= BOUNDS[plan_of(name).spec["dtypes"]["qkv"]]


@pytest.mark.parametrize("name", DEEPSEEK)
def test_bits_of_a_sequence_are_those_that_it_has_alone(name: str) -> None:
    q_lens, kv_lens = (40, 0, 300, 128, 200), (90, 10, 290, 0, 600)
    together = make_problem(name, q_lens, kv_lens, 2).arguments
    whole = kernel_of(name).run(**together).out
    keyed = ("k_nope", "k_rope", "v", "k_scale", "k_rope_scale")
    q, k = np.cumsum([0, *q_lens]), np.cumsum([0, *kv_lens])
    for index, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        rows, keys = slice(q[index], q[index + 1]), slice(k[index], k[index + 1])
        alone = {
            **{key: together[key][rows] for key in ("q_nope", "q_rope", "q_scale") if key in together},
            **{key: together[key][keys] for key in keyed if key in together},
            "cu_seqlens_q": np.array([0, q_len], np.int32),
            "cu_seqlens_k": np.array([0, kv_len], np.int32),
            "max_seqlen_q": q_len,
        }
        out = kernel_of(name).run(**alone).out
        assert np.array_equal(out.view(np.uint16), whole[rows].view(np.uint16))


def test_scales_may_stand_anywhere() -> None:
    """Any length, alignment and stride: the load warp carries them."""
    data = make_problem("dsv3_fp8_sm100", (131, 70), (133, 95), 2).arguments
    kernel = kernel_of("dsv3_fp8_sm100")
    expected = kernel.run(**data).out
    for name in ("q_scale", "k_scale"):
        spread = np.full(3 * data[name].size + 1, np.nan, np.float32)
        spread[1::3] = data[name]
        data[name] = spread[1::3]
    report = kernel.run(**data)
    assert not report.hazards, report.render()
    assert np.array_equal(report.out.view(np.uint16), expected.view(np.uint16))


def test_huge_logits_of_either_sign() -> None:
    """Softmax against standing reference points that rows of one warp move together."""
    plan, kernel = plan_of("dsv3_fp8_sm100"), kernel_of("dsv3_fp8_sm100")
    arguments = Problem(q_lens=(260,), kv_lens=(500,), heads=1).arguments(plan.spec)
    plain = kernel.run(**arguments, softmax_scale=1.0 / 192**0.5).out
    for factor in (2.0**7, 2.0**-7):
        arguments["q_scale"] = arguments["q_scale"] * np.float32(factor)
        report = kernel.run(**arguments, softmax_scale=1.0 / 192**0.5 / factor)
        arguments["q_scale"] = arguments["q_scale"] / np.float32(factor)
        assert not report.hazards, report.render()
        assert np.array_equal(report.out.view(np.uint16), plain.view(np.uint16))  # powers of two cancel


def test_scales_of_v_from_tiny_to_large_in_one_sequence() -> None:
    """They are part of P while it is rounded, and of the reference point, and no part of the row sum."""
    plan, kernel = sm100_forms.plan_of("v_scale_of_tokens"), sm100_forms.kernel_of("v_scale_of_tokens")
    arguments = Problem(q_lens=(260,), kv_lens=(700,), heads=2).arguments(plan.spec)
    rng = np.random.default_rng(5)
    arguments["v_scale"] = (2.0 ** rng.uniform(-12, 4, 700)).astype(np.float32)
    report = kernel.run(**arguments, schedules=3)
    assert not report.hazards, report.render()
    expected, expected_lse = reference(plan.spec, **arguments)
    emulated, _ = reference(plan.spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    bound = contract_bound(plan.spec, expected=expected, emulated=emulated)
    assert relative_error(report.out, expected) <= bound.rel_frobenius
    assert np.abs(report.lse - expected_lse).max() <= 2e-3
