"""The float64 emulation of how P is rounded against the generated kernels with exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mla_codegen.problems import random_inputs
from mla_codegen.quantize import quantize
from mla_codegen.reference import reference
from tests.emulator.support import kernel_of, plan_of, relative_error

BOUNDS = {"bf16": 2.5e-3, "f32": 1e-3}
"""Rounded outputs and, rarely, a P that float32 rounds the other way; the kernel differs by no more."""

TYPICAL_BOUNDS = {"bf16": 2.5e-3, "f32": 2e-5}
"""The same for the median row, which has no such P."""

LENGTHS = ((200, 70), (700, 300))
# Lengths of queries and keys, kind of data, and how far the logits rise over the keys on top of it.
PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, float]] = {
    "normal": (*LENGTHS, "normal", 0.0),
    "peaked": (*LENGTHS, "peaked", 0.0),
    "outlier": (*LENGTHS, "outlier", 0.0),
    "slowly rising": (*LENGTHS, "normal", 20.0),
    "slowly falling": (*LENGTHS, "normal", -20.0),
    "falling": (*LENGTHS, "normal", -60.0),
    "few rows": ((5,), (672,), "normal", 0.0),
    "few peaked rows": ((5,), (672,), "peaked", 0.0),
    "one masked key": ((100,), (96 * 6 + 99,), "normal", 0.0),
    "all but one key masked": ((100,), (96 * 6 + 195,), "normal", 0.0),
    "rows that see nothing": ((300, 1), (70, 1), "normal", 0.0),
}


def arguments_of(name: str, problem: str) -> dict[str, Any]:
    """The kernel's arguments, with two heads."""
    q_lens, kv_lens, data, rise = PROBLEMS[problem]
    spec = plan_of(name).spec
    inputs = random_inputs(spec, heads=2, q_lens=q_lens, kv_lens=kv_lens, data=data)
    if rise:
        place = np.arange(sum(kv_lens)) / kv_lens[0] % 1.0
        inputs["q"][..., 0] = 16.0
        inputs["kv"][..., 0] = (rise * place * 192**0.5 / 16)[:, None]
    return quantize(spec, **inputs)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ["dsv3_fp8_sm90", "dsv3_fp8_full_sm90"])
def test_the_emulation_rounds_p_as_the_kernel_does(name: str, problem: str) -> None:
    plan, arguments = plan_of(name), arguments_of(name, problem)
    out = kernel_of(name).run(**arguments, arithmetic="exact", hazard_checks=False).out
    emulated, _ = reference(plan.spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    dtype = plan.spec["dtypes"]["out"]
    assert relative_error(out, emulated) <= BOUNDS[dtype]
    seeing = np.linalg.norm(emulated, axis=-1) > 0
    rows = np.linalg.norm(out.astype(np.float64) - emulated, axis=-1)[seeing]
    assert np.median(rows / np.linalg.norm(emulated, axis=-1)[seeing]) <= TYPICAL_BOUNDS[dtype]


def test_the_exact_maximum_is_another_reference_point() -> None:
    """The test above can tell: with P taken against the exact maximum the difference is large."""
    plan, arguments = plan_of("dsv3_fp8_full_sm90"), arguments_of("dsv3_fp8_full_sm90", "few rows")
    out = kernel_of(plan.name).run(**arguments, arithmetic="exact", hazard_checks=False).out
    lift = plan.variants[0].p_rounding.lift_log2
    emulated, _ = reference(plan.spec, **arguments, p_dtype="e4m3", p_lift_log2=lift)
    assert relative_error(out, emulated) > 1e-2
