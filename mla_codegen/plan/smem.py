"""``MLASmemStorage`` on sm_90a: fields, offsets, and the seed's constants.

Field names and constants follow the seed where the thing exists on Hopper. There K and V have rings of their
own: ``kv_smem`` holds the K ring (nope and rope of a stage side by side), ``v_smem`` the ring that P*V reads,
and, where V is transposed, ``v_raw_smem`` what the copy engine delivers. ``correction_smem`` and
``tmem_addr`` have no counterpart: the consumers rescale their own registers, and there is no tensor memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import SeedConstant, Smem, SmemField
from mla_codegen.plan.tiles import TILE_ALIGN_BYTES, Tiles

SCALE_ALIGN_BYTES = 16
"""Alignment of the scales: four at a time are read, and stages stay aligned for any block_n."""
_F32 = 4
_MBARRIER = 8
WORK_TILE_WORDS = 12
"""Members of WorkTile that do not follow from others, up to three vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    name: str
    element: str
    element_bytes: int
    count: int
    align_bytes: int
    content: str
    live: str


def plan_smem(tiles: Tiles, *, mbarriers: int, limit_bytes: int) -> Smem:
    """The map for these tiles, whether or not it fits; see :mod:`mla_codegen.plan.smem_faults`."""
    fields: list[SmemField] = []
    offset = 0
    for want in _wanted(tiles, mbarriers):
        offset = -(-offset // want.align_bytes) * want.align_bytes
        size = want.count * want.element_bytes
        fields.append(
            SmemField(
                name=want.name,
                element=want.element,
                count=want.count,
                offset_bytes=offset,
                size_bytes=size,
                align_bytes=want.align_bytes,
                content=want.content,
                live=want.live,
            )
        )
        offset += size
    constants = _seed_constants(tiles)
    return Smem(
        fields=tuple(fields),
        constants=constants,
        sized_constants=tuple(item for item in constants if item.field is not None),
        last_field=fields[-1].name,
        used_bytes=offset,
        sizeof_bytes=-(-offset // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES,
        align_bytes=TILE_ALIGN_BYTES,
        limit_bytes=limit_bytes,
    )


def fits(smem: Smem) -> bool:
    """Whether a CTA can have this much: the struct with its tail padding is what is launched."""
    return smem.sizeof_bytes <= smem.limit_bytes


def _wanted(tiles: Tiles, mbarriers: int) -> list[_Wanted]:
    """The fields in their order: tiles first, since they are aligned the widest."""
    wanted = [*_qk_fields(tiles), *_v_fields(tiles)]
    wanted += _scale_fields(tiles)
    if tiles.flush_blocks:
        wanted.append(
            _Wanted(
                name="o_master_smem",
                element="u8",
                element_bytes=1,
                count=tiles.block_m * tiles.ov_depth * 2,
                align_bytes=SCALE_ALIGN_BYTES,
                content="O that has left the accumulators: bf16 pairs in 16-byte vectors",
                live="the whole CTA; each word is used by one thread only",
            )
        )
    wanted.append(
        _Wanted(
            name="work_smem",
            element="i32",
            element_bytes=4,
            count=WORK_TILE_WORDS,
            align_bytes=SCALE_ALIGN_BYTES,
            content="which rows and keys the CTA has, spares registers of the consumers",
            live="the whole CTA, written before the roles start",
        )
    )
    wanted.append(
        _Wanted(
            name="mbar_base",
            element="u64",
            element_bytes=_MBARRIER,
            count=mbarriers,
            align_bytes=_MBARRIER,
            content="transaction barriers, in the order of enum Mbarrier",
            live="the whole CTA",
        )
    )
    return wanted


def _qk_fields(tiles: Tiles) -> list[_Wanted]:
    rows = "rows, chunks of a swizzle width"
    then = ("Q_nope, then Q_rope", "K_nope, then K_rope") if tiles.rope_depth else ("Q_nope", "K_nope")
    return [
        _tile_field(
            "q_smem",
            tiles.block_m * (tiles.nope.row_bytes + tiles.rope_row.row_bytes),
            content=f"{then[0]}: block_m {rows}",
            live="per consumer from q_full to q_empty",
        ),
        _tile_field(
            "kv_smem",
            tiles.k_stage_bytes * tiles.k_stages,
            content=f"ring of {then[1]}: block_n {rows}",
            live="per stage from k_full to k_empty",
        ),
    ]


def _v_fields(tiles: Tiles) -> list[_Wanted]:
    rows = "ring of V: block_n rows, chunks of a swizzle width"
    columns = "ring of V columns: a row each, chunks of a swizzle width"
    ring = _tile_field(
        "v_smem",
        tiles.v_stage_bytes * tiles.v_stages,
        content=columns if tiles.fp8 else rows,
        live="per stage from v_full to v_empty",
    )
    if not tiles.transposes_v:
        return [ring]
    raw = _tile_field(
        "v_raw_smem",
        tiles.v_raw_stage_bytes * tiles.v_raw_stages,
        content="ring of V rows: block_n of them, chunks of a swizzle width",
        live="per stage from v_raw_full to v_raw_empty",
    )
    return [ring, raw]


def _tile_field(name: str, size_bytes: int, *, content: str, live: str) -> _Wanted:
    return _Wanted(
        name=name,
        element="u8",
        element_bytes=1,
        count=size_bytes,
        align_bytes=TILE_ALIGN_BYTES,
        content=content,
        live=live,
    )


def _scale_fields(tiles: Tiles) -> list[_Wanted]:
    fields = []
    if tiles.scales_rows:
        fields.append(
            _Wanted(
                name="q_scale_smem",
                element="float",
                element_bytes=_F32,
                count=tiles.block_m,
                align_bytes=SCALE_ALIGN_BYTES,
                content="scales of the query rows",
                live="per consumer from q_full to the first block",
            )
        )
    if tiles.rereads_factors:
        fields.append(
            _Wanted(
                name="factor_smem",
                element="float",
                element_bytes=_F32,
                count=tiles.block_m,
                align_bytes=SCALE_ALIGN_BYTES,
                content="factors of the query rows, from S to the exponent in base 2",
                live="from the first block on; a row's is used by its warp only",
            )
        )
    if tiles.scales_columns:
        fields.append(
            _key_scale_field(
                "k_scale_smem",
                tiles.block_n * tiles.k_stages,
                content="scales of a stage's keys, in the order that accumulators need",
            )
        )
    if tiles.scales_p:
        fields.append(
            _key_scale_field(
                "v_scale_smem",
                2 * tiles.block_n * tiles.k_stages,
                content="scales of a stage's V: logarithms, then reciprocals",
            )
        )
    return fields


def _key_scale_field(name: str, count: int, *, content: str) -> _Wanted:
    return _Wanted(
        name=name,
        element="float",
        element_bytes=_F32,
        count=count,
        align_bytes=SCALE_ALIGN_BYTES,
        content=content,
        live="per stage from k_full to k_empty, signalled after they were read",
    )


def k_scale_stride_bytes(tiles: Tiles) -> int:
    """Bytes from one stage of the key scales to the next."""
    return tiles.block_n * _F32


def _seed_constants(tiles: Tiles) -> tuple[SeedConstant, ...]:
    """The seed's numbers for the fields that are here; rows and tiles with their padding."""
    q_nope = tiles.block_m * tiles.nope.row_bytes
    q_rope = tiles.block_m * tiles.rope_row.row_bytes
    k_nope = tiles.k_nope_tile_bytes * tiles.k_stages
    k_rope = (tiles.k_stage_bytes - tiles.k_nope_tile_bytes) * tiles.k_stages
    nope = _padded_formula(
        "nope_depth * sizeof(qkv)", tiles.nope_depth * tiles.qkv_bytes, tiles.nope.row_bytes
    )
    rope = _padded_formula(
        "rope_depth * sizeof(rope)", tiles.rope_depth * tiles.rope_bytes, tiles.rope_row.row_bytes
    )
    k_nope_tile = _padded_formula(
        f"BN * {nope}", tiles.block_n * tiles.nope.row_bytes, tiles.k_nope_tile_bytes
    )
    k_rope_tile = _padded_formula(
        f"BN * {rope}",
        tiles.block_n * tiles.rope_row.row_bytes,
        tiles.k_stage_bytes - tiles.k_nope_tile_bytes,
    )
    rows: list[tuple[str, int, str, str | None]] = [
        ("q_nope_bytes", q_nope, f"BM * {nope}", None),
        ("q_rope_bytes", q_rope, f"BM * {rope}", None),
        ("q_bytes", q_nope + q_rope, "q_nope_bytes + q_rope_bytes", "q_smem"),
        ("num_kv_stages", tiles.k_stages, "stages of the K ring", None),
        ("kv_nope_bytes", k_nope, f"{k_nope_tile} * num_kv_stages, no V", None),
        ("kv_rope_bytes", k_rope, f"{k_rope_tile} * num_kv_stages", None),
        ("kv_bytes", k_nope + k_rope, "kv_nope_bytes + kv_rope_bytes", "kv_smem"),
    ]
    if tiles.scales_rows:
        rows.append(("q_scale_bytes", tiles.block_m * _F32, "BM * sizeof(f32)", "q_scale_smem"))
    if tiles.scales_columns:
        per_stage = k_scale_stride_bytes(tiles)
        rows.append(("k_scale_bytes", per_stage, "BN * sizeof(f32) per stage", None))
    return tuple(
        SeedConstant(name=name, value=value, comment=comment, field=field)
        for name, value, comment, field in rows
    )


def _padded_formula(formula: str, plain_bytes: int, padded_bytes: int) -> str:
    return formula if plain_bytes == padded_bytes else f"padded({formula})"
