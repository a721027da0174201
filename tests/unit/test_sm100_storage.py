"""``MLASmemStorage`` on Blackwell: the seed's struct and the one of two rings, against golden numbers."""

from __future__ import annotations

import pytest

from mla_codegen.plan.model import Smem
from mla_codegen.plan.sm100.barriers import count, plan_mbarriers
from mla_codegen.plan.sm100.body import plan_body
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.ring_storage import ring_storage
from mla_codegen.plan.sm100.rings import solved_ring
from mla_codegen.plan.sm100.seed_storage import (
    deepest_unified_ring,
    seed_constants,
    seed_storage,
    unified_mbars,
)
from mla_codegen.plan.sm100.staging import plan_staging
from mla_codegen.plan.sm100.storage import Storage
from tests.unit.sm100_shapes import BF16, PTS, config

ONE_Q, TWO_Q = config(num_q=1), config()


def constants(smem: Smem) -> dict[str, int]:
    return {constant.name: constant.value for constant in smem.constants}


def fields(smem: Smem) -> list[tuple[str, int, int]]:
    return [(field.name, field.offset_bytes, field.size_bytes) for field in smem.fields]


def regions(storage: Storage) -> dict[str, tuple[int, int, int, int]]:
    """Offset, bytes, count and stride of each."""
    return {
        item.name: (item.offset_bytes, item.size_bytes, item.count, item.stride_bytes)
        for item in storage.regions
    }


def literal(mla: MLAConfig, stages: int, num_mbars: int | None = None) -> Storage:
    bars = unified_mbars(mla.fa4, stages) if num_mbars is None else num_mbars
    return seed_storage(mla.fa4, stages=stages, num_mbars=bars)


# Stages, mbarriers, sizeof as the seed declares the struct, and whether it fits in 232,448 bytes.
SEED_2Q = [
    (2, 17, 133776, True),
    (3, 19, 166560, True),
    (4, 21, 199344, True),
    (5, 23, 232128, True),
    (6, 25, 264912, False),
    (7, 27, 297696, False),
]
SEED_1Q = [
    (2, 16, 99976, True),
    (3, 18, 132760, True),
    (4, 20, 165544, True),
    (5, 22, 198328, True),
    (6, 24, 231112, True),
    (7, 26, 263896, False),
]


@pytest.mark.parametrize(
    ("mla", "row"), [*((TWO_Q, row) for row in SEED_2Q), *((ONE_Q, row) for row in SEED_1Q)]
)
def test_the_seeds_struct_has_its_golden_size(mla: MLAConfig, row: tuple[int, int, int, bool]) -> None:
    stages, mbars, sizeof, fits = row
    storage = literal(mla, stages)
    assert unified_mbars(mla.fa4, stages) == mbars
    assert storage.seed_sizeof_bytes == sizeof
    assert (storage.smem.sizeof_bytes <= 232448) is fits
    assert storage.smem.limit_bytes == 232448


def test_the_seeds_struct_with_the_barriers_of_its_newest_kernel() -> None:
    assert literal(TWO_Q, 3, num_mbars=25).seed_sizeof_bytes == 166608


def test_the_deepest_ring_of_the_seeds_struct() -> None:
    assert (deepest_unified_ring(TWO_Q.fa4), deepest_unified_ring(ONE_Q.fa4)) == (5, 6)
    assert deepest_unified_ring(TWO_Q.fa4, guards=True) == 5


def test_all_ten_constants_of_the_seed_2q() -> None:
    assert constants(literal(TWO_Q, 3).smem) == {
        "q_nope_bytes": 32768,
        "q_rope_bytes": 32768,
        "q_bytes": 65536,
        "num_kv_stages": 3,
        "kv_nope_bytes": 3 * 16384,
        "kv_rope_bytes": 3 * 16384,
        "kv_bytes": 98304,
        "q_scale_bytes": 1024,
        "k_scale_bytes": 512,
        "correction_smem_size": 256,
    }


def test_all_ten_constants_of_the_seed_1q() -> None:
    assert {item.name: item.value for item in seed_constants(ONE_Q.fa4, 6)} == {
        "q_nope_bytes": 16384,
        "q_rope_bytes": 16384,
        "q_bytes": 32768,
        "num_kv_stages": 6,
        "kv_nope_bytes": 6 * 16384,
        "kv_rope_bytes": 6 * 16384,
        "kv_bytes": 196608,
        "q_scale_bytes": 512,
        "k_scale_bytes": 512,
        "correction_smem_size": 128,
    }


