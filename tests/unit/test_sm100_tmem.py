"""Tensor-memory maps of Blackwell kernels."""

from __future__ import annotations

import pytest

from mla_codegen.arch import ARCHS
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.tmem import plan_tmem
from tests.unit.sm100_shapes import BF16, PTS, config

# Region, first column, columns, type, what it lies over.
TWO_Q = [
    ("s0", 0, 128, "f32", ""),
    ("s1", 128, 128, "f32", ""),
    ("p0", 0, 32, "e4m3", "s0"),  # 128 x 1 / 4
    ("p1", 128, 32, "e4m3", "s1"),
    ("o0", 256, 128, "f32", ""),
    ("o1", 384, 128, "f32", ""),
]
ONE_Q = [*TWO_Q[:4], ("state0", 0, 2, "f32", "s0"), ("state1", 128, 2, "f32", "s1"), *TWO_Q[4:]]
BF16_TWO_Q = [
    (name, first, 64 if name.startswith("p") else cols, "bf16" if name.startswith("p") else dtype, alias)
    for name, first, cols, dtype, alias in TWO_Q  # P: 128 x 2 / 4
]
SINGLE_O = [
    ("s0", 0, 64, "f32", ""),
    ("s1", 64, 64, "f32", ""),
    ("p0", 0, 32, "bf16", "s0"),
    ("p1", 64, 32, "bf16", "s1"),
    ("o0", 128, 256, "f32", ""),
]
WIDE = config(BF16, nope=192, v=256, num_q=1, single_o=True, bn_cap=64)


@pytest.mark.parametrize(
    ("mla", "expected", "used", "allocated"),
    [
        (config(PTS), TWO_Q, 512, 512),
        (config(PTS, num_q=1), ONE_Q, 512, 512),
        (config(BF16), BF16_TWO_Q, 512, 512),
        (WIDE, SINGLE_O, 384, 512),
    ],
)
def test_columns(mla: MLAConfig, expected: list[tuple[object, ...]], used: int, allocated: int) -> None:
    tmem = plan_tmem(mla.fa4)
    assert [(r.name, r.first_col, r.cols, r.dtype, r.alias_of) for r in tmem.regions] == expected
    assert (tmem.used_cols, tmem.alloc_cols, tmem.limit_cols) == (used, allocated, 512)


def test_narrow_v_uses_fewer_columns() -> None:
    tmem = plan_tmem(config(BF16, v=64).fa4)
    assert [(r.name, r.first_col, r.cols) for r in tmem.regions[-2:]] == [("o0", 256, 64), ("o1", 320, 64)]
    assert (tmem.used_cols, tmem.alloc_cols) == (384, 512)


def test_every_region_says_when_it_is_live() -> None:
    for mla in (config(PTS), config(PTS, num_q=1), WIDE):
        assert all(region.live and region.content for region in plan_tmem(mla.fa4).regions)


@pytest.mark.parametrize(
    ("used", "allocated"), [(1, 32), (32, 32), (33, 64), (256, 256), (257, 512), (512, 512)]
)
def test_allocations_are_powers_of_two(used: int, allocated: int) -> None:
    assert ARCHS["sm_100a"].tmem_alloc_cols(used) == allocated


@pytest.mark.parametrize("arch", ["sm_100a", "sm_100f", "sm_103a"])
def test_the_family_has_one_set_of_limits(arch: str) -> None:
    limits = ARCHS[arch]
    assert (limits.tmem_cols, limits.tmem_lanes, limits.tmem_cell_bytes) == (512, 128, 4)
    assert (limits.tmem_alloc_min_cols, limits.umma_n_step, limits.umma_n_max) == (32, 16, 256)
    assert (limits.smem_per_sm_bytes, limits.smem_reserved_per_cta_bytes, limits.smem_per_cta_bytes) == (
        233472,
        1024,
        232448,
    )
    assert (limits.sm_regs, limits.launch_cap_regs(512), limits.launch_cap_regs(384)) == (65536, 128, 168)


def test_hopper_has_no_tensor_memory() -> None:
    assert (ARCHS["sm_90a"].tmem_cols, ARCHS["sm_90a"].tmem_lanes) == (0, 0)
