"""The Blackwell configurations against the seed's golden numbers, and every reason for a no."""

from __future__ import annotations

import pytest

from mla_codegen.plan.sm100.attention import KvRing
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import (
    BLOCKSCALE,
    Operands,
    generic,
    mma_kind,
)
from mla_codegen.plan.sm100.softmax import softmax_numbers
from mla_codegen.plan.sm100.supported import support_faults, supported
from tests.unit.sm100_shapes import BF16, E4M3, LIMITS, PTS, config, select

SEPARATE, SHARED = KvRing.SEPARATE, KvRing.SHARED

# The seed's table of what the rules give: block_n, ring, stages, rope buffers, scale buffers, mbarriers, TMEM
# columns, bytes of shared memory.
GOLDEN = [
    (config(PTS), (128, SEPARATE, 3, 0, 3, 25, 512, 216780)),
    (config(PTS, num_q=1), (128, SHARED, 7, 4, 4, 26, 512, 216788)),
    (config(BF16), (128, SHARED, 3, 2, 0, 19, 512, 230556)),
    (config(BLOCKSCALE), (128, SHARED, 3, 2, 0, 19, 512, 230556)),
    (config(BF16, num_q=1), (128, SEPARATE, 2, 0, 0, 20, 512, 214180)),
    (config(E4M3), (128, SEPARATE, 4, 0, 0, 29, 512, 214252)),
    (config(E4M3, num_q=1), (128, SEPARATE, 5, 0, 0, 32, 512, 230660)),
    (config(BF16, v=64), (128, SHARED, 3, 2, 0, 19, 384, 230556)),
    (config(BF16, v=192), (64, SEPARATE, 2, 0, 0, 21, 512, 214188)),
    (
        config(BF16, nope=192, v=256, num_q=1, single_o=True, bn_cap=64),
        (64, SEPARATE, 2, 0, 0, 20, 384, 214180),
    ),
    (config(PTS, nope=64, v=64), (192, SEPARATE, 3, 0, 3, 25, 512, 201164)),
    (config(PTS, nope=64, v=64, num_q=1), (192, SEPARATE, 4, 0, 4, 28, 512, 226020)),
    (config(PTS, nope=192, v=192), (64, SEPARATE, 4, 0, 4, 29, 512, 216300)),
    (config(PTS, nope=128, v=192), (64, SHARED, 9, 5, 5, 31, 512, 220668)),
]


@pytest.mark.parametrize(("mla", "expected"), GOLDEN)
def test_derived_sizes_are_the_seeds(mla: MLAConfig, expected: tuple[object, ...]) -> None:
    fa4 = mla.fa4
    found = (
        fa4.block_n,
        fa4.kv_ring,
        fa4.num_kv_stages,
        fa4.num_rope_buffers,
        fa4.num_k_scale_buffers,
        fa4.num_mbars,
        fa4.tmem_used_cols,
        fa4.smem_used_bytes,
    )
    assert found == expected
    assert support_faults(fa4) == ()


def test_wide_v_has_no_block_of_keys_with_two_o_and_one_stage_with_a_single_o() -> None:
    two_o = config(BF16, nope=192, v=256).fa4
    single_o = config(BF16, nope=192, v=256, num_q=1, single_o=True).fa4
    assert two_o.block_n == 0
    assert (single_o.block_n, single_o.num_kv_stages) == (128, 1)
    assert not supported(two_o) and not supported(single_o)


# Rule that wins, num_q, block_n, stages, and the rules tried before.
SELECTED = [
    (PTS, 128, 128, ("two O, 2Q", 2, 128, 3, ())),
    (BF16, 128, 128, ("two O, 2Q", 2, 128, 3, ())),
    (BF16, 192, 256, ("single O, at most 64 keys", 1, 64, 2, ("two O, 2Q", "single O"))),
    # e4m3 is half as wide: (512 - 256) / 2 = 128 keys. 12 barriers 96 + 4 + 128 rows x (192 + 2 x 64 + 4) +
    # 1024 = 42596 are fixed, a slot has 128 x 256 + 16 = 32784, K brings 128 x (128 + 4) = 16896 more;
    # 189852 / (32784 + 8448) = 4 slots, 2 stages each.
    (PTS, 192, 256, ("single O", 1, 128, 2, ("two O, 2Q",))),
]