def test_all_seven_fields_of_the_seed_in_their_order() -> None:
    # 65536; + 3 x 32768 = 163840; + 1024; + 512; + 256 x 4; + 19 x 8
    assert fields(literal(TWO_Q, 3).smem) == [
        ("q_smem", 0, 65536),
        ("kv_smem", 65536, 98304),
        ("q_scale_smem", 163840, 1024),
        ("k_scale_smem", 164864, 512),
        ("correction_smem", 165376, 1024),
        ("mbar_base", 166400, 152),
        ("tmem_addr", 166552, 4),
    ]
    assert [field.element for field in literal(TWO_Q, 3).smem.fields] == [
        "u8",
        "u8",
        "float",
        "float",
        "float",
        "u64",
        "u32",
    ]


def test_the_seeds_ring_has_room_for_k_or_v_then_rope() -> None:
    found = regions(literal(TWO_Q, 3))
    assert found["kv_nope"] == (65536, 16384, 3, 16384)
    assert found["k_rope"] == (65536 + 49152, 16384, 3, 16384)
    # V of 192 is wider than K_nope of 128: 64 keys x 192.
    wide = regions(literal(config(v=192), 2))
    assert wide["kv_nope"][1] == 64 * 192


def test_our_struct_is_aligned_for_swizzled_tiles() -> None:
    # 232124 bytes are used; 227 x 1024 = 232448
    smem = literal(TWO_Q, 5).smem
    assert (smem.align_bytes, smem.used_bytes, smem.sizeof_bytes) == (1024, 232124, 232448)


def live(mla: MLAConfig) -> Storage:
    """The struct of the seed's newest kernel: the ring that the parity rule chose, the seed's barriers."""
    ring = solved_ring(mla.fa4)
    return ring_storage(mla.fa4, ring, num_mbars=count(plan_mbarriers(mla.fa4, ring, guards=False)))


def test_map_of_the_newest_kernel_2q() -> None:
    storage = live(TWO_Q)
    assert fields(storage.smem) == [
        ("q_smem", 0, 65536),
        ("kv_smem", 65536, 147456),
        ("correction_smem", 212992, 1024),
        ("q_scale_smem", 214016, 1024),
        ("k_scale_smem", 215040, 3 * 512),
        ("mbar_base", 216576, 25 * 8),
        ("tmem_addr", 216776, 4),
    ]
    assert storage.smem.used_bytes == 216780 == TWO_Q.fa4.smem_used_bytes
    assert regions(storage) == {
        "q_nope": (0, 16384, 2, 32768),
        "q_rope": (16384, 16384, 2, 32768),
        "k_nope": (65536, 16384, 3, 32768),
        "k_rope": (81920, 16384, 3, 32768),
        "v": (163840, 16384, 3, 16384),
    }


def test_map_of_the_newest_kernel_1q() -> None:
    storage = live(ONE_Q)
    assert fields(storage.smem) == [
        ("q_smem", 0, 32768),
        ("kv_smem", 32768, 180224),
        ("correction_smem", 212992, 1024),
        ("q_scale_smem", 214016, 512),
        ("k_scale_smem", 214528, 4 * 512),
        ("mbar_base", 216576, 26 * 8),
        ("tmem_addr", 216784, 4),
    ]
    assert storage.smem.used_bytes == 216788 == ONE_Q.fa4.smem_used_bytes
    assert regions(storage) == {
        "q_nope": (0, 16384, 1, 32768),
        "q_rope": (16384, 16384, 1, 32768),
        "kv_nope": (32768, 16384, 7, 16384),
        "k_rope": (147456, 16384, 4, 16384),
    }


def test_all_ten_constants_of_our_struct() -> None:
    assert constants(live(TWO_Q).smem) == {
        "q_nope_bytes": 32768,
        "q_rope_bytes": 32768,
        "q_bytes": 65536,
        "num_kv_stages": 3,
        "kv_nope_bytes": 6 * 16384,  # a K and a V a stage
        "kv_rope_bytes": 3 * 16384,
        "kv_bytes": 147456,
        "q_scale_bytes": 1024,
        "k_scale_bytes": 512,
        "correction_smem_size": 256,
    }
    one_q = constants(live(ONE_Q).smem)
    assert (one_q["kv_nope_bytes"], one_q["kv_rope_bytes"]) == (7 * 16384, 4 * 16384)
    assert (one_q["num_kv_stages"], one_q["correction_smem_size"]) == (7, 256)


