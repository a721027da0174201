"""Plans of widths, scales and layouts that no shipped spec has; each comment is the calculation."""

from __future__ import annotations

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
        ("mbar_base", 170880, 136),  # (1 + 3 + 3 + 2 + 2 + 3 + 3) x 8
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
        ("mbar_base", 160896, 136),
    ],
    # Rows of 32 bytes throughout: 128 rows, 128 keys, rings of 2 and 2.
    "bf16_16_16_16": [
        ("q_smem", 0, 8192),  # 128 x (32 + 32)
        ("kv_smem", 8192, 16384),  # 2 x 128 x (32 + 32)
        ("v_smem", 24576, 8192),  # 2 x 128 x 32
        ("mbar_base", 32768, 80),  # (1 + 2 + 2 + 2 + 2 + 1) x 8
    ],
    # Stored transposed: 112 columns x 96 keys, without a ring of raw V and without padding; no rope.
    "fp8_48_0_112": [
        ("q_smem", 0, 12288),  # 192 x 64
        ("kv_smem", 12288, 18432),  # 3 x 96 x 64
        ("v_smem", 30720, 33792),  # 3 x 11264: 112 x 96 = 10752, in whole 1024
        ("factor_smem", 64512, 768),  # 192 x 4
        ("o_master_smem", 65280, 43008),  # 192 x 112 x 2
        ("mbar_base", 108288, 112),  # (1 + 3 + 3 + 3 + 3 + 1) x 8
    ],
    # bf16 256, 256, 128: rows of 512, 512 and 256 bytes; 128 rows, 64 keys, rings of one.
    "bf16_256_256_128": [
        ("q_smem", 0, 131072),  # 128 x 1024
        ("kv_smem", 131072, 65536),  # 64 x 1024
        ("v_smem", 196608, 16384),  # 64 x 256
        ("mbar_base", 212992, 48),  # 6 x 8
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
        ("q_nope_map", (2, 0, 1), (32, 192, 1), 32, 6144, 3),
        ("q_rope_map", (2, 0, 1), (16, 192, 1), 32, 6144, 3),
        ("k_nope_map", (2, 0, 1), (32, 96, 1), 32, 3072, 3),
        ("k_rope_map", (1, 0, -1), (16, 96, 1), 32, 3072, 3),
        ("v_map", (2, 0, 1), (32, 96, 1), 32, 3072, 3),
    ],
    # [batch, tokens, heads, depth]: axes 3, 1, 2, 0; k_rope [batch, tokens, depth].
    "bf16_dense": [
        ("q_nope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
        ("q_rope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 1),
        ("k_nope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
        ("k_rope_map", (2, 1, -1, 0), (64, 128, 1, 1), 128, 16384, 1),
        ("v_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
    ],
    "bf16_dense_queries": [
        ("q_nope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 2),
        ("q_rope_map", (3, 1, 2, 0), (64, 128, 1, 1), 128, 16384, 1),
        ("k_nope_map", (2, 0, 1), (64, 128, 1), 128, 16384, 2),
        ("k_rope_map", (1, 0, -1), (64, 128, 1), 128, 16384, 1),
        ("v_map", (2, 0, 1), (64, 128, 1), 128, 16384, 2),
    ],
    # V [heads, columns, tokens] from the tokens: axes 2, 1, 0. 96 tokens are 64 and 32: a map for each width.
    "fp8_48_0_112": [
        ("q_nope_map", (2, 0, 1), (64, 192, 1), 64, 12288, 1),
        ("k_nope_map", (2, 0, 1), (64, 96, 1), 64, 6144, 1),
        ("v_64_map", (2, 1, 0), (64, 112, 1), 64, 7168, 1),
        ("v_32_map", (2, 1, 0), (32, 112, 1), 32, 3584, 1),
    ],
    # V [batch, heads, columns, tokens]; 64 keys are one chunk.
    "transposed_dense": [
        ("q_nope_map", (3, 1, 2, 0), (128, 192, 1, 1), 128, 24576, 1),
        ("q_rope_map", (3, 1, 2, 0), (64, 192, 1, 1), 128, 24576, 1),
        ("k_nope_map", (3, 1, 2, 0), (128, 64, 1, 1), 128, 8192, 1),
        ("k_rope_map", (2, 1, -1, 0), (64, 64, 1, 1), 128, 8192, 1),
        ("v_64_map", (3, 2, 1, 0), (64, 128, 1, 1), 64, 8192, 1),
    ],
}
# Bytes of a phase of Q, of K and of V: the boxes with their padding.
TX_BYTES = {
    "fp8_80_48_80": (36864, 18432, 9216),  # 6 x 6144, 6 x 3072, 3 x 3072
    "bf16_dense": (49152, 49152, 32768),
    "bf16_dense_queries": (49152, 49152, 32768),
    "fp8_48_0_112": (12288, 6144, 10752),  # 112 x 96, less than the slot of 11264
    "transposed_dense": (49152, 16384, 8192),
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
# Three consumers leave 160 registers to a thread, two 232 (e4m3, transposing) or 240. S has block_n / 2, O
# v / 2, P block_n / 8 (e4m3) or block_n / 4; beside them 36 (three) or 52 (two), 8 or 12 more for O above 128
# with a master, 8 for each 32 bytes of Q*K rows above 12 or 24.
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
    # Rows of Q*K are 1024 bytes, 32 steps: 64 registers more. 64 keys: 32 + 64 + 16 + 116 = 228 of 240. Q
    # 131072, K 65536 and V 16384 a stage: one of each
    ("bf16", (256, 256, 128), {}, (2, 64, 1, 1, 0)),
    # Without raw V 98304 + 65536 (master) + K 49152 + V 16384 = 229376
    ("e4m3", (256, 256, 256), TRANSPOSED, (2, 64, 1, 1, 0)),
]


@pytest.mark.parametrize(("qkv", "dims", "sections", "expected"), AUTO, ids=[str(case[:3]) for case in AUTO])
def test_what_auto_becomes(
    qkv: str, dims: tuple[int, int, int], sections: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert sizes(plan_of(qkv, *dims, **sections)) == expected


@pytest.mark.parametrize(
    ("qkv", "sections"),
    [("e4m3", {}), ("bf16", {}), ("f16", {}), ("e4m3", {"softmax": {"variant": "online"}})],
)
def test_what_fits_in_no_way_is_refused(qkv: str, sections: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(qkv, 256, 256, 256, **sections)
    (fault,) = caught.value.diagnostics
    assert (fault.field, fault.code) == ("dims", "smem-overflow" if qkv == "e4m3" else "register-overflow")


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
ONLINE = {"softmax": {"variant": "online"}}
# What a thread holds beside S, O and P: consumers, the sum.
WORKING: list[tuple[str, tuple[int, int, int], dict[str, Any], int, str]] = [
    ("e4m3", (128, 64, 128), {}, 3, "36"),
    ("e4m3", (128, 64, 128), {}, 2, "52"),
    ("bf16", (128, 64, 128), {}, 2, "52"),
    ("e4m3", (128, 64, 144), {}, 3, "44"),  # 36 + 8: O above 128 has a master beside it
    ("e4m3", (128, 64, 144), {}, 2, "64"),  # 52 + 12
    ("bf16", (128, 64, 256), {}, 2, "52"),  # no master
    ("e4m3", (128, 64, 128), V_SCALED, 3, "48"),  # 36 + 12
    ("e4m3", (128, 64, 128), V_SCALED, 2, "60"),  # 52 + 8
    ("e4m3", (128, 64, 128), {**V_SCALED, **ONLINE}, 3, "36"),  # the lazy softmax needs them
    ("e4m3", (128, 64, 160), V_SCALED, 2, "72"),  # 52 + 12 + 8
    ("e4m3", (256, 64, 128), {}, 3, "36"),  # (256 + 128) / 32 = 12 steps
    ("e4m3", (256, 80, 128), {}, 3, "44"),  # (256 + 160) / 32 = 13 steps: 36 + 8
    ("bf16", (256, 128, 128), {}, 2, "52"),  # (512 + 256) / 32 = 24 steps
    ("bf16", (256, 144, 128), {}, 2, "60"),  # 25 steps: 52 + 8
    ("bf16", (256, 256, 128), {}, 2, "116"),  # 32 steps: 52 + 64
]


@pytest.mark.parametrize(("qkv", "dims", "sections", "consumers", "working"), WORKING)
def test_working_registers(
    qkv: str, dims: tuple[int, int, int], sections: dict[str, Any], consumers: int, working: str
) -> None:
    tiles = replace(tiles_of(qkv, dims, **sections), consumers=consumers, block_m=64 * consumers)
    wide = replace(tiles, block_n=256)
    assert not registers_fit(wide, LIMITS)
    (fault,) = register_faults(wide, LIMITS, asked=())
    assert fault.notes[0].endswith(f"working registers {working}")
    arrays = 128 + dims[2] // 2 + (32 if qkv == "e4m3" else 64)
    assert fault.message.startswith(f"needs {arrays + int(working)} registers a thread")


# Scales of k and v, how V is stored; registers of the producer and of each of two consumers.
PRODUCERS = [
    ({"k": "token"}, "rows", 40, 232),  # 504 - 32 = 472 -> 2 x 232; 504 - 464 = 40 remain
    ({"k": "token", "v": "token"}, "rows", 40, 232),  # 504 - 40 = 464 = 2 x 232
    ({"k": "token", "v": "token"}, "transposed", 40, 232),
    ({"k": "token"}, "transposed", 24, 240),  # 504 - 24 = 480 = 2 x 240
    ({"v": "token"}, "transposed", 24, 240),
]


@pytest.mark.parametrize(("scales", "v", "producer", "consumer"), PRODUCERS)
def test_a_producer_that_carries_scales_of_k_and_v_has_more_registers(
    scales: dict[str, str], v: str, producer: int, consumer: int
) -> None:
    rope = {"rope": "raw"} if "k" in scales else {}
    sections = {"scales": scales | rope, "layout": {"v": v}, "schedule": {"consumers": 2}}
    found = split_registers(tiles_of("e4m3", (128, 64, 128), **sections), LIMITS)
    assert (found.producer, found.consumer) == (producer, consumer)


def test_three_consumers_leave_less_to_a_thread_where_the_producer_carries_both() -> None:
    # 4 x 128 - 40 = 472 = 3 x 157.3 -> 152; without the scales of V 4 x 128 - 32 = 480 = 3 x 160
    for scales, consumer in (({"k": "token", "v": "token", "rope": "raw"}, 152), ({"v": "token"}, 160)):
        tiles = tiles_of("e4m3", (128, 64, 128), scales=scales)
        assert split_registers(tiles, LIMITS).consumer == consumer


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
    "raw_k_token": (WHOLE, "1", ""),  # columns alone
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
    "raw_k_token": "both",
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