@pytest.mark.parametrize(("operands", "nope", "v", "expected"), SELECTED)
def test_the_first_candidate_that_works_is_taken(
    operands: Operands, nope: int, v: int, expected: tuple[object, ...]
) -> None:
    chosen = select(operands, nope=nope, v=v)
    fa4 = chosen.config.fa4
    tried = tuple(rejected.rule for rejected in chosen.rejected)
    assert (chosen.rule, fa4.num_q, fa4.block_n, fa4.num_kv_stages, tried) == expected
    assert chosen.faults == ()


def test_where_nothing_works_the_first_candidate_comes_with_its_faults() -> None:
    chosen = select(PTS, nope=256, v=256)
    assert (chosen.rule, chosen.config.num_q, chosen.config.single_o) == ("two O, 2Q", 2, False)
    assert [fault.code for fault in chosen.faults] == ["block-n"]
    assert [[fault.code for fault in tried.faults] for tried in chosen.rejected] == [
        ["block-n"],
        ["qk-depth"],
        ["qk-depth"],
    ]


# Each reason alone, with the numbers that it names.
REASONS = [
    (config(nope=32, rope=16), "qk-depth", "nope + rope is 48, allowed with 2Q with two O: at least 64"),
    (config(nope=256, v=64, num_q=1, single_o=True), "qk-depth", "nope + rope is 320, allowed"),
    (config(v=256), "block-n", "2Q with two O leaves 0 keys per step, allowed: at least 64"),
    (config(bn_cap=32), "block-n", "2Q with two O leaves 32 keys per step, allowed: at least 64"),
    # 4 slots x (128 x 256 x 2 + 16) + 2 x 128 x 64 x 2 + 66660 fixed = 361636
    (
        config(BF16, nope=192, v=256, num_q=1, single_o=True),
        "kv-stages",
        "1 KV stages fit in shared memory, allowed: at least 2; these need 361636 B, sm_100a offers 232448 B",
    ),
]


@pytest.mark.parametrize(("mla", "code", "message"), REASONS)
def test_every_no_has_its_reason_in_numbers(mla: MLAConfig, code: str, message: str) -> None:
    (fault,) = support_faults(mla.fa4)
    assert fault.code == code
    assert message in fault.message
    assert fault.help is not None


def test_depth_limit_of_1q_is_not_one_of_2q() -> None:
    assert supported(config(E4M3, rope=192).fa4)
    assert not supported(config(E4M3, rope=192, num_q=1).fa4)


# Swizzle bytes of qkv, rope and stored rope; MMA_K; kinds of the two products; bytes of a scale.
TYPES = [
    (PTS, (64, 128, 128, 32, "f8f6f4", "f16", 4)),
    (BF16, (128, 128, 128, 16, "f16", "f16", 0)),
    (generic("f16"), (128, 128, 128, 16, "f16", "f16", 0)),
    (E4M3, (64, 64, 64, 32, "f8f6f4", "f8f6f4", 0)),
    (BLOCKSCALE, (128, 128, 64, 16, "f16", "f16", 0)),
]


@pytest.mark.parametrize(("operands", "expected"), TYPES)
def test_types_decide_swizzle_and_instruction(operands: Operands, expected: tuple[object, ...]) -> None:
    found = (
        operands.qkv_swizzle_bytes,
        operands.rope_swizzle_bytes,
        operands.rope_gmem_swizzle_bytes,
        operands.mma_k,
        mma_kind(operands.qkv),
        mma_kind(operands.rope_mma),
        operands.scale_bytes,
    )
    assert found == expected


def test_only_blockscale_converts_rope() -> None:
    assert [item.converts_rope for item in (PTS, BF16, E4M3, BLOCKSCALE)] == [False, False, False, True]
    assert [item.one_type for item in (PTS, BF16, E4M3, BLOCKSCALE)] == [False, True, True, False]


