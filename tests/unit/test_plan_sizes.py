"""Plans of widths, scales and layouts that no shipped spec has; each comment is the calculation."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from mla_codegen.arch import ARCHS
from mla_codegen.errors import PlanError
from mla_codegen.plan import Plan, make_plan
from mla_codegen.plan.model import Variant
from mla_codegen.plan.registers import register_faults, registers_fit, split_registers
from mla_codegen.plan.tiles import Tiles, resolve_tiles, row_chunks
from mla_codegen.spec import Spec
from tests.forms import FORMS, form

LIMITS = ARCHS["sm_90a"]


def variant(name: str) -> Variant:
    (only,) = make_plan(form(name)).variants
    return only


# Elements of a row, bytes of one; bytes with the padding to whole steps of 32; the widest of 128, 64 and 32
# that divides them; how many of it; elements of one.
CHUNKS = [
    (0, 1, 0, 128, 0, 128),
    (16, 1, 32, 32, 1, 32),  # 16 bytes of padding
    (32, 1, 32, 32, 1, 32),
    (48, 1, 64, 64, 1, 64),  # 16 bytes of padding
    (64, 1, 64, 64, 1, 64),
    (80, 1, 96, 32, 3, 32),  # 16 bytes of padding; 96 = 3 x 32
    (112, 1, 128, 128, 1, 128),
    (128, 1, 128, 128, 1, 128),
    (176, 1, 192, 64, 3, 64),  # 16 bytes of padding; 192 = 3 x 64
    (192, 1, 192, 64, 3, 64),
    (256, 1, 256, 128, 2, 128),
    (16, 2, 32, 32, 1, 16),
    (48, 2, 96, 32, 3, 16),
    (64, 2, 128, 128, 1, 64),
    (80, 2, 160, 32, 5, 16),
    (176, 2, 352, 32, 11, 16),  # 352 = 11 x 32
    (192, 2, 384, 128, 3, 64),
    (256, 2, 512, 128, 4, 64),
]


@pytest.mark.parametrize(("depth", "element", "row", "width", "count", "elems"), CHUNKS)
def test_rows_are_padded_and_cut(
    depth: int, element: int, row: int, width: int, count: int, elems: int
) -> None:
    found = row_chunks(depth, element)
    assert (found.row_bytes, found.width_bytes, found.count, found.elems) == (row, width, count, elems)
    assert found.steps == width // 32
    assert found.count * found.elems * element == found.row_bytes
    assert depth == 0 or 0 <= found.row_bytes - depth * element < 32


# Name, offset, bytes of the fields of MLASmemStorage.
FIELDS: dict[str, list[tuple[str, int, int]]] = {
    # e4m3 80, bf16 48, e4m3 80: rows of 96, 96 and 96 bytes. 192 rows, 96 keys, rings of 3, 3 and 2.
    "fp8_80_48_80": [
        ("q_smem", 0, 36864),  # 192 x (96 + 96)
        ("kv_smem", 36864, 55296),  # 3 x (96 x 96 + 96 x 96)
        ("v_smem", 92160, 27648),  # 3 x 96 keys x 96 columns
        ("v_raw_smem", 119808, 18432),  # 2 x 96 x 96
        ("q_scale_smem", 138240, 768),  # 192 x 4
        ("k_scale_smem", 139008, 1152),  # 3 x 96 x 4
        ("o_master_smem", 140160, 30720),  # 192 x 80 x 2
        ("work_smem", 170880, 48),
        ("mbar_base", 170928, 176),  # (3 + 3 + 3 + 3 + 2 + 2 + 3 + 3) x 8
    ],
    # e4m3 176, e4m3 16, e4m3 48: rows of 192, 32 and 64 bytes; V is padded to 64 columns. 192 rows, 96 keys.
    "fp8_176_16_48": [
        ("q_smem", 0, 43008),  # 192 x (192 + 32)
        ("kv_smem", 43008, 64512),  # 3 x 96 keys x (192 + 32)
        ("v_smem", 107520, 18432),  # 3 x 96 x 64
        ("v_raw_smem", 125952, 12288),  # 2 x 96 x 64
        ("q_scale_smem", 138240, 768),  # 192 x 4
        ("k_scale_smem", 139008, 1152),  # 3 x 96 x 4
        ("v_scale_smem", 140160, 2304),  # 3 x 2 x 96 x 4: logarithms and reciprocals
        ("o_master_smem", 142464, 18432),  # 192 x 48 x 2
        ("work_smem", 160896, 48),
        ("mbar_base", 160944, 176),
    ],
    # Rows of 32 bytes throughout: 128 rows, 128 keys, rings of 2 and 2.
    "bf16_16_16_16": [
        ("q_smem", 0, 8192),  # 128 x (32 + 32)
        ("kv_smem", 8192, 16384),  # 2 x 128 x (32 + 32)
        ("v_smem", 24576, 8192),  # 2 x 128 x 32
        ("work_smem", 32768, 48),
        ("mbar_base", 32816, 104),  # (2 + 2 + 2 + 2 + 2 + 2 + 1) x 8
    ],
    # Stored transposed: 112 columns x 96 keys, without a ring of raw V and without padding; no rope.
    "fp8_48_0_112": [
        ("q_smem", 0, 12288),  # 192 x 64
        ("kv_smem", 12288, 18432),  # 3 x 96 x 64
        ("v_smem", 30720, 33792),  # 3 x 11264: 112 x 96 = 10752, in whole 1024
        ("factor_smem", 64512, 768),  # 192 x 4
        ("o_master_smem", 65280, 43008),  # 192 x 112 x 2
        ("work_smem", 108288, 48),
        ("mbar_base", 108336, 152),  # (3 + 3 + 3 + 3 + 3 + 3 + 1) x 8
    ],
    # bf16 256, 256, 128: rows of 512, 512 and 256 bytes; 128 rows, 64 keys, rings of one.
    "bf16_256_256_128": [
        ("q_smem", 0, 131072),  # 128 x 1024
        ("kv_smem", 131072, 65536),  # 64 x 1024
        ("v_smem", 196608, 16384),  # 64 x 256
        ("work_smem", 212992, 48),
        ("mbar_base", 213040, 72),  # (2 + 2 + 1 + 1 + 1 + 1 + 1) x 8
    ],
}


@pytest.mark.parametrize("name", FIELDS)
def test_shared_memory(name: str) -> None:
    found = [(item.name, item.offset_bytes, item.size_bytes) for item in variant(name).smem.fields]
    assert found == FIELDS[name]


# Name, axes of the argument, box, swizzle, bytes of an issue, issues.
MAPS: dict[str, list[tuple[Any, ...]]] = {
    # q [tokens, heads, depth] from the innermost: axes 2, 0, 1; k_rope [tokens, 1, depth] counts no heads.
    "fp8_80_48_80": [
        ("q_nope_map", (2, 0, 1), (32, 64, 1), 32, 2048, 3),
        ("q_rope_map", (2, 0, 1), (16, 64, 1), 32, 2048, 3),
        ("k_nope_map", (2, 0, 1), (32, 96, 1), 32, 3072, 3),
        ("k_rope_map", (1, 0, -1), (16, 96, 1), 32, 3072, 3),
        ("v_map", (2, 0, 1), (32, 96, 1), 32, 3072, 3),
    ],
    # [batch, tokens, heads, depth]: axes 3, 1, 2, 0; k_rope [batch, tokens, depth].
    "bf16_dense": [
        ("q_nope_map", (3, 1, 2, 0), (64, 64, 1, 1), 128, 8192, 2),
        ("q_rope_map", (3, 1, 2, 0), (64, 64, 1, 1), 128, 8192, 1),
        ("k_nope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
        ("k_rope_map", (2, 1, -1, 0), (64, 128, 1, 1), 128, 16384, 1),
        ("v_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
    ],
    "bf16_dense_queries": [
        ("q_nope_map", (3, 1, 2, 0), (64, 64, 1, 1), 128, 8192, 2),
        ("q_rope_map", (3, 1, 2, 0), (64, 64, 1, 1), 128, 8192, 1),
        ("k_nope_map", (2, 0, 1), (64, 128, 1), 128, 16384, 2),
        ("k_rope_map", (1, 0, -1), (64, 128, 1), 128, 16384, 1),
        ("v_map", (2, 0, 1), (64, 128, 1), 128, 16384, 2),
    ],
    # V [heads, columns, tokens] from the tokens: axes 2, 1, 0. 96 tokens are 64 and 32: a map for each width.
    "fp8_48_0_112": [
        ("q_nope_map", (2, 0, 1), (64, 64, 1), 64, 4096, 1),
        ("k_nope_map", (2, 0, 1), (64, 96, 1), 64, 6144, 1),
        ("v_64_map", (2, 1, 0), (64, 112, 1), 64, 7168, 1),
        ("v_32_map", (2, 1, 0), (32, 112, 1), 32, 3584, 1),
    ],
    # V [batch, heads, columns, tokens]; 64 keys are one chunk.
    "transposed_dense": [
        ("q_nope_map", (3, 1, 2, 0), (128, 64, 1, 1), 128, 8192, 1),
        ("q_rope_map", (3, 1, 2, 0), (64, 64, 1, 1), 128, 8192, 1),
        ("k_nope_map", (3, 1, 2, 0), (128, 64, 1, 1), 128, 8192, 1),
        ("k_rope_map", (2, 1, -1, 0), (64, 64, 1, 1), 128, 8192, 1),
        ("v_64_map", (3, 2, 1, 0), (64, 128, 1, 1), 64, 8192, 1),
    ],
}
# Bytes of a phase of Q, of K and of V: the boxes with their padding.
TX_BYTES = {
    "fp8_80_48_80": (12288, 18432, 9216),  # 6 x 6144, 6 x 3072, 3 x 3072
    "bf16_dense": (24576, 49152, 32768),
    "bf16_dense_queries": (24576, 49152, 32768),
    "fp8_48_0_112": (4096, 6144, 10752),  # 112 x 96, less than the slot of 11264
    "transposed_dense": (16384, 16384, 8192),
}


@pytest.mark.parametrize("name", MAPS)
def test_tensor_maps(name: str) -> None:
    made = variant(name)
    found = [
        (item.name, item.dims, item.box, item.swizzle_bytes, item.issue_bytes, item.issues)
        for item in made.tensor_maps
    ]
    assert found == MAPS[name]
    columns = ("tokens", "depth", "heads", "batch")
    for item in made.tensor_maps:
        wanted = columns if item.name in ("v_64_map", "v_32_map") else None
        assert item.axes == (wanted or ("depth", "tokens", "heads", "batch"))[: len(item.box)]
    tx_bytes = {item.name: item.tx_bytes for item in made.mbarriers}
    raw = "v_raw_full" if made.features.transposes_v else "v_full"
    assert tuple(tx_bytes[key] for key in ("q_full", "k_full", raw)) == TX_BYTES[name]


def test_as_many_boxes_fill_a_tile_of_transposed_v_as_it_has_chunks() -> None:
    # 160 keys are 128 and 32
    spec = form("transposed", tile={"block_n": 160}, schedule={"consumers": 2}, pipeline={"v_stages": 2})
    (made,) = make_plan(spec).variants
    chunks = [(item.map, item.first_token, item.offset_bytes) for item in made.v_transposed_chunks]
    assert chunks == [("v_128_map", 0, 0), ("v_32_map", 128, 16384)]  # 128 tokens x 128 columns
    boxes = {item.name: (item.box, item.issues) for item in made.tensor_maps if item.argument == "v"}
    assert boxes == {"v_128_map": ((128, 128, 1), 1), "v_32_map": ((32, 128, 1), 1)}


# Sizes that auto finds: consumers, block_n, rings of K, V and raw V.
def sizes(plan: Plan) -> tuple[int, ...]:
    values = {item.field: item.value for item in plan.choices}
    fields = ("schedule.consumers", "tile.block_n", "pipeline.kv_stages", "pipeline.v_stages")
    raw = values.get("pipeline.v_raw_stages", "0")
    return (*(int(values[field]) for field in fields), int(raw))


def plan_of(qkv: str, nope: int, rope: int, v: int, **sections: Any) -> Plan:
    data = {
        "name": "k",
        "arch": "sm_90a",
        "dtypes": {"qkv": qkv},
        "dims": {"nope": nope, "rope": rope, "v": v},
        **({"scales": {"q": "token", "k": "token", "rope": "prescaled"}} if qkv == "e4m3" else {}),
    }
    return make_plan(Spec.from_mapping({**data, **sections}))


TRANSPOSED = {"layout": {"v": "transposed"}}
ONLINE = {"softmax": {"variant": "online"}}
# Three consumers leave 160 registers to a thread, two 232 (e4m3, transposing) or 240. S has block_n / 2, O
# v / 2, P block_n / 8 (e4m3) or block_n / 4; beside them 36 (three) or 52 (two), 8 or 12 more for O above 128
# with a master. Each 32 bytes of Q*K rows are a step: two consumers need 3 for each above 10 (e4m3), or 8 for
# each above 24 and 10 above 16 (16-bit).
AUTO: list[tuple[str, tuple[int, int, int], dict[str, Any], tuple[int, ...]]] = [
    # Three with 64 keys: 32 + 80 + 8 + 36 + 8 = 164 of 160. Two with 128: 64 + 80 + 16 + 52 + 12 = 224 of
    # 232. Q and master 32768 + 40960; K 32768, V 20480 and raw V 20480 a stage: 3, 2, 2 are 253952, 2, 2, 2
    # are 221184
    ("e4m3", (128, 64, 160), {}, (2, 128, 2, 2, 2)),
    # Two with 128 keys: 64 + 96 + 16 + 64 = 240 of 232; with 96: 48 + 96 + 12 + 64 = 220
    ("e4m3", (128, 64, 192), {}, (2, 96, 3, 2, 2)),
    # 96: 48 + 128 + 12 + 64 = 252; 64: 32 + 128 + 8 + 64 = 232 of 232
    ("e4m3", (128, 64, 256), {}, (2, 64, 3, 3, 2)),
    ("e4m3", (192, 64, 256), {}, (2, 64, 2, 2, 2)),
    # 80: 40 + 128 + 20 + 52 = 240 of 240
    ("bf16", (192, 64, 256), {}, (2, 80, 2, 2, 0)),
    # Rows of Q*K are 1024 bytes, 32 steps: 64 + 10 registers more. 64 keys: 32 + 64 + 16 + 126 = 238 of 240.
    # Q 131072, K 65536 and V 16384 a stage: one of each
    ("bf16", (256, 256, 128), {}, (2, 64, 1, 1, 0)),
    # 640 bytes, 20 steps: 30 more. 64 keys: 32 + 96 + 8 + 64 + 30 = 230 of 232. Q and master 81920 + 49152; K
    # 40960, V and raw V 12288 a stage: 2, 1, 1 are 237568, one of each 196608
    ("e4m3", (256, 192, 192), {}, (2, 64, 1, 1, 1)),
    # Without raw V 2 and 2 are 237568, 2 and 1 225280
    ("e4m3", (256, 192, 192), TRANSPOSED, (2, 64, 2, 1, 0)),
    # 896 bytes, 28 steps: 32 + 10 more. 64 keys: 32 + 96 + 16 + 52 + 42 = 238 of 240. Q 114688; K 57344 and V
    # 24576 a stage: 2 and 1 are 253952, one of each 196608
    ("bf16", (256, 192, 192), {}, (2, 64, 1, 1, 0)),
]


@pytest.mark.parametrize(("qkv", "dims", "sections", "expected"), AUTO, ids=[str(case[:3]) for case in AUTO])
def test_what_auto_becomes(
    qkv: str, dims: tuple[int, int, int], sections: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert sizes(plan_of(qkv, *dims, **sections)) == expected


# What 256, 256 and 256 need. e4m3: 24 steps, 32 + 128 + 8 + 64 + 42 = 274 registers of 232, and 246784 bytes.
# 16-bit: 32 steps, 32 + 128 + 16 + 52 + 74 = 302 of 240; 131072 + 65536 + 32768 = 229376 bytes.
@pytest.mark.parametrize(
    ("qkv", "sections"),
    [("e4m3", {}), ("bf16", {}), ("f16", {}), ("e4m3", ONLINE)],
)
def test_what_fits_in_no_way_is_refused(qkv: str, sections: dict[str, Any]) -> None:
    codes = ["register-overflow", "smem-overflow"][: 2 if qkv == "e4m3" else 1]
    assert refusals(qkv, 256, 256, 256, **sections) == [("dims", code) for code in codes]


def refusals(qkv: str, nope: int, rope: int, v: int, **sections: Any) -> list[tuple[str | None, str]]:
    """Field and code of each fault; none where there is a plan."""
    try:
        plan_of(qkv, nope, rope, v, **sections)
    except PlanError as error:
        return [(fault.field, fault.code) for fault in error.diagnostics]
    return []


# A step more than the 20 and 28 above: 233 registers of 232, and 246 of 240.
@pytest.mark.parametrize("qkv", ["e4m3", "bf16"])
def test_a_step_more_than_fits_is_refused(qkv: str) -> None:
    assert refusals(qkv, 256, 192, 192) == []
    assert refusals(qkv, 256, 208, 192) == [("dims", "register-overflow")]


DIMS = list(itertools.product((16, 128, 192, 224, 256), (16, 64, 192, 256), (16, 128, 160, 192, 224, 256)))
LARGEST = {"scales": {"q": "token", "k": "token", "v": "token", "rope": "raw"}}


@pytest.mark.parametrize(
    ("qkv", "sections"), [("e4m3", {}), ("e4m3", ONLINE), ("e4m3", LARGEST), ("bf16", {})]
)
def test_dims_that_leave_enough_registers_fit_shared_memory(qkv: str, sections: dict[str, Any]) -> None:
    """So what is wrong with memory alone is a size that the user set, and leaving it to auto is a way out."""
    refused = 0
    for nope, rope, v in DIMS:
        faults = refusals(qkv, nope, rope, v, **sections)
        assert faults[:1] in ([], [("dims", "register-overflow")]), (nope, rope, v)
        refused += bool(faults)
    assert refused


def tiles_of(qkv: str, dims: tuple[int, int, int], **sections: Any) -> Tiles:
    plan = {
        "name": "k",
        "arch": "sm_90a",
        "dtypes": {"qkv": qkv},
        "dims": dict(zip(("nope", "rope", "v"), dims, strict=True)),
        **sections,
    }
    return resolve_tiles(Spec.from_mapping(plan))[0]


V_SCALED = {"scales": {"v": "token"}}
K_SCALED = {"scales": {"k": "token", "rope": "prescaled"}}
RAW = {"scales": {"q": "token", "rope": "raw"}}
# What a thread holds beside S, O and P of 256 keys: consumers, the sum. Two with the lazy softmax have 24 for
# so many keys.
WORKING: list[tuple[str, tuple[int, int, int], dict[str, Any], int, int]] = [
    ("e4m3", (128, 64, 128), {}, 3, 36),
    ("e4m3", (128, 64, 128), {}, 2, 76),  # 52 + 24
    ("e4m3", (128, 64, 128), ONLINE, 2, 52),
    ("bf16", (128, 64, 128), {}, 2, 52),
    ("e4m3", (128, 64, 144), {}, 3, 44),  # 36 + 8: O above 128 has a master beside it
    ("e4m3", (128, 64, 144), {}, 2, 88),  # 52 + 24 + 12
    ("bf16", (128, 64, 256), {}, 2, 52),  # no master
    ("e4m3", (128, 64, 128), V_SCALED, 3, 48),  # 36 + 12
    ("e4m3", (128, 64, 128), V_SCALED, 2, 84),  # 52 + 24 + 8
    ("e4m3", (128, 64, 128), {**V_SCALED, **ONLINE}, 3, 36),  # the lazy softmax needs them
    ("e4m3", (128, 64, 160), V_SCALED, 2, 96),  # 52 + 24 + 12 + 8
    ("e4m3", (128, 64, 240), K_SCALED, 2, 104),  # 52 + 24 + 12 + 16: 240 = 7.5 x 32
    ("e4m3", (128, 64, 256), K_SCALED, 2, 88),
    ("e4m3", (128, 64, 240), {}, 2, 88),  # no scales of K
    ("e4m3", (128, 64, 112), K_SCALED, 2, 76),  # not above 128
    # Steps of Q*K, three consumers
    ("e4m3", (256, 64, 128), {}, 3, 36),  # (256 + 128) / 32 = 12
    ("e4m3", (256, 80, 128), {}, 3, 44),  # (256 + 160) / 32 = 13: 36 + 8
    ("e4m3", (256, 80, 128), V_SCALED, 3, 72),  # 36 + 12 + 16 + 8
    ("e4m3", (256, 64, 128), V_SCALED, 3, 48),
    # Two with a master
    ("e4m3", (192, 64, 128), {}, 2, 76),  # (192 + 128) / 32 = 10
    ("e4m3", (192, 80, 128), {}, 2, 79),  # 11: 52 + 24 + 3
    ("e4m3", (256, 128, 128), {}, 2, 94),  # 16: 52 + 24 + 6 x 3
    ("e4m3", (160, 64, 128), RAW, 2, 76),  # 9
    ("e4m3", (192, 64, 128), RAW, 2, 82),  # 10: 52 + 24 + 6
    ("e4m3", (192, 80, 128), RAW, 2, 97),  # 11: 52 + 24 + 18 + 3
    ("e4m3", (192, 80, 128), {**RAW, **ONLINE}, 2, 55),  # 52 + 3
    # Two without one
    ("bf16", (192, 64, 128), {}, 2, 52),  # (384 + 128) / 32 = 16
    ("bf16", (192, 80, 128), {}, 2, 62),  # 17: 52 + 10
    ("bf16", (256, 128, 128), {}, 2, 62),  # 24
    ("bf16", (256, 144, 128), {}, 2, 70),  # 25: 52 + 10 + 8
    ("bf16", (256, 256, 128), {}, 2, 126),  # 32: 52 + 10 + 64
]


@pytest.mark.parametrize(("qkv", "dims", "sections", "consumers", "working"), WORKING)
def test_working_registers(
    qkv: str, dims: tuple[int, int, int], sections: dict[str, Any], consumers: int, working: int
) -> None:
    tiles = replace(tiles_of(qkv, dims, **sections), consumers=consumers, block_m=64 * consumers, block_n=256)
    assert_working(replace(tiles, lazy_softmax=tiles.lazy_softmax and tiles.fp8), working)


@pytest.mark.parametrize(("v", "working"), [(128, 48), (144, 52), (256, 52)])
def test_the_lazy_softmax_of_16_bits_holds_p_twice(v: int, working: int) -> None:
    # S 128 + O v / 2 + P 2 x 64 + working registers, of which 4 are free where V is not wide
    tiles = replace(tiles_of("bf16", (128, 64, v)), block_n=256, lazy_softmax=True)
    assert_working(tiles, working)


# Keys above which two consumers with the lazy softmax need 24 more; V of 256 needs 52 + 12, and 8 for scales.
@pytest.mark.parametrize(
    ("sections", "keys", "working"),
    [({}, 160, 64), ({}, 192, 88), (ONLINE, 192, 64), (V_SCALED, 128, 72), (V_SCALED, 160, 96)],
)
def test_many_keys_need_more(sections: dict[str, Any], keys: int, working: int) -> None:
    tiles = tiles_of("e4m3", (128, 64, 256), schedule={"consumers": 2}, **sections)
    assert_working(replace(tiles, block_n=keys), working)


def assert_working(tiles: Tiles, working: int) -> None:
    """The message says so of tiles that do not fit."""
    assert not registers_fit(tiles, LIMITS)
    (fault,) = register_faults(tiles, LIMITS, asked=())
    assert fault.notes[0].endswith(f"working registers {working}")
    probs = tiles.block_n // (8 if tiles.fp8 else 4) * (2 if tiles.paired_steps else 1)
    arrays = tiles.block_n // 2 + tiles.ov_depth // 2 + probs
    assert fault.message.startswith(f"needs {arrays + working} registers a thread")


KEYS, V_KEYS, BOTH = {"k": "token"}, {"v": "token"}, {"k": "token", "v": "token"}
V_TRANSPOSED, Q_DENSE, KV_DENSE = {"v": "transposed"}, {"q": "dense"}, {"kv": "dense"}
# Scales, layout, dims, keys; what the producer needs. Copies of K are those of nope and of rope: with 64 and
# 48 columns of rope 1 + 1 and 1 + 3, with 80 (160 bytes) 1 + 5.
PRODUCERS: list[tuple[dict[str, str], dict[str, str], tuple[int, int, int], int, int]] = [
    # It transposes V
    ({}, {}, (128, 64, 128), 128, 32),
    (KEYS, {}, (128, 64, 128), 128, 32),
    (V_KEYS, {}, (128, 64, 128), 128, 32),
    (V_KEYS, KV_DENSE, (128, 64, 128), 128, 40),
    ({}, {}, (128, 80, 128), 128, 32),
    ({}, KV_DENSE, (128, 80, 128), 128, 40),
    ({}, KV_DENSE, (128, 48, 128), 128, 32),
    ({}, {}, (128, 64, 32), 128, 40),  # one piece of 32 columns
    (BOTH, {}, (128, 64, 128), 128, 40),
    (BOTH, KV_DENSE, (128, 64, 144), 128, 40),  # V above 128
    (BOTH, Q_DENSE, (128, 64, 128), 128, 56),
    ({}, {}, (128, 64, 128), 160, 56),
    # V comes transposed
    ({}, V_TRANSPOSED, (128, 80, 128), 128, 24),
    (KEYS, V_TRANSPOSED, (128, 64, 128), 96, 24),
    (KEYS, V_TRANSPOSED, (128, 64, 128), 128, 32),
    (KEYS, V_TRANSPOSED, (128, 80, 128), 96, 32),
    (V_KEYS, V_TRANSPOSED, (128, 64, 128), 96, 24),
    (V_KEYS, V_TRANSPOSED, (128, 64, 128), 128, 32),
    (BOTH, V_TRANSPOSED, (128, 64, 128), 96, 32),
    (BOTH, {**V_TRANSPOSED, **KV_DENSE}, (128, 64, 128), 96, 56),
]
# What is left to each of two consumers, which share 504 with it, and of three, which share 512, in whole 8:
# from 480 and 488, 472 and 480, 464 and 472, 448 and 456.
CONSUMERS = {24: (240, 160), 32: (232, 160), 40: (232, 152), 56: (224, 152)}


@pytest.mark.parametrize(("scales", "layout", "dims", "keys", "needed"), PRODUCERS)
def test_what_a_producer_needs_is_taken_from_the_consumers(
    scales: dict[str, str], layout: dict[str, str], dims: tuple[int, int, int], keys: int, needed: int
) -> None:
    rope = {"rope": "raw"} if "k" in scales else {}
    tiles = replace(tiles_of("e4m3", dims, scales=scales | rope, layout=layout), block_n=keys)
    for consumers, left in zip((2, 3), CONSUMERS[needed], strict=True):
        found = split_registers(replace(tiles, consumers=consumers, block_m=64 * consumers), LIMITS)
        assert found.consumer == left
        assert found.producer == {2: 504, 3: 512}[consumers] - consumers * left


# Where the scales of a CTA start: function, offsets; and what the source says instead of a pointer.
PLACED: dict[str, tuple[list[tuple[str, list[str]]], tuple[str, str, str]]] = {
    "fp8_lse": ([], ("params.q_scale", "params.k_scale", "params.v_scale")),
    "fp8_head": (
        [
            ("q_scales", ["tile.head * params.q_scale_head_stride"]),
            ("v_scales", ["tile.head * params.v_scale_head_stride"]),
        ],
        ("q_scales(params, tile)", "params.k_scale", "v_scales(params, tile)"),
    ),
    "raw_k_token_head": (
        [
            ("q_scales", ["tile.head * params.q_scale_head_stride"]),
            ("k_scales", ["tile.kv_head * params.k_scale_head_stride"]),  # two query heads have one
        ],
        ("q_scales(params, tile)", "k_scales(params, tile)", "params.v_scale"),
    ),
    "transposed_dense": (
        [
            (
                "q_scales",
                ["tile.sequence * params.q_scale_batch_stride", "tile.head * params.q_scale_head_stride"],
            ),
            ("k_scales", ["tile.sequence * params.k_scale_batch_stride"]),
            (
                "v_scales",
                ["tile.sequence * params.v_scale_batch_stride", "tile.kv_head * params.v_scale_head_stride"],
            ),
        ],
        ("q_scales(params, tile)", "k_scales(params, tile)", "v_scales(params, tile)"),
    ),
    # Dense keys, ragged queries: q_scale is one array for all sequences.
    "fp8_dense_keys": (
        [
            (
                "k_scales",
                ["tile.sequence * params.k_scale_batch_stride", "tile.head * params.k_scale_head_stride"],
            ),
            ("v_scales", ["tile.sequence * params.v_scale_batch_stride"]),
        ],
        ("params.q_scale", "k_scales(params, tile)", "v_scales(params, tile)"),
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_where_the_scales_of_a_cta_start(name: str) -> None:
    made = variant(name)
    placed, names = PLACED[name]
    assert [(item.function, list(item.offsets)) for item in made.placed_scales] == placed
    assert (made.scales.q, made.scales.k, made.scales.v) == names


WHOLE = "softmax_scale * log2(e)"
# Factors of softmax, of scores before an unscaled rope, and where the scales of V join; "" for no such step.
FACTORS = {
    "bf16_lse": (WHOLE, "", ""),
    "fp8_none": (WHOLE, "", ""),
    "fp8_k_only": (WHOLE, "", ""),  # k_scale multiplies columns
    "fp8_q_only": (f"{WHOLE} * q_scale", "", ""),
    "fp8_tensor": (f"{WHOLE} * q_scale * k_scale", "", ""),
    "raw_k_none": (WHOLE, "q_scale", ""),
    "raw_k_tensor": (WHOLE, "q_scale * k_scale", ""),
    "raw_k_head": (WHOLE, "q_scale * k_scale", ""),
    "raw_k_token": (WHOLE, "", ""),  # columns alone
    "raw_k_token_head": (WHOLE, "q_scale", ""),
    "v_token": ("1", "", f"{WHOLE} * q_scale"),
    "v_token_only": ("1", "", WHOLE),
    "v_token_head_raw": ("1", "q_scale", WHOLE),
    "v_token_raw_online": ("1", "q_scale * k_scale", WHOLE),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors(name: str) -> None:
    factors = variant(name).factors
    assert (factors.softmax, factors.scores, factors.scaled_p) == FACTORS[name]


# The partial that scales S: rows' and columns' scales apart from softmax where rope has none.
SCALE_SCORES = {
    "fp8_q_only": None,
    "fp8_tensor": None,
    "fp8_k_only": "columns",
    "fp8_lse": "columns",
    "raw_k_none": "rows",
    "raw_k_tensor": "rows",
    "raw_k_token": "columns",
    "raw_k_token_head": "both",
    "v_token_only": None,
    "fp8_no_rope": "columns",
}


@pytest.mark.parametrize("name", SCALE_SCORES)
def test_what_scales_s(name: str) -> None:
    which = SCALE_SCORES[name]
    assert variant(name).partials.scale_scores == (which and f"_scale_scores_{which}.cu.j2")
    assert variant(name).features.scales_scores is (which is not None)


@pytest.mark.parametrize("name", FORMS)
def test_constants_of_the_seed_that_name_a_field_are_its_size(name: str) -> None:
    smem = variant(name).smem
    sizes_of = {field.name: field.size_bytes for field in smem.fields}
    found = {item.name: (item.value, item.field) for item in smem.constants}
    named = {"q_bytes": "q_smem", "kv_bytes": "kv_smem", "q_scale_bytes": "q_scale_smem"}
    for constant, field in named.items():
        if field in sizes_of:
            assert found[constant] == (sizes_of[field], field)
    assert {item.name for item in smem.sized_constants} == {key for key in named if key in found}
    assert found["q_nope_bytes"][0] + found["q_rope_bytes"][0] == found["q_bytes"][0]
    assert found["kv_nope_bytes"][0] + found["kv_rope_bytes"][0] == found["kv_bytes"][0]


def test_constants_of_the_seed_say_where_they_are_padded() -> None:
    said = {item.name: item.comment for item in variant("fp8_80_48_80").smem.constants}
    assert said["q_nope_bytes"] == "BM * padded(nope_depth * sizeof(qkv))"  # 80 bytes are 96
    assert said["q_rope_bytes"] == "BM * rope_depth * sizeof(rope)"  # 96 bytes are 3 x 32
    narrow = form("bf16_16_16_16", tile={"block_n": 80})
    said = {item.name: (item.value, item.comment) for item in make_plan(narrow).variants[0].smem.constants}
    # 80 x 32 = 2560 bytes, in whole 1024: 3072; two stages
    assert said["kv_nope_bytes"] == (6144, "padded(BN * nope_depth * sizeof(qkv)) * num_kv_stages, no V")
    assert said["kv_rope_bytes"] == (6144, "padded(BN * rope_depth * sizeof(rope)) * num_kv_stages")


# Widths of V; whether its rows are stored in groups of 32 columns, and whether half a group is left.
GROUPS = [(16, False, True), (32, True, False), (48, True, True), (128, True, False), (240, True, True)]


@pytest.mark.parametrize(("v", "whole", "half"), GROUPS)
def test_how_output_rows_are_stored(v: int, whole: bool, half: bool) -> None:
    features = plan_of("bf16", 64, 64, v).variants[0].features
    assert (features.whole_output_groups, features.half_output_group) == (whole, half)