SIZED = {
    "q_bytes": "q_smem",
    "kv_bytes": "kv_smem",
    "q_scale_bytes": "q_scale_smem",
    "k_scale_bytes": "k_scale_smem",
}
"""Constants that are the size of a member of the seed's struct; correction_smem_size counts elements."""


@pytest.mark.parametrize(
    ("storage", "without"),
    [
        (literal(TWO_Q, 3), set()),
        (literal(ONE_Q, 6), set()),
        (live(TWO_Q), {"k_scale_bytes"}),  # one of three buffers
        (live(ONE_Q), {"k_scale_bytes"}),
        (live(config(BF16)), {"k_scale_bytes", "q_scale_bytes"}),  # there are no scales
    ],
)
def test_constants_name_the_member_whose_size_they_are(storage: Storage, without: set[str]) -> None:
    smem = storage.smem
    named = {constant.name: constant.field for constant in smem.constants if constant.field is not None}
    assert named == {name: member for name, member in SIZED.items() if name not in without}
    assert [constant.name for constant in smem.sized_constants] == list(named)
    sizes = {name: size for name, _, size in fields(smem)}
    assert all(constant.value == sizes[constant.field] for constant in smem.sized_constants)


def test_v_has_its_own_width_where_it_has_its_own_ring() -> None:
    # bf16, v 192: 64 keys, 2 stages; the seed charges K_nope of 128 as if it were 192 wide.
    storage = live(config(BF16, v=192))
    assert regions(storage)["k_nope"] == (98304, 64 * 128 * 2, 2, 64 * 128 * 2 + 64 * 64 * 2)
    assert regions(storage)["v"] == (98304 + 2 * 24576, 64 * 192 * 2, 2, 64 * 192 * 2)
    assert storage.smem.used_bytes == 214188 - 2 * 64 * 64 * 2


def test_without_scales_there_are_no_scale_fields() -> None:
    assert [field.name for field in live(config(BF16)).smem.fields] == [
        "q_smem",
        "kv_smem",
        "correction_smem",
        "mbar_base",
        "tmem_addr",
    ]


@pytest.mark.parametrize(
    ("mla", "used"), [(TWO_Q, 216780 + (2 + 2 * 3) * 8), (ONE_Q, 216788 + (2 + 2 * 4) * 8)]
)
def test_the_barriers_that_we_add_are_all_that_we_add(mla: MLAConfig, used: int) -> None:
    smem = plan_body(mla, layout="auto", out="bf16").storage.smem
    assert (smem.used_bytes, smem.sizeof_bytes) == (used, 217088)  # 212 x 1024


def test_the_output_lies_over_q_beside_every_other_region() -> None:
    storage = plan_body(TWO_Q, layout="auto", out="bf16").storage
    assert [region.name for region in storage.regions] == ["q_nope", "q_rope", "k_nope", "k_rope", "v", "o"]
    assert regions(storage)["o"] == (0, 32768, 2, 32768)
    assert [region.alias_of for region in storage.regions if region.alias_of] == ["q_smem"]


# Writers, columns of each, bytes of each, columns a pass, passes.
STAGING = [
    (TWO_Q, 2, (2, 128, 32768, 128, 1)),  # 128 rows x 256 bytes of Q: to the byte
    (TWO_Q, 4, (2, 128, 32768, 64, 2)),
    (ONE_Q, 2, (2, 64, 16384, 64, 1)),
    (config(PTS, nope=64, v=128), 2, (2, 128, 24576, 96, 2)),  # 128 x (64 + 128) / 256 = 96
    (config(BF16, nope=192, v=256, num_q=1, single_o=True, bn_cap=64), 2, (1, 256, 65536, 256, 1)),
]


@pytest.mark.parametrize(("mla", "out_bytes", "expected"), STAGING)
def test_output_is_staged_in_the_bytes_of_q(
    mla: MLAConfig, out_bytes: int, expected: tuple[int, ...]
) -> None:
    found = plan_staging(mla.fa4, out_bytes=out_bytes)
    assert (
        found.writers,
        found.writer_cols,
        found.writer_bytes,
        found.pass_cols,
        found.passes,
    ) == expected