def test_deepseek_in_full() -> None:
    mla, fa4 = config(), config().fa4
    assert (fa4.block_m, fa4.mma_m, mla.q_tile_rows, mla.correction_smem_elements) == (256, 128, 128, 256)
    assert (fa4.qk_depth, fa4.padded_qk_depth, fa4.block_k0, fa4.block_k1) == (192, 192, 192, 128)
    assert (mla.nope_depth, mla.rope_depth, mla.ov_depth, fa4.shared_kv_cols) == (128, 64, 128, 128)
    assert (mla.cache_depth, mla.k_rope_column) == (576, 512)
    assert (fa4.tmem_s, fa4.tmem_o) == ((0, 128), (256, 384))
    one = config(num_q=1)
    assert (one.fa4.block_m, one.q_tile_rows, one.correction_smem_elements) == (128, 128, 128)


def test_v_is_as_wide_as_nope_unless_said() -> None:
    mla = MLAConfig(operands=PTS, limits=LIMITS, num_q_heads=16, group=1, depth=192)
    assert (mla.nope_depth, mla.ov_depth, mla.fa4.ov_depth) == (128, 128, 128)


def test_depths_are_padded_to_a_swizzle_row() -> None:
    fa4 = config(PTS, nope=80, v=112, rope=48).fa4
    assert (fa4.padded_nope_depth, fa4.padded_rope_depth, fa4.padded_ov_depth) == (128, 64, 128)
    assert config(PTS, rope=0, nope=64, v=64).fa4.padded_rope_depth == 0


def test_a_single_o_is_a_matter_of_1q() -> None:
    fa4 = config(single_o=True, num_q=2).fa4
    assert not fa4.single_o
    assert fa4.tmem_o == (256, 384)


# Two O leave 256 - 128 = 128 keys, nope and v of 64 leave 192; pages that divide them or are their multiples
# change nothing, others take the power of two below.
PAGES = [
    (128, 64, 128),
    (128, 16, 128),
    (128, 256, 128),
    (64, 64, 192),
    (64, 96, 192),
    (64, 128, 128),
    (64, 384, 192),
]


@pytest.mark.parametrize(("width", "page", "keys"), PAGES)
def test_pages_and_blocks_divide_one_another(width: int, page: int, keys: int) -> None:
    assert config(PTS, nope=width, v=width, page_size=page).fa4.block_n == keys


def test_the_cap_is_rounded_down_to_a_step() -> None:
    assert config(PTS, bn_cap=100).fa4.block_n == 96
    assert config(BF16, bn_cap=100).fa4.block_n == 96
    assert config(BF16, bn_cap=90).fa4.block_n == 80


def test_a_slot_is_given_up_where_rounding_took_one_too_many() -> None:
    # 128 keys; fixed 4 + 13 x 8 + 256 x (64 + 128 + 4) + 1024 = 51308, 181140 remain; a slot has
    # 128 x 128 + 16 = 16400, K brings 128 x (128 + 4) = 16896 more: 181140 // (16400 + 8448) = 7 slots, which
    # would take 7 x 16400 + 4 x 16896 = 182384; 6 take 6 x 16400 + 3 x 16896 = 149088.
    fa4 = config(PTS, nope=64, v=128).fa4
    assert (fa4.num_slots, fa4.kv_ring, fa4.num_kv_stages) == (6, SEPARATE, 3)
    assert fa4.smem_used_bytes == 51308 + 149088


def test_an_odd_slot_is_left_unused_with_a_single_o() -> None:
    # 1Q, single O, 64 keys asked: fixed 4 + 12 x 8 + 128 x (128 + 128 + 4) + 1024 = 34404, 198044 remain; a
    # slot has 64 x 128 + 16 = 8208, K brings 64 x (128 + 4) = 8448 more: 198044 // 12432 = 15 slots.
    fa4 = config(PTS, num_q=1, single_o=True, bn_cap=64).fa4
    assert (fa4.num_slots, fa4.kv_ring, fa4.num_kv_stages, fa4.num_rope_buffers) == (15, SEPARATE, 7, 0)
    assert fa4.num_k_scale_buffers == 7


def test_numbers_of_the_softmax() -> None:
    fp8, half = softmax_numbers(PTS), softmax_numbers(BF16)
    assert (fp8.rescale_threshold_log2, fp8.p_lift_log2, fp8.largest_p_log2) == (-2, 6, 8)
    assert (half.rescale_threshold_log2, half.p_lift_log2, half.largest_p_log2) == (-8, 0, 8)
