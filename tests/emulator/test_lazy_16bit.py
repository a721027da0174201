"""The lazy softmax of 16-bit types: exact whatever the scores do from block to block, like the online one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import reference
from mla_codegen.render import render
from mla_codegen.spec import Spec
from tests.emulator.support import BOUNDS, relative_error

BLOCK = 128
STEP = 128.0
"""From one level of scores to the next; times log2(e) that is 184 in base 2, more than fp32 has exponents."""
LEVELS: dict[str, list[int]] = {
    # By block, from the first key on; the kernel begins at the last block.
    "rising towards the first key": [5, 4, 3, 2, 1, 0],
    "falling towards the first key": [0, 1, 2, 3, 4, 5],
    "one peak": [0, 0, 5, 0, 0, 0],
    "one valley": [4, 4, 0, 4, 4, 4],
    "up and down": [0, 5, 0, 4, 1, 5],
    "level": [2, 2, 2, 2, 2, 2],
}


@functools.cache
def spec_of(qkv: str, mask: str, variant: str) -> Spec:
    return Spec.from_mapping(
        {
            "name": "lazy",
            "arch": "sm_90a",
            "dims": {"nope": 128, "rope": 64, "v": 128},
            "dtypes": {"qkv": qkv, "rope_gmem": qkv, "out": qkv},
            "mask": mask,
            "softmax": {"variant": variant, "lse": "natural"},
        }
    )


@functools.cache
def kernel_of(qkv: str, mask: str, variant: str) -> EmulatedKernel:
    plan = make_plan(spec_of(qkv, mask, variant))
    (made,) = plan.variants
    assert made.launch.block_n == BLOCK
    assert made.features.lazy_softmax is (variant == "lazy")
    return EmulatedKernel(plan, render(plan))


def arguments_of(qkv: str, mask: str, q_len: int, levels: list[int], *, cut: int = 0) -> dict[str, Any]:
    """Scores around STEP x the level of a block; the last block is `cut` keys short."""
    kv_len = BLOCK * len(levels) - cut
    found = random_problem(
        spec_of(qkv, mask, "lazy"), batch=1, heads=1, q_lens=[q_len], kv_lens=[kv_len], seed=len(levels)
    )
    found["q_nope"][:, :, 0] = 1
    found["k_nope"][:, :, 0] = (STEP * np.repeat(levels, BLOCK)[:kv_len, None]).astype(found["k_nope"].dtype)
    return {**found, "softmax_scale": 1.0}


def judged(qkv: str, mask: str, variant: str, arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp of two schedules, without a hazard and close to float64."""
    expected, expected_lse = reference(spec_of(qkv, mask, variant), **arguments)
    for seed, policy in enumerate(("late", "random")):
        report = kernel_of(qkv, mask, variant).run(**arguments, seed=seed, policy=policy)
        assert not report.hazards, report.render()
    assert relative_error(report.out, expected) <= BOUNDS["bf16"]
    seen = np.isfinite(expected_lse)
    assert np.array_equal(np.isneginf(report.lse), ~seen)
    assert np.abs(report.lse - expected_lse)[seen].max() <= 1e-2
    return report.out.astype(np.float64), report.lse


@pytest.mark.parametrize("blocks", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("shape", LEVELS)
@pytest.mark.parametrize("qkv", ["bf16", "f16"])
def test_scores_may_jump_beyond_the_range_of_fp32(qkv: str, shape: str, blocks: int) -> None:
    # With a full mask the last block is masked, so that 1 to 5 blocks are left to the pairs.
    arguments = arguments_of(qkv, "full", 130, LEVELS[shape][:blocks])
    lazy, _ = judged(qkv, "full", "lazy", arguments)
    online, _ = judged(qkv, "full", "online", arguments)
    assert relative_error(lazy, online) <= BOUNDS["bf16"]


@pytest.mark.parametrize("shape", LEVELS)
def test_rows_that_see_no_key_stay_empty_and_tails_are_cut(shape: str) -> None:
    # 700 queries of 640 - 29 keys: the first 89 see nothing, and warpgroups skip blocks.
    arguments = arguments_of("bf16", "causal", 700, LEVELS[shape][:5], cut=29)
    out, lse = judged("bf16", "causal", "lazy", arguments)
    assert not out[:89].any()
    assert np.isneginf(lse).sum() == 89
