"""1Q or 2Q: the seed's choice as golden values, the project's own rule, and what a launch asks for."""

from __future__ import annotations

import pytest

from mla_codegen.plan.sm100.body import plan_kernel
from mla_codegen.plan.sm100.launch import bodies, body_num_q, launch_num_q, query_tiles
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import Operands
from tests.unit.sm100_shapes import BF16, E4M3, OPERANDS, PTS, config, select

WIDE = config(BF16, nope=192, v=256, num_q=1, single_o=True, bn_cap=64)

# Heads, longest prompt, parts, batch, SMs: tiles of 256 rows against half of the SMs.
PREFERS_1Q = [
    (128, 128, 1, 64, 148, True),  # short, whatever the batch
    (128, 129, 1, 1, 148, False),  # 1 x 128 > 74
    (16, 129, 1, 4, 148, True),  # 1 x 16 x 4 = 64 <= 74
    (16, 129, 1, 5, 148, False),  # 80 > 74
    (16, 1180, 1, 1, 148, False),  # 5 x 16 = 80
    (16, 1024, 1, 1, 148, True),  # 4 x 16 = 64
    (16, 1025, 1, 1, 148, False),  # 5 x 16
    (37, 512, 1, 1, 148, True),  # 2 x 37 = 74
    (37, 512, 1, 1, 147, False),  # 147 // 2 = 73
    (16, 512, 2, 1, 148, True),  # 2 x 2 x 16 = 64
    (16, 512, 3, 1, 148, False),  # 96
]


@pytest.mark.parametrize(("heads", "prompt", "parts", "batch", "sms", "expected"), PREFERS_1Q)
def test_the_seed_prefers_1q(
    heads: int, prompt: int, parts: int, batch: int, sms: int, expected: bool
) -> None:
    mla = config(heads=heads)
    assert mla.prefer_1q(max_prompt_rows=prompt, parts=parts, batch=batch, num_sms=sms) is expected


def test_the_seeds_switch_and_its_launch() -> None:
    mla = config()
    assert mla.can_switch_to_1q()
    assert mla.switch_1q_config() == config(num_q=1)
    assert mla.launch_smem_used_bytes() == 216788
    assert not config(num_q=1).can_switch_to_1q()
    assert config(num_q=1).launch_smem_used_bytes() == 216788
    assert not config(E4M3, rope=192).can_switch_to_1q()  # a depth of 320 is too much for 1Q


@pytest.mark.parametrize(
    ("mla", "threads"),
    [
        (config(), 512),
        (config(num_q=1), 512),
        (WIDE, 384),
        (config(PTS, nope=192, v=256, num_q=1, single_o=True), 512),
    ],
)
def test_threads(mla: MLAConfig, threads: int) -> None:
    assert mla.num_threads == threads


# Declared longest query, rows that a CTA has left, and what each runs.
@pytest.mark.parametrize(("rows", "num_q"), [(1, 1), (44, 1), (128, 1), (129, 2), (256, 2), (5000, 2)])
def test_our_rule_is_rows_against_one_tile(rows: int, num_q: int) -> None:
    mla = config()
    assert launch_num_q(mla, max_seqlen_q=rows) == num_q
    assert body_num_q(mla, rows_left=rows) == num_q


@pytest.mark.parametrize("operands", OPERANDS)
def test_a_row_runs_the_same_body_whatever_the_rest_of_its_batch(operands: Operands) -> None:
    """Alone, with its own length as the declared maximum, and in a batch whose longest has 5000 rows."""
    mla = config(operands)
    for length in (1, 127, 128, 129, 255, 256, 257, 300, 384, 385, 428, 700):
        rows = (*range(0, length, 64), length - 1)
        alone = [body_of(mla, length, row, length) for row in rows]
        assert alone == [body_of(mla, length, row, 5000) for row in rows]


def body_of(mla: MLAConfig, length: int, row: int, max_seqlen_q: int) -> int:
    """What the CTA of this row runs, as the kernel decides it."""
    num_q = launch_num_q(mla, max_seqlen_q=max_seqlen_q)
    first_row = row // (128 * num_q) * (128 * num_q)
    return body_num_q(mla, rows_left=length - first_row) if num_q == 2 else 1


def test_the_seeds_tail_of_300_rows_is_1q_and_its_428_fill_both_halves() -> None:
    mla = config()
    assert [body_of(mla, 300, row, 300) for row in (0, 255, 256, 299)] == [2, 2, 1, 1]
    assert [body_of(mla, 428, row, 428) for row in (0, 256, 427)] == [2, 2, 2]


def test_1q_and_2q_have_the_same_blocks_of_keys() -> None:
    """Else the rows of a short sequence would not see the same blocks as those of a long one's tail."""
    for operands in OPERANDS:
        for nope in (64, 128, 192):
            for v in (64, 128, 192):
                mla = config(operands, nope=nope, v=v)
                assert mla.switch_1q_config().fa4.block_n == mla.fa4.block_n


def test_masks_of_unknown_structure_and_a_single_o_have_one_body() -> None:
    assert bodies(config()) == (2, 1)
    assert bodies(config(), unknown_mask=True) == (2,)
    assert launch_num_q(config(), max_seqlen_q=1, unknown_mask=True) == 2
    assert bodies(WIDE) == (1,)
    assert launch_num_q(WIDE, max_seqlen_q=5000) == 1
    assert bodies(config(E4M3, rope=192)) == (2,)
    assert launch_num_q(config(E4M3, rope=192), max_seqlen_q=1) == 2


@pytest.mark.parametrize(("rows", "tiles"), [(1, 1), (128, 1), (129, 1), (256, 1), (257, 2), (5000, 20)])
def test_query_tiles(rows: int, tiles: int) -> None:
    assert query_tiles(config(), max_seqlen_q=rows) == tiles


def test_query_tiles_of_1q() -> None:
    assert query_tiles(WIDE, max_seqlen_q=300) == 3


def test_a_launch_has_room_for_both_bodies() -> None:
    kernel = plan_kernel(config())
    assert [body.storage.smem.used_bytes for body in kernel.bodies] == [216844, 216868]
    launch = kernel.launch
    assert (launch.threads, launch.smem_bytes, launch.tmem_cols) == (512, 217088, 512)
    assert (launch.block_m, launch.launch_registers) == (256, 128)


def test_a_launch_takes_the_larger_of_two_structs() -> None:
    # bf16: 2Q 230,556 -> 226 x 1024; 1Q 214,180
    kernel = plan_kernel(config(BF16))
    assert [body.storage.smem.sizeof_bytes for body in kernel.bodies] == [231424, 215040]
    assert kernel.launch.smem_bytes == 231424
    # e4m3: 2Q 214,252; 1Q 230,660
    assert plan_kernel(config(E4M3)).launch.smem_bytes == 231424


def test_the_seeds_struct_is_launched_as_deep_as_it_fits_and_in_2q_alone() -> None:
    kernel = plan_kernel(config(), layout="seed")
    assert [(body.config.num_q, body.ring.stages) for body in kernel.bodies] == [(2, 5)]
    assert kernel.launch.smem_bytes == 232448


def test_a_wide_shape_is_launched_with_three_warpgroups() -> None:
    launch = plan_kernel(select(BF16, nope=192, v=256).config).launch
    assert (launch.threads, launch.block_m, launch.launch_registers) == (384, 128, 168)
