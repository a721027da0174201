"""What `auto` becomes, what a user's own numbers become, and what a plan is as a value."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from mla_codegen.arch import ARCHS
from mla_codegen.errors import PlanError
from mla_codegen.plan import Plan, builder, make_plan, smem
from mla_codegen.plan.checks import broken_invariants
from mla_codegen.plan.model import Smem
from mla_codegen.plan.registers import split_registers
from mla_codegen.plan.smem import fits
from mla_codegen.plan.tiles import Tiles, resolve_tiles
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec, loads_specs

ROOT = Path(__file__).parents[2]
SMEM_BYTES = 232448
"""227 KiB."""
FP8: dict[str, object] = {
    "name": "k",
    "arch": "sm_90a",
    "dtypes": {"qkv": "e4m3"},
    "dims": {"nope": 128, "rope": 64, "v": 128},
    "scales": {"q": "token", "k": "token", "rope": "prescaled"},
}
BF16: dict[str, object] = {"name": "k", "arch": "sm_90a", "dtypes": {"qkv": "bf16"}, "dims": FP8["dims"]}
FIELDS = {
    "block_m": "tile",
    "block_n": "tile",
    "kv_stages": "pipeline",
    "v_stages": "pipeline",
    "v_raw_stages": "pipeline",
    "consumers": "schedule",
    "variant": "softmax",
    "flush_blocks": "accumulation",
    "order": "schedule",
}


def spec_of(base: Mapping[str, object], **values: object) -> Spec:
    """`base` with fields that decide about sizes."""
    data: dict[str, object] = dict(base)
    for name, value in values.items():
        section = FIELDS[name]
        data[section] = {**data.get(section, {}), name: value}
    return Spec.from_mapping(data)


def plan_of(base: Mapping[str, object], **values: object) -> Plan:
    return make_plan(spec_of(base, **values))


def sizes(plan: Plan) -> dict[str, int]:
    """What the choices say."""
    return {
        item.field.split(".")[1]: int(item.value)
        for item in plan.choices
        if item.field.split(".")[1] in FIELDS and item.value.isdigit()
    }


def rings(plan: Plan) -> tuple[int, ...]:
    """block_n and the ring depths: block_n, K, V and, where V is transposed, raw V."""
    found = sizes(plan)
    names = ("block_n", "kv_stages", "v_stages", "v_raw_stages")
    return tuple(found[name] for name in names if name in found)


# Rows of Q and K are 256 bytes in fp8 and 384 in bf16, of V 128 and 256; of the master of O 256 (fp8 only).
# Q: 192 x 256 = 49152 with three fp8 consumers, 32768 with two, and the master the same again; 128 x 384 =
# 49152 with two bf16 consumers, 73728 with three. Scales and barriers take less than 3 KiB (fp8). At most
# 232448 bytes. So the fp8 rings have 134144 bytes less the scales: at 96 keys, where a stage of V has 12288
# bytes and one of K twice as many, 10 x 12288; at 64 keys 16 x 8192. With two consumers they have 166912
# bytes less the scales: at 128 keys 10 x 16384, at 160 keys 8 x 20480.
AUTO = [
    # 3 x 2 + 3 + 2 = 11 of 10; one stage of V less: 10
    (FP8, {}, (96, 3, 2, 2)),
    # 4 x 2 + 2 + 1 = 11 at the least; 64 keys: 4 x 2 + 3 + 2 = 13 of 16
    (FP8, {"kv_stages": 4}, (64, 4, 3, 2)),
    # 64 keys: 5 x 2 + 3 + 2 = 15
    (FP8, {"kv_stages": 5}, (64, 5, 3, 2)),
    # 64 keys: 6 x 2 + 3 + 2 = 17 of 16; V 2: 16, and 98304 + 16 x 8192 + 768 + 6 x 256 + 21 x 8 = 231848
    (FP8, {"kv_stages": 6}, (64, 6, 2, 2)),
    # 3 x 2 + 4 + 2 = 12 of 10; K gives way: 10
    (FP8, {"v_stages": 4}, (96, 2, 4, 2)),
    # 2 x 2 + 5 + 2 = 11; K and V can give no more, raw V gives way: 10
    (FP8, {"v_stages": 5}, (96, 2, 5, 1)),
    # 2 x 2 + 6 + 1 = 11 at the least; 64 keys: 3 x 2 + 6 + 2 = 14
    (FP8, {"v_stages": 6}, (64, 3, 6, 2)),
    # 64 keys: 3 x 2 + 8 + 2 = 16
    (FP8, {"v_stages": 8}, (64, 3, 8, 2)),
    # 64 keys: 7 x 2 + 2 + 1 = 17 of 16 at the least. Two consumers: 128 keys: 17 of 10; 96 keys: 17 of
    # 13; 64 keys: 7 x 2 + 3 + 2 = 19 of 20
    (FP8, {"kv_stages": 7}, (64, 7, 3, 2)),
    # 64 keys, one-stage rings of V: 7 x 2 + 1 + 1 = 16
    (FP8, {"kv_stages": 7, "consumers": 3}, (64, 7, 1, 1)),
    # 4 x 2 + 2 + 1 = 11 of 10; two consumers: 4 x 2 + 3 + 2 = 13 of 13
    (FP8, {"block_n": 96, "kv_stages": 4}, (96, 4, 3, 2)),
    # Two consumers, 64 keys, one-stage rings of V: 9 x 2 + 1 + 1 = 20, and 65536 + 20 x 8192 + 512 + 9 x 256
    # + 23 x 8 = 232376
    (FP8, {"kv_stages": 9}, (64, 9, 1, 1)),
    # 3 x 2 + 3 + 3 = 12 of 10; V gives way before K: 11, then 9
    (FP8, {"v_raw_stages": 3}, (96, 2, 2, 3)),
    # 2 x 2 + 2 + 6 = 12 at the least; 64 keys: 3 x 2 + 3 + 6 = 15
    (FP8, {"v_raw_stages": 6}, (64, 3, 3, 6)),
    # 3 x 2 + 3 + 2 = 11; only raw V may give way: 10
    (FP8, {"kv_stages": 3, "v_stages": 3}, (96, 3, 3, 1)),
    (FP8, {"kv_stages": 1, "v_stages": 1, "v_raw_stages": 1}, (96, 1, 1, 1)),
    # The softmax and the number of blocks between two flushes take no memory.
    (FP8, {"variant": "online"}, (96, 3, 2, 2)),
    (FP8, {"variant": "lazy", "flush_blocks": 65536}, (96, 3, 2, 2)),
    # 3 x 2 + 3 + 2 = 11 of 10; V 2: 65536 + 163840 + 512 + 3 x 512 + 15 x 8 = 231544
    (FP8, {"consumers": 2}, (128, 3, 2, 2)),
    (FP8, {"block_m": 128}, (128, 3, 2, 2)),
    # 3 x 2 + 3 + 2 = 11 of 8; V 2: 10; K 2: 8, and 65536 + 163840 + 512 + 2 x 640 + 13 x 8 = 231272
    (FP8, {"consumers": 2, "block_n": 160}, (160, 2, 2, 2)),
    # 3 x 2 + 3 + 2 = 11 of 16
    (FP8, {"block_n": 64}, (64, 3, 3, 2)),
    # 49152 + 2 x 49152 + 2 x 32768 = 212992
    (BF16, {}, (128, 2, 2)),
    # K 3: 262144; 112 keys: 49152 + 3 x 43008 + 2 x 28672 = 235520; 96 keys: 208896
    (BF16, {"kv_stages": 3}, (96, 3, 2)),
    # V 3: 245760; 112 keys: 49152 + 2 x 43008 + 3 x 28672 = 221184
    (BF16, {"v_stages": 3}, (112, 2, 3)),
    # 73728 + 2 x 24576 + 2 x 16384 = 155648; the lazy softmax has no room for 80 keys, the online one has:
    # 73728 + 2 x 30720 + 2 x 20480 = 176128
    (BF16, {"consumers": 3}, (64, 2, 2)),
    (BF16, {"block_m": 192}, (64, 2, 2)),
    (BF16, {"consumers": 3, "variant": "online"}, (80, 2, 2)),
    (BF16, {"block_n": 64, "kv_stages": 4}, (64, 4, 2)),  # 49152 + 4 x 24576 + 2 x 16384
]


@pytest.mark.parametrize(("base", "values", "expected"), AUTO, ids=[str(case[1:]) for case in AUTO])
def test_what_auto_becomes(
    base: dict[str, object], values: dict[str, object], expected: tuple[int, ...]
) -> None:
    plan = plan_of(base, **values)
    assert rings(plan) == expected
    assert plan.variants[0].smem.sizeof_bytes <= SMEM_BYTES


def test_a_map_may_take_all_there_is_but_not_a_byte_more() -> None:
    smem = plan_of(FP8).variants[0].smem
    assert fits(dataclasses.replace(smem, sizeof_bytes=SMEM_BYTES))
    assert not fits(dataclasses.replace(smem, sizeof_bytes=SMEM_BYTES + 1))


Step = tuple[int, int, int, int, int]
"""Consumers, block_n, stages of K, of V and of raw V."""


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Tiles]]:
    """The tiles in the order in which `auto` gives way, while what `refuses` says does not fit."""

    def taken(spec: Spec, refuses: str) -> list[Tiles]:
        seen: list[Tiles] = []
        plan_smem = smem.plan_smem

        def noted(tiles: Tiles, *, mbarriers: int, limit_bytes: int) -> Smem:
            seen.append(tiles)
            return plan_smem(tiles, mbarriers=mbarriers, limit_bytes=limit_bytes)

        monkeypatch.setattr(smem, "plan_smem", noted)
        monkeypatch.setattr(smem, "fits", lambda memory: refuses != "memory")
        monkeypatch.setattr(builder, "registers_fit", lambda tiles, limits: refuses != "registers")
        builder._fit(spec, resolve_tiles(spec)[0], ARCHS["sm_90a"])
        return seen

    return taken


@pytest.fixture
def steps(tried: Callable[..., list[Tiles]]) -> Callable[..., list[Step]]:
    """The sizes of these tiles."""
    return lambda spec, refuses: [
        (tiles.consumers, tiles.block_n, tiles.k_stages, tiles.v_stages, tiles.v_raw_stages)
        for tiles in tried(spec, refuses)
    ]


FP8_RINGS = [(3, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1)]


def test_fp8_gives_way_in_the_documented_order(steps: Callable[..., list[Step]]) -> None:
    widths = [(3, 96), (3, 64), (2, 128), (2, 96), (2, 64)]
    expected = [(*width, *rings) for width in widths for rings in FP8_RINGS]
    last = [(2, 64, 2, 1, 1), (2, 64, 1, 1, 1)]
    assert steps(spec_of(FP8), "memory") == [*expected, *last]


def test_bf16_gives_way_in_the_documented_order(steps: Callable[..., list[Step]]) -> None:
    expected = [(2, n, 2, 2, 0) for n in (128, 112, 96, 80, 64)]
    assert steps(spec_of(BF16), "memory") == [*expected, (2, 64, 2, 1, 0), (2, 64, 1, 1, 0)]


def test_registers_make_blocks_narrower_and_leave_the_rings_alone(steps: Callable[..., list[Step]]) -> None:
    def lazy(**values: object) -> list[Step]:
        return steps(spec_of(FP8, variant="lazy", **values), "registers")

    widths = [(3, 96), (3, 64), (2, 128), (2, 96), (2, 64)]
    assert lazy() == [(*width, 3, 3, 2) for width in widths]
    assert lazy(block_m=192) == [(*width, 3, 3, 2) for width in widths[:2]]
    assert lazy(block_n=64) == [(3, 64, 3, 3, 2), (2, 64, 3, 3, 2)]
    narrower = [(2, n, 2, 2, 0) for n in (128, 112, 96, 80, 64)]
    assert steps(spec_of(BF16, variant="lazy"), "registers") == narrower
    assert steps(spec_of(BF16), "registers") == [*narrower, *narrower]  # lazy, then online


# What is asked, the consumers and blocks with the lazy softmax, and those with the online one after them.
ONLINE_LAST: list[tuple[dict[str, object], list[tuple[int, int]], list[tuple[int, int]]]] = [
    ({}, [(3, 96), (3, 64), (2, 128), (2, 96), (2, 64)], [(2, 128), (2, 96), (2, 64)]),
    ({"consumers": 3}, [(3, 96), (3, 64)], [(3, 96), (3, 64)]),
    ({"block_m": 128}, [(2, 128), (2, 96), (2, 64)], [(2, 128), (2, 96), (2, 64)]),
    ({"block_n": 96}, [(3, 96), (2, 96)], [(2, 96)]),
    ({"consumers": 2, "block_n": 160}, [(2, 160)], [(2, 160)]),
    ({"variant": "lazy", "consumers": 3}, [(3, 96), (3, 64)], []),
    ({"flush_blocks": 6, "consumers": 3}, [(3, 96), (3, 64)], []),
    ({"variant": "online", "consumers": 3}, [], [(3, 96), (3, 64)]),
]


@pytest.mark.parametrize(
    ("values", "lazy", "online"), ONLINE_LAST, ids=[str(case[0]) for case in ONLINE_LAST]
)
def test_the_softmax_gives_way_to_registers_after_all_sizes_have(
    tried: Callable[..., list[Tiles]],
    values: dict[str, object],
    lazy: list[tuple[int, int]],
    online: list[tuple[int, int]],
) -> None:
    found = [
        (tiles.lazy_softmax, tiles.consumers, tiles.block_n)
        for tiles in tried(spec_of(FP8, **values), "registers")
    ]
    assert found == [*((True, *width) for width in lazy), *((False, *width) for width in online)]


def test_the_softmax_never_gives_way_to_memory(tried: Callable[..., list[Tiles]]) -> None:
    assert all(tiles.lazy_softmax for tiles in tried(spec_of(FP8), "memory"))


def test_what_the_user_set_never_gives_way(steps: Callable[..., list[Step]]) -> None:
    asked = spec_of(FP8, block_n=96, kv_stages=7, v_raw_stages=3)
    expected = [(consumers, 96, 7, v, 3) for consumers in (3, 2) for v in (3, 2)]
    assert steps(asked, "memory") == [*expected, (2, 96, 7, 1, 3)]
    asked = spec_of(FP8, consumers=3, block_n=96, v_stages=4)
    rings = [(3, 4, 2), (2, 4, 2), (2, 4, 1), (1, 4, 1)]
    assert steps(asked, "memory") == [(3, 96, *ring) for ring in rings]


AXES: dict[str, tuple[object, ...]] = {
    "consumers": ("auto", 2, 3),
    "block_m": ("auto", 128, 192),
    "block_n": ("auto", 64, 96, 128),
    "kv_stages": ("auto", 1, 2, 5),
    "v_stages": ("auto", 1, 4),
}


@pytest.mark.parametrize("base", [FP8, BF16], ids=["fp8", "bf16"])
def test_what_the_user_sets_is_kept_or_refused(base: dict[str, object]) -> None:
    planned = 0
    for values in itertools.product(*AXES.values()):
        asked = dict(zip(AXES, values, strict=True))
        try:
            plan = plan_of(base, **asked)
        except PlanError:
            continue
        planned += 1
        found = sizes(plan)
        assert {name: found[name] for name, value in asked.items() if value != "auto"} == {
            name: value for name, value in asked.items() if value != "auto"
        }
        assert found["block_m"] == 64 * found["consumers"]
        assert plan.variants[0].smem.sizeof_bytes <= SMEM_BYTES
    assert planned > 100


@pytest.mark.parametrize("consumers", ["auto", 2, 3])
@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("base", [FP8, BF16], ids=["fp8", "bf16"])
def test_auto_always_finds_sizes(base: dict[str, object], mask: str, out: str, consumers: object) -> None:
    dtypes = {**base["dtypes"], "out": out}
    plan = plan_of({**base, "mask": mask, "dtypes": dtypes}, consumers=consumers)
    assert plan.variants[0].smem.sizeof_bytes <= SMEM_BYTES


def test_choices_say_who_chose() -> None:
    rules = {item.field: item.rule for item in plan_of(FP8, kv_stages=2, consumers=2).choices}
    assert rules["pipeline.kv_stages"] == rules["schedule.consumers"] == "as the spec says"
    assert rules["tile.block_m"] == "as the spec says"  # 64 rows for each consumer
    assert "as the spec says" not in (rules["tile.block_n"], rules["pipeline.v_stages"])


def constants(plan: Plan) -> dict[str, str]:
    return {item.name: item.literal for group in plan.variants[0].constants for item in group.constants}


# Keys of a block, consumers; the blocks whose keys are at most 576.
FLUSH = [
    (64, 3, 9),  # 9 x 64 = 576
    (96, 3, 6),  # 6 x 96 = 576
    (128, 2, 4),  # 4 x 128 = 512
    (160, 2, 3),  # 3 x 160 = 480
]


@pytest.mark.parametrize("variant", ["auto", "lazy"])
@pytest.mark.parametrize(("block_n", "consumers", "blocks"), FLUSH)
def test_o_is_flushed_after_576_keys(block_n: int, consumers: int, blocks: int, variant: str) -> None:
    plan = plan_of(FP8, block_n=block_n, consumers=consumers, variant=variant)
    (choice,) = [item for item in plan.choices if item.field == "accumulation.flush_blocks"]
    assert (choice.value, constants(plan)["kFlushBlocks"]) == (str(blocks), str(blocks))
    assert choice.rule.startswith("576 keys")
    assert plan.variants[0].features.flushes_output
    assert any(f"Every {blocks} blocks" in line for line in plan.variants[0].schedule)


@pytest.mark.parametrize("blocks", [1, 5, 12, 65536])
def test_o_is_flushed_as_the_spec_says(blocks: int) -> None:
    plan = plan_of(FP8, flush_blocks=blocks)
    (choice,) = [item for item in plan.choices if item.field == "accumulation.flush_blocks"]
    assert (choice.value, choice.rule) == (str(blocks), "as the spec says")
    assert constants(plan)["kFlushBlocks"] == str(blocks)
    assert plan.variants[0].smem == plan_of(FP8).variants[0].smem


@pytest.mark.parametrize("variant", ["auto", "online"])
@pytest.mark.parametrize("values", [{}, {"consumers": 3}, {"block_n": 64}])
def test_16_bit_products_are_never_flushed(values: dict[str, object], variant: str) -> None:
    plan = plan_of(BF16, variant=variant, **values)
    assert resolve_tiles(spec_of(BF16, **values))[0].flush_blocks == 0
    assert not plan.variants[0].features.flushes_output
    assert "accumulation.flush_blocks" not in {item.field for item in plan.choices}
    assert "flush" not in " ".join(plan.variants[0].schedule)


LIFT = [
    *((FP8, {"block_n": block_n}, "lazy", 5) for block_n in (64, 96)),
    *((FP8, {"block_n": block_n, "consumers": 2}, "auto", 5) for block_n in (64, 128, 160)),
    (FP8, {"block_n": 64}, "online", 8),  # each P is at most 1, and 2^8 = 256 <= 448 < 2^9
    (FP8, {}, "online", 8),
    (FP8, {"block_n": 160, "consumers": 2}, "online", 8),
    (BF16, {}, "auto", 0),  # bf16 has the range of fp32
    (BF16, {"consumers": 3}, "online", 0),
]


@pytest.mark.parametrize(("base", "values", "variant", "lift"), LIFT)
def test_what_p_is_multiplied_by(
    base: dict[str, object], values: dict[str, object], variant: str, lift: int
) -> None:
    plan = plan_of(base, variant=variant, **values)
    (only,) = plan.variants
    lazy = base is FP8 and variant != "online"  # of 16 bits the lazy one rounds P like the online one
    found = constants(plan)
    assert float.fromhex(found["kLiftLog2"].removesuffix("f")) == lift
    assert only.features.lazy_softmax is (variant != "online")
    limit = None if variant == "online" else "448.0f" if base is FP8 else "256.0f"
    assert found.get("kLazySumLimit") == limit
    assert (f"multiplication by up to 2^{lift}" in " ".join(plan.formula)) is (base is FP8)
    rounding = only.p_rounding
    assert (rounding.dtype, rounding.lift_log2, rounding.lazy) == (plan.spec["dtypes"]["qkv"], lift, lazy)
    assert (rounding.block_n, rounding.group_rows, rounding.warp_rows) == (only.launch.block_n, 64, 16)
    if not lazy:
        assert not {"kLazySumGoal", "kLiftSteps"} & found.keys()
        return
    # A thread sums block_n / 4 columns of a row, each 2^lift where all scores are equal; as many halvings
    # as bring that down to the goal, and no more, which leaves room below the limit.
    goal, steps = float(found["kLazySumGoal"].removesuffix("f")), int(found["kLiftSteps"])
    assert (rounding.sum_limit, rounding.sum_goal) == (448, goal)
    largest = only.launch.block_n // 4 * 2**lift
    assert goal < 448
    assert largest / 2**steps <= goal < largest / 2 ** (steps - 1)


# Partial of the softmax, features lazy_softmax and flushes_output.
STEPS = [
    (FP8, "auto", "lazy", True, True),
    (FP8, "lazy", "lazy", True, True),
    (FP8, "online", "flushing", False, True),
    (BF16, "auto", "online", True, False),  # of masked blocks; the others have a step of their own
    (BF16, "lazy", "online", True, False),
    (BF16, "online", "online", False, False),
]


@pytest.mark.parametrize(("base", "variant", "step", "lazy", "flushes"), STEPS)
def test_softmax_variants(
    base: dict[str, object], variant: str, step: str, lazy: bool, flushes: bool
) -> None:
    plan = plan_of(base, variant=variant)
    (made,) = plan.variants
    assert made.partials.softmax_step == f"_softmax_step_{step}.cu.j2"
    assert (made.features.lazy_softmax, made.features.flushes_output) == (lazy, flushes)
    assert (made.partials.kv_step == "_kv_step_ping_pong_pairs_sm90.cu.j2") is (lazy and base is BF16)
    blocks = {(True, True): "_flushing", (True, False): "_pairs"}.get((lazy, base is FP8), "")
    assert made.partials.unmasked_blocks == f"_unmasked_blocks{blocks}.cu.j2"
    (choice,) = [item for item in plan.choices if item.field == "softmax.variant"]
    assert choice.value == ("lazy" if lazy else "online")
    assert (choice.rule == "as the spec says") is (variant != "auto")


SCALED_V = {**FP8, "scales": {"q": "token", "k": "token", "v": "token", "rope": "prescaled"}}
ONLY_V_SCALED = {**FP8, "scales": {"q": "token", "k": "tensor", "v": "token", "rope": "prescaled"}}
WIDE_SCALED_V = {**SCALED_V, "dims": {"nope": 128, "rope": 64, "v": 256}}
# The softmax that auto takes, consumers and block_n; in the remarks S + O + P + the rest.
FALLBACKS = [
    # Two consumers, 64 keys: 32 + 128 + 8 + 52, 12 for the master of wide V, 8 for scales of V if lazy: 240
    # or 232 of 232. Online, 96 keys: 48 + 128 + 12 + 64 = 252.
    (WIDE_SCALED_V, {}, "online", 2, 64),
    # 80 + 64 + 20 + 52, 8 for scales of V and 24 for the wide block if lazy: 248 or 216 of 224
    (SCALED_V, {"consumers": 2, "block_n": 160}, "online", 2, 160),
    # 48 + 64 + 12 + 36, 12 for scales of V if lazy: 172 or 160 of 160
    (ONLY_V_SCALED, {"consumers": 3, "block_n": 96}, "online", 3, 96),
    # The same where the block may be narrower, 32 + 64 + 8 + 48 = 152, or the consumers fewer, 48 + 64 + 12 +
    # 60 = 184 of 232
    (ONLY_V_SCALED, {"consumers": 3}, "lazy", 3, 64),
    (ONLY_V_SCALED, {"block_n": 96}, "lazy", 2, 96),
    (SCALED_V, {}, "lazy", 3, 64),  # 152 of 152
]


@pytest.mark.parametrize(("base", "values", "variant", "consumers", "block_n"), FALLBACKS)
def test_auto_takes_the_online_softmax_where_only_that_has_registers(
    base: dict[str, object], values: dict[str, object], variant: str, consumers: int, block_n: int
) -> None:
    plan = plan_of(base, **values)
    (made,), choices = plan.variants, {item.field: item for item in plan.choices}
    assert (choices["softmax.variant"].value, made.features.lazy_softmax) == (variant, variant == "lazy")
    found = sizes(plan)
    assert (found["consumers"], found["block_n"]) == (consumers, block_n)
    if variant == "lazy":
        assert choices["softmax.variant"].rule.startswith("the reference point")
        return
    assert choices["softmax.variant"].rule == "the lazy one needs more registers than there are"
    flush = choices["accumulation.flush_blocks"]
    assert (flush.value, flush.rule) == ("1", "where the online softmax rescales O")
    # The same kernel as the one that was asked for in so many words
    assert plan_of(base, variant="online", consumers=consumers, block_n=block_n).variants == plan.variants


@pytest.mark.parametrize(
    "values", [{"variant": "lazy"}, {"flush_blocks": 6}, {"variant": "lazy", "flush_blocks": 1}]
)
@pytest.mark.parametrize(("base", "sizes_asked"), [case[:2] for case in FALLBACKS if case[2] == "online"])
def test_a_softmax_or_flush_that_was_asked_for_is_refused_rather_than_replaced(
    base: dict[str, object], sizes_asked: dict[str, object], values: dict[str, object]
) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(base, **sizes_asked, **values)
    assert [fault.code for fault in caught.value.diagnostics] == ["register-overflow"]


def test_an_asked_flush_keeps_the_lazy_softmax_where_it_fits() -> None:
    rules = {item.field: item for item in plan_of(SCALED_V, flush_blocks=5).choices}
    assert rules["softmax.variant"].value == "lazy"
    assert (rules["accumulation.flush_blocks"].value, rules["accumulation.flush_blocks"].rule) == (
        "5",
        "as the spec says",
    )


# Order asked for, order made, and the turn of a warpgroup in the drawn schedule.
ORDERS = [
    (FP8, "auto", "turns", "[PV QK]"),
    (FP8, "turns", "turns", "[PV QK]"),
    (BF16, "auto", "ping_pong", "[QK PV]"),
    (BF16, "ping_pong", "ping_pong", "[QK PV]"),
]


@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize(("base", "asked", "order", "turn"), ORDERS)
def test_orders(base: dict[str, object], asked: str, order: str, turn: str, consumers: int) -> None:
    plan = plan_of(base, order=asked, consumers=consumers)
    (made,) = plan.variants
    pairs = "_pairs" if base is BF16 else ""
    assert made.partials.kv_step == f"_kv_step_{order}{pairs}_sm90.cu.j2"
    (choice,) = [item for item in plan.choices if item.field == "schedule.order"]
    assert choice.value == order
    assert (choice.rule == "as the spec says") is (asked != "auto")
    drawn = [line for line in made.schedule if re.match(r"consumer \d:", line)]
    assert len(drawn) == consumers
    assert all(turn in line and line.count("[") == line.count(turn) for line in drawn)


def primitives(plan: Plan) -> set[str]:
    return {Path(name).stem for name in plan.device_primitives}


def test_primitives_follow_softmax_and_flush() -> None:
    assert primitives(plan_of(FP8)) >= {"bits", "vote", "convert_bf16"}
    assert "bits" not in primitives(plan_of(BF16))
    for base in (FP8, BF16):
        assert primitives(plan_of(base)) >= {"ld_shared_v4_u32", "st_shared_v4_u32"}  # for the work tile
        assert primitives(plan_of(base)) - primitives(plan_of(base, variant="online")) == {"vote"}
    for base in (FP8, BF16):
        names = plan_of(base).device_primitives
        assert len(set(names)) == len(names)


# Threads; launch cap = 65536 / threads, in steps of 8; pool = warpgroups x cap.
REGISTERS = [
    (FP8, 3, 512, 128, 32, 160),  # 4 x 128 - 32 = 480 = 3 x 160
    (FP8, 2, 384, 168, 40, 232),  # 3 x 168 - 32 = 472 = 2 x 236 -> 232; 504 - 2 x 232 = 40 remain
    (BF16, 2, 384, 168, 24, 240),  # 3 x 168 - 24 = 480 = 2 x 240
    (BF16, 3, 512, 128, 32, 160),  # 4 x 128 - 24 = 488 = 3 x 162.7 -> 160; 512 - 3 x 160 = 32 remain
]


@pytest.mark.parametrize(("base", "consumers", "threads", "launch", "producer", "consumer"), REGISTERS)
def test_register_budget(
    base: dict[str, object], consumers: int, threads: int, launch: int, producer: int, consumer: int
) -> None:
    spec = spec_of(base, consumers=consumers)
    found = split_registers(resolve_tiles(spec)[0], ARCHS["sm_90a"])
    assert (found.launch, found.producer, found.consumer) == (launch, producer, consumer)
    assert producer + consumers * consumer <= (1 + consumers) * launch
    roles = make_plan(spec).variants[0].roles
    assert {role.registers for role in roles if role.name != "consumer"} == {producer}
    assert sum(role.num_warps for role in roles) * 32 == threads


def test_240_and_32_at_384_threads_is_refused() -> None:
    # 240 + 240 + 32 = 512 fill the register file, but the launch allocates 3 x 168 = 504: the last setmaxnreg
    # would wait for ever.
    plan = plan_of(BF16)
    (variant,) = plan.variants
    roles = tuple(
        dataclasses.replace(role, registers=32) if role.name != "consumer" else role for role in variant.roles
    )
    assert {role.registers for role in roles} == {32, 240}
    broken = dataclasses.replace(plan, variants=(dataclasses.replace(variant, roles=roles),))
    assert broken_invariants(broken, ARCHS["sm_90a"]) == (
        "the warpgroups take 65536 registers, the launch allocates 64512",
    )


# S takes block_n / 2 registers, O 64, P block_n / 8 (fp8) or block_n / 4 (bf16), everything else 36 (three
# consumers) or 52 (two).
LEGAL = [
    (FP8, {"consumers": 3, "block_n": 96}),  # 48 + 64 + 12 + 36 = 160 of 160
    (FP8, {"block_m": 192, "block_n": 64}),
    (FP8, {"consumers": 2, "block_n": 160}),  # 80 + 64 + 20 + 52 = 216 of 232
    (FP8, {"consumers": 2, "block_m": 128}),
    (FP8, {"consumers": 3, "block_m": 192}),
    (BF16, {"consumers": 3, "block_n": 80}),  # 40 + 64 + 20 + 36 = 160 of 160
    (BF16, {"consumers": 2, "block_n": 128}),
    (BF16, {"block_n": 112}),
    (FP8, {"flush_blocks": 1}),
    (FP8, {"consumers": 2, "block_n": 160, "flush_blocks": 65536}),
]
ILLEGAL = [
    (FP8, {"consumers": 3, "block_n": 128}, ["register-overflow"]),  # 64 + 64 + 16 + 36 = 180
    # 96 + 64 + 24 + 52 = 236 of 232; rings of one stage fit: Q and master 65536 + 49152 + 24576 + 24576
    (FP8, {"consumers": 2, "block_n": 192}, ["register-overflow"]),
    # Q and master 65536 + 3 x 49152 + 24576 + 24576 = 262144 bytes
    (FP8, {"consumers": 2, "block_n": 192, "kv_stages": 3}, ["register-overflow", "smem-overflow"]),
    (BF16, {"consumers": 3, "block_n": 96}, ["register-overflow"]),  # 48 + 64 + 24 + 36 = 172
    # 96 + 64 + 48 + 52 = 260 of 240; rings of one stage fit: 49152 + 73728 + 49152
    (BF16, {"block_n": 192}, ["register-overflow"]),
    # 49152 + 2 x 73728 + 49152 = 245760 bytes
    (BF16, {"block_n": 192, "kv_stages": 2}, ["register-overflow", "smem-overflow"]),
    (FP8, {"block_n": 80}, ["bad-tile"]),  # no multiple of 32
    (FP8, {"block_n": 32}, ["bad-tile"]),
    (FP8, {"block_n": 288}, ["bad-tile"]),
    (BF16, {"block_n": 48}, ["bad-tile"]),
    (FP8, {"block_m": 64}, ["bad-tile"]),
    (FP8, {"block_m": 256}, ["bad-tile"]),
    (FP8, {"block_m": 144}, ["bad-tile"]),
    (FP8, {"consumers": 1}, ["bad-consumers"]),
    (FP8, {"consumers": 4}, ["bad-consumers"]),
    (FP8, {"consumers": 2, "block_m": 192}, ["bad-consumers"]),
    (FP8, {"consumers": 3, "block_m": 128}, ["bad-consumers"]),
    (BF16, {"v_raw_stages": 2}, ["no-raw-v"]),
    (FP8, {"consumers": 3, "kv_stages": 8}, ["smem-overflow"]),  # 64 keys: 8 x 2 + 1 + 1 = 18 of 16
    (FP8, {"kv_stages": 10}, ["smem-overflow"]),  # two consumers, 64 keys: 10 x 2 + 1 + 1 = 22 of 20
    # Two consumers: 6 x 2 + 1 + 1 = 14 of 13
    (FP8, {"block_n": 96, "kv_stages": 6}, ["smem-overflow"]),
    (BF16, {"kv_stages": 8}, ["smem-overflow"]),  # 64 keys: 49152 + 8 x 24576 = 245760
    (BF16, {"flush_blocks": 12}, ["unsupported"]),
    (FP8, {"order": "ping_pong"}, ["unsupported"]),
    (BF16, {"order": "turns"}, ["unsupported"]),
    (BF16, {"variant": "lazy", "flush_blocks": 1}, ["unsupported"]),
    (FP8, {"block_m": 144, "block_n": 80, "consumers": 1}, ["bad-consumers", "bad-tile", "bad-tile"]),
]


@pytest.mark.parametrize(("base", "values"), LEGAL, ids=[str(case[1]) for case in LEGAL])
def test_legal_combinations(base: dict[str, object], values: dict[str, object]) -> None:
    assert sizes(plan_of(base, **values)).items() >= values.items()


@pytest.mark.parametrize(("base", "values", "codes"), ILLEGAL, ids=[str(case[1]) for case in ILLEGAL])
def test_illegal_combinations(base: dict[str, object], values: dict[str, object], codes: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(base, **values)
    assert sorted(fault.code for fault in caught.value.diagnostics) == codes


SHIPPED = sorted(path.stem for path in (ROOT / "specs").glob("*_sm90.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_json_round_trip(name: str) -> None:
    plan = make_plan(load_spec(ROOT / "specs" / f"{name}.yaml"))
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert Plan.from_mapping(plan.to_mapping()) == plan
    assert Spec.from_mapping(plan.spec).digest() == Spec.from_mapping(json.loads(text)["spec"]).digest()
    stamped = dataclasses.replace(plan, source_digest="0" * 64)
    assert Plan.from_json(stamped.to_json()) == stamped != plan


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"plan_schema": 2}, "plan_schema 2"),
        ({"plan_schema": None}, "plan_schema None"),
        ({"surprise": 1}, "unknown key 'surprise' in Plan"),
        ({"choices": [{"field": "a", "value": "b", "rule": "c", "why": "d"}]}, "unknown key 'why' in Choice"),
        ({"choices": [{"field": "a", "value": "b"}]}, "no key 'rule' in Choice"),
    ],
)
def test_json_of_another_version_is_refused(change: dict[str, object], complaint: str) -> None:
    data = plan_of(FP8).to_mapping() | change
    with pytest.raises(ValueError, match=complaint):
        Plan.from_mapping(data)


def test_json_without_a_key_is_refused() -> None:
    data = plan_of(FP8).to_mapping()
    del data["variants"]
    with pytest.raises(ValueError, match="no key 'variants' in Plan"):
        Plan.from_mapping(data)


def parts(value: object) -> Iterator[object]:
    """The value and everything in it."""
    yield value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from parts(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from parts(item)


@pytest.mark.parametrize("again", [False, True], ids=["made", "read back"])
def test_nothing_in_a_plan_can_be_changed(again: bool) -> None:
    plan = plan_of(FP8)
    plan = Plan.from_json(plan.to_json()) if again else plan
    allowed = (str, int, float, tuple, MappingProxyType, type(None))
    for part in parts(plan):
        if dataclasses.is_dataclass(part):
            name = dataclasses.fields(part)[0].name
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, name, None)
        else:
            assert isinstance(part, allowed), f"{type(part).__name__} can be changed: {part!r}"
    with pytest.raises(TypeError):
        plan.spec["name"] = "other"


def test_a_plan_does_not_follow_later_changes_of_its_data() -> None:
    data = plan_of(FP8).to_mapping()
    plan = Plan.from_mapping(data)
    data["spec"]["dims"]["nope"] = 64
    assert plan.spec["dims"]["nope"] == 128


YAML = """\
name: k
arch: sm_90a
dtypes: {qkv: bf16}
dims: {nope: 128, rope: 64, v: 128}
mask: full
"""
SAME = """\
# The same kernel, said in another way.
mask: full   # every key
dims:
  v: 128
  nope: 128
  rope: 64
arch: sm_90a
tile: {block_n: auto}
dtypes: {out: bf16, qkv: bf16}
name: k
"""


def test_comments_order_and_given_defaults_take_no_part_in_the_digest() -> None:
    first, second, other = (
        make_plan(loads_specs(text, path="specs/k.yaml")[0])
        for text in (YAML, SAME, YAML.replace("full", "causal"))
    )
    assert first.spec_digest == second.spec_digest != other.spec_digest
    assert first.to_json() == second.to_json()


def test_plans_are_the_same_in_every_process() -> None:
    code = (
        "import hashlib; from mla_codegen.spec_loader import load_spec;"
        "from mla_codegen.plan import make_plan;"
        "print([hashlib.sha256(make_plan(load_spec(f'specs/{name}.yaml')).to_json().encode()).hexdigest()"
        f" for name in {SHIPPED}])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("'") == 2 * len(SHIPPED)
