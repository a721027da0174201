"""mbarriers, bytes in flight, roles and products of a Blackwell kernel, against the seed's tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mla_codegen.plan.sm100.attention import KvRing
from mla_codegen.plan.sm100.barriers import Sm100Mbarrier, count, plan_mbarriers
from mla_codegen.plan.sm100.body import Body, plan_body
from mla_codegen.plan.sm100.checks import load_order
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import BLOCKSCALE
from mla_codegen.plan.sm100.products import instruction_descriptor, pv_parts
from mla_codegen.plan.sm100.rings import solved_ring
from mla_codegen.plan.sm100.tma import plan_tensor_maps
from tests.unit.sm100_shapes import BF16, E4M3, PTS, config

ONE_Q, TWO_Q = config(num_q=1), config()
SINGLE_O = config(BF16, nope=192, v=256, num_q=1, single_o=True, bn_cap=64)


def seed_barriers(mla: MLAConfig) -> tuple[Sm100Mbarrier, ...]:
    return plan_mbarriers(mla.fa4, solved_ring(mla.fa4), guards=False)


def body(mla: MLAConfig, layout: str = "auto") -> Body:
    return plan_body(mla, layout=layout, out="bf16")


# The seed's name, ours, index, arrivals of each stage, bytes, who arrives, who waits.
HAND_OFFS = [
    ("S0_cons", "p_ready_0", 0, (256, 128), (), "softmax correction", "mma"),
    ("S1_cons", "p_ready_1", 2, (256, 128), (), "softmax correction", "mma"),
    ("C0_prod", "alpha_full_0", 4, (128,), (), "softmax", "correction"),
    ("C0_cons", "alpha_empty_0", 5, (128,), (), "correction", "softmax"),
    ("C1_prod", "alpha_full_1", 6, (128,), (), "softmax", "correction"),
    ("C1_cons", "alpha_empty_1", 7, (128,), (), "correction", "softmax"),
    ("S_prod", "s_full", 8, (1, 1), (), "mma", "softmax"),
]
LOADS_2Q = [
    ("Q1Sync", "q1_full", 10, (1,), (33280,), "load", "mma"),
    ("K full", "k_full", 11, (1, 1, 1), (66560, 33280), "load", "mma"),
    ("K empty", "k_empty", 14, (1, 1, 1), (), "mma", "load"),
    ("V full", "v_full", 17, (1, 1, 1), (16384,), "load", "mma"),
    ("V empty", "v_empty", 20, (1, 1, 1), (), "mma", "load"),
    ("O_prod", "o_full", 23, (1, 1), (), "mma", "correction softmax"),
]
LOADS_1Q = [
    ("K full", "kv_full", 10, (1,) * 7, (66560, 33280, 16384), "load", "mma"),
    ("K empty", "kv_empty", 17, (1,) * 7, (), "mma", "load"),
    ("O_prod", "o_full", 24, (1, 1), (), "mma", "correction softmax"),
]


@pytest.mark.parametrize(("mla", "loads"), [(TWO_Q, LOADS_2Q), (ONE_Q, LOADS_1Q)])
def test_the_seeds_barriers_in_its_order(mla: MLAConfig, loads: list[tuple[object, ...]]) -> None:
    found = [
        (
            barrier.seed_name,
            barrier.name,
            barrier.first_index,
            barrier.arrivals,
            barrier.tx_bytes,
            " ".join(barrier.arrives),
            " ".join(barrier.waits),
        )
        for barrier in seed_barriers(mla)
    ]
    assert found == HAND_OFFS + loads


@pytest.mark.parametrize(
    ("mla", "bars"),
    [
        (TWO_Q, 25),
        (ONE_Q, 26),
        (config(BF16), 19),
        (config(BF16, num_q=1), 20),
        (config(BLOCKSCALE), 19),
        (config(E4M3), 29),
        (config(E4M3, num_q=1), 32),
        (config(BF16, v=192), 21),
        (SINGLE_O, 20),
        (config(PTS, v=192), 31),
    ],
)
def test_the_list_has_as_many_as_the_formula_says(mla: MLAConfig, bars: int) -> None:
    assert count(seed_barriers(mla)) == mla.fa4.num_mbars == bars


def test_turns_of_softmax_add_two_barriers() -> None:
    fa4 = replace(TWO_Q.fa4, orders_softmax=True)
    (turn,) = (b for b in plan_mbarriers(fa4, solved_ring(fa4), guards=False) if b.name == "softmax_turn")
    assert (turn.first_index, turn.stages, turn.arrivals) == (8, 2, (128, 128))
    assert fa4.num_mbars == 27


def named(made: Body, name: str) -> Sm100Mbarrier:
    return next(barrier for barrier in made.mbarriers if barrier.name == name)


def test_key_scales_are_given_back_by_who_read_them() -> None:
    two_q, one_q = named(body(TWO_Q), "k_scale_empty"), named(body(ONE_Q), "k_scale_empty")
    # Both halves of Q read every block's scales, a lane of each of 8 warps; in 1Q one warpgroup does.
    assert (two_q.stages, two_q.arrivals, two_q.arrives, two_q.waits) == (
        3,
        (8, 8, 8),
        ("softmax",),
        ("load",),
    )
    assert (one_q.stages, one_q.arrivals) == (4, (4, 4, 4, 4))
    assert two_q.seed_name == ""
    assert (body(TWO_Q).num_mbars, body(ONE_Q).num_mbars) == (25 + 1 + 1 + 2 * 3, 26 + 1 + 1 + 2 * 4)


@pytest.mark.parametrize(
    ("mla", "waits", "arrives"),
    [(TWO_Q, "v_full", "tail"), (ONE_Q, "kv_full", "tail"), (config(BLOCKSCALE), "kv_full", "converter")],
)
def test_rows_of_v_beyond_the_sequence_are_cleared_before_they_are_multiplied(
    mla: MLAConfig, waits: str, arrives: str
) -> None:
    cleared = named(body(mla), "v_tail_cleared")
    assert (cleared.stages, cleared.arrivals, cleared.arrives, cleared.waits) == (
        1,
        (2,),
        (arrives,),
        ("mma",),
    )
    assert named(body(mla), waits).waits == ("mma", arrives)


def test_the_one_scale_buffer_of_the_seeds_struct_has_a_barrier_pair_of_its_own() -> None:
    made = body(TWO_Q, "seed")
    assert made.ring.kind is KvRing.UNIFIED
    assert (named(made, "k_scale_full").arrivals, named(made, "k_scale_empty").arrivals) == ((1,), (8,))
    # K alone 32768; the first brings half of Q, 32768 as well
    assert named(made, "kv_full").tx_bytes == (65536, 32768, 16384)
    assert made.num_mbars == 23 + 1 + 1 + 2


def test_blocks_of_key_scales_are_stepped_by_what_a_warpgroup_sees() -> None:
    single_o = config(PTS, nope=192, v=256, num_q=1, single_o=True)
    assert [body(mla).scale_step for mla in (TWO_Q, ONE_Q, single_o)] == [1, 2, 1]
    assert named(body(single_o), "k_scale_empty").arrivals == (4, 4)


@pytest.mark.parametrize(
    ("mla", "stages"), [(config(BLOCKSCALE), 2), (config(BLOCKSCALE, num_q=1), 2), (TWO_Q, 0)]
)
def test_the_converter_has_stages_with_any_ring(mla: MLAConfig, stages: int) -> None:
    made = body(mla)
    assert made.converter_stages == stages
    if not stages:
        return
    assert named(made, "rope_raw_full").tx_bytes == (128 * 64,)  # e4m3
    assert named(made, "rope_full").arrivals == (2, 2)  # a lane of each converter warp
    assert named(made, "q_rope_raw_full").arrivals == (1,) * mla.num_q
    assert named(made, "q_rope_raw_full").tx_bytes == (128 * 64,)
    name = "kv_full" if made.ring.kind is KvRing.SHARED else "k_full"
    # 128 rows of Q and K, both without rope
    assert named(made, name).tx_bytes[:2] == (128 * 256 + 128 * 256, 128 * 256)


def test_bytes_of_v_are_of_vs_own_width() -> None:
    wide, narrow = body(config(BF16, v=192)), body(config(BF16, v=64))
    assert named(wide, "v_full").tx_bytes == (64 * 192 * 2,)
    assert named(wide, "k_full").tx_bytes[1] == 64 * 192 * 2  # nope 128 + rope 64
    assert named(narrow, "kv_full").tx_bytes[1:] == (128 * 192 * 2, 128 * 64 * 2)


ROLES_512 = [
    ("softmax", 0, 8, 200),
    ("correction", 8, 4, 64),
    ("mma", 12, 1, 48),
    ("load", 13, 1, 48),
    ("tail", 14, 2, 48),
]
ROLES_384 = [
    ("softmax", 0, 4, 208),
    ("correction", 4, 4, 96),
    ("mma", 8, 1, 48),
    ("load", 9, 1, 48),
    ("tail", 10, 2, 48),
]


@pytest.mark.parametrize(("mla", "expected"), [(TWO_Q, ROLES_512), (ONE_Q, ROLES_512), (SINGLE_O, ROLES_384)])
def test_roles_and_registers(mla: MLAConfig, expected: list[tuple[object, ...]]) -> None:
    found = [(role.name, role.first_warp, role.num_warps, role.registers) for role in body(mla).roles]
    assert found == expected


def test_roles_wait_and_signal_what_the_barriers_say() -> None:
    roles = {role.name: (role.waits_on, role.signals) for role in body(TWO_Q).roles}
    assert roles["load"] == (
        "k_empty, v_empty, k_scale_empty",
        "q1_full, k_full, v_full, q_scale_full, k_scale_full",
    )
    assert roles["mma"] == (
        "p_ready_0, p_ready_1, q1_full, k_full, v_full, v_tail_cleared",
        "s_full, k_empty, v_empty, o_full",
    )
    assert roles["tail"] == ("v_full", "v_tail_cleared")
    converter = body(config(BLOCKSCALE)).roles[-1]
    assert (converter.name, converter.num_warps) == ("converter", 2)
    assert (converter.waits_on, converter.signals) == (
        "kv_full, q_rope_raw_full, rope_raw_full",
        "v_tail_cleared, rope_full",
    )


# Name, kind, n, k, steps, whether it overwrites its accumulator.
PRODUCTS = [
    (
        TWO_Q,
        [
            ("qk_nope", "f8f6f4", 128, 32, 4, True),
            ("qk_rope", "f16", 128, 16, 4, False),
            ("pv", "f8f6f4", 128, 32, 4, True),
        ],
    ),
    # bf16 1Q has separate rings: one chain of 192 / 16 steps; 2Q shares its ring and has two.
    (config(BF16, num_q=1), [("qk", "f16", 128, 16, 12, True), ("pv", "f16", 128, 16, 8, True)]),
    (
        config(BF16),
        [
            ("qk_nope", "f16", 128, 16, 8, True),
            ("qk_rope", "f16", 128, 16, 4, False),
            ("pv", "f16", 128, 16, 8, True),
        ],
    ),
]


@pytest.mark.parametrize(("mla", "expected"), PRODUCTS)
def test_products(mla: MLAConfig, expected: list[tuple[object, ...]]) -> None:
    found = [(p.name, p.kind, p.n, p.k, p.steps, p.clears) for p in body(mla).products]
    assert found == expected
    assert {product.m for product in body(mla).products} == {128}


def test_p_is_handed_over_three_to_one() -> None:
    assert pv_parts(TWO_Q.fa4) == (96, 32)
    assert pv_parts(config(BF16).fa4) == (96, 32)
    assert pv_parts(config(BF16, v=192).fa4) == (32, 32)
    assert pv_parts(config(PTS, nope=64, v=64).fa4) == (160, 32)  # 6 groups of 32


def test_instruction_descriptors_bit_by_bit() -> None:
    # M 128 -> 8 << 24; N 128 -> 16 << 17; fp32 -> 1 << 4; bf16 -> 1 << 7 and 1 << 10; B MN-major -> 1 << 16
    assert instruction_descriptor("e4m3", 128, 128, b_mn_major=False) == 0x0820_0010
    assert instruction_descriptor("e4m3", 128, 128, b_mn_major=True) == 0x0821_0010
    assert instruction_descriptor("bf16", 128, 128, b_mn_major=False) == 0x0820_0490
    assert instruction_descriptor("f16", 128, 256, b_mn_major=False) == 0x0840_0010


# Argument, axes of the argument, box, swizzle bytes, bytes and number of issues.
MAPS = [
    ("q_nope", (2, 0, 1), (64, 128, 1), 64, 8192, 2),
    ("q_rope", (2, 0, 1), (64, 128, 1), 128, 16384, 1),
    ("k_nope", (2, 0, 1), (64, 128, 1), 64, 8192, 2),
    ("k_rope", (1, 0, -1), (64, 128, 1), 128, 16384, 1),  # without an axis of heads
    ("v", (2, 0, 1), (64, 128, 1), 64, 8192, 2),
]  # and none of scales, which the load warp carries


def test_tensor_maps_are_the_same_in_1q_and_2q() -> None:
    maps = plan_tensor_maps(TWO_Q.fa4)
    found = [(m.argument, m.dims, m.box, m.swizzle_bytes, m.issue_bytes, m.issues) for m in maps]
    assert found == MAPS
    assert all(len(item.axes) == len(item.dims) == len(item.box) for item in maps)
    assert plan_tensor_maps(ONE_Q.fa4) == maps


def test_small_pages_make_more_boxes() -> None:
    maps = {item.argument: item for item in plan_tensor_maps(config(page_size=32).fa4)}
    assert (maps["k_nope"].box, maps["k_nope"].issues) == ((64, 32, 1), 2 * 4)
    assert (maps["v"].box, maps["v"].issues) == ((64, 32, 1), 2 * 4)
    assert maps["q_nope"].issues == 2


def test_order_of_loads() -> None:
    assert load_order(TWO_Q.fa4, 2) == ("k", "v", "k", "v")
    assert load_order(ONE_Q.fa4, 3) == ("k", "k", "v", "v", "k", "v")
    assert load_order(ONE_Q.fa4, 1) == ("k", "v")
    assert load_order(SINGLE_O.fa4, 2) == ("k", "v", "k", "v")


# Id, name, threads.
NAMED = [
    (TWO_Q, [(1, "output_read", 256)]),
    (ONE_Q, [(1, "state_written", 256), (2, "output_read", 256)]),
    (SINGLE_O, [(1, "output_read", 128)]),
]


@pytest.mark.parametrize(("mla", "expected"), NAMED)
def test_named_barriers(mla: MLAConfig, expected: list[tuple[object, ...]]) -> None:
    assert [(item.id, item.name, item.threads) for item in body(mla).named_barriers] == expected
