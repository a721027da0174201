"""V with a mean, under logits that make the tensor core's narrow sums as wrong as they get."""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.accuracy import MEAN_V_BOUND, measure
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import reference
from mla_codegen.render import render
from mla_codegen.spec_loader import load_spec
from tests.gpu.checks import spec_path

LOGITS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "flat": lambda place: 0.0 * place,
    "last 64 keys on top": lambda place: np.where(place >= place.size - 64, 5.0, 0.0),
    "falling with distance": lambda place: -1.25 * np.log1p(place.size - 1 - place),
    "rising": lambda place: 0.005 * place,
}
SPECS = ("dsv3_fp8_sm90", "dsv3_fp8_full_sm90", "dsv3_fp8_raw_sm90", "dsv3_fp8_vt_sm90", "glm_fp8_sm90")


@functools.cache
def kernel_of(name: str) -> EmulatedKernel:
    plan = make_plan(load_spec(spec_path(name)))
    return EmulatedKernel(plan, render(plan))


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", SPECS)
def test_v_with_a_mean(name: str, logits: str) -> None:
    """Rope alone makes the logits, as the sum of two bf16 numbers: 16 queries on 2,048 keys."""
    kernel = kernel_of(name)
    arguments = random_problem(kernel.spec, heads=1, q_lens=(16,), kv_lens=(2048,), data="mean", seed=4)
    noise = 0.5 * np.random.default_rng(5).standard_normal(2048)
    wanted = LOGITS[logits](np.arange(2048)) + noise
    high = wanted.astype(ml_dtypes.bfloat16)
    for tensor in ("q_nope", "q_rope", "k_nope", "k_rope"):
        arguments[tensor][...] = 0
    arguments["q_rope"][..., :2] = 1
    arguments["k_rope"][:, 0] = high
    arguments["k_rope"][:, 1] = wanted - high.astype(np.float64)
    for scale in ("q_scale", "k_scale"):
        arguments[scale][...] = 1
    found = kernel.run(**arguments, softmax_scale=1.0, hazard_checks=False).out
    expected, _ = reference(kernel.spec, **arguments, softmax_scale=1.0)
    report = measure(found, expected, out_dtype=kernel.spec["dtypes"]["out"])
    assert report.rel_frobenius <= MEAN_V_BOUND
