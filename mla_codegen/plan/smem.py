"""``MLASmemStorage`` on sm_90a: fields, offsets, the seed's constants, and whether it fits.

Field names and constants follow the seed where the thing exists on Hopper. There K and V have rings of their own:
``kv_smem`` holds the K ring (nope and rope of a stage side by side), ``v_smem`` the ring that P*V reads, and, where V is
transposed, ``v_raw_smem`` what the copy engine delivers. ``correction_smem`` and ``tmem_addr`` have no counterpart: the
consumers rescale their own registers, and there is no tensor memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.model import SeedConstant, Smem, SmemField
from mla_codegen.plan.tiles import Tiles

TILE_ALIGN_BYTES = 1024
"""Alignment of a tile in 128B swizzle mode: eight rows of 128 bytes (PTX ISA, wgmma: matrix descriptor)."""
SCALE_ALIGN_BYTES = 128
"""Alignment of an unswizzled TMA box in shared memory (PTX ISA, cp.async.bulk.tensor)."""
_F32 = 4
_MBARRIER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    name: str
    element: str
    element_bytes: int
    count: int
    align_bytes: int
    content: str
    live: str


def plan_smem(tiles: Tiles, *, num_mbars: int, has_scales: bool, limit_bytes: int) -> Smem:
    """The map for these tiles, whether or not it fits; see :func:`smem_faults`."""
    fields: list[SmemField] = []
    offset = 0
    for want in _wanted(tiles, num_mbars, has_scales):
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
    return Smem(
        fields=tuple(fields),
        constants=_seed_constants(tiles, has_scales),
        last_field=fields[-1].name,
        used_bytes=offset,
        sizeof_bytes=-(-offset // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES,
        align_bytes=TILE_ALIGN_BYTES,
        limit_bytes=limit_bytes,
    )


def fits(smem: Smem) -> bool:
    """Whether a CTA can have this much: the struct with its tail padding is what is launched."""
    return smem.sizeof_bytes <= smem.limit_bytes


def smem_faults(smem: Smem, tiles: Tiles, *, arch: str, asked: tuple[str, ...]) -> tuple[Diagnostic, ...]:
    """A diagnostic with the terms of the sum where the map does not fit; ``asked`` are the fields that the user set."""
    if fits(smem):
        return ()
    terms = " + ".join(f"{field.name} {field.size_bytes}" for field in smem.fields)
    stages = [f"kv_stages: {tiles.k_stages - 1}"] if tiles.k_stages > 1 else []
    block_n = tiles.block_n - (32 if tiles.transposes_v else 16)
    ways = [*stages, f"block_n: {block_n}", "or leave them to auto"]
    return (
        Diagnostic(
            code="smem-overflow",
            field=asked[0] if asked else "tile",
            message=f"needs {smem.sizeof_bytes} B of shared memory, {arch} offers {smem.limit_bytes} B to a CTA",
            notes=(
                terms,
                f"block_m {tiles.block_m}, block_n {tiles.block_n}, kv_stages {tiles.k_stages}, v_stages {tiles.v_stages}"
                + (f", v_raw_stages {tiles.v_raw_stages}" if tiles.transposes_v else ""),
            ),
            help=f"set {', '.join(ways)}",
        ),
    )


def _wanted(tiles: Tiles, num_mbars: int, has_scales: bool) -> list[_Wanted]:
    q_bytes = tiles.block_m * (tiles.nope_depth * tiles.qkv_bytes + tiles.rope_depth * tiles.rope_bytes)
    wanted = [
        _Wanted(
            name="q_smem",
            element="u8",
            element_bytes=1,
            count=q_bytes,
            align_bytes=TILE_ALIGN_BYTES,
            content="Q_nope, then Q_rope: block_m rows in 128-byte wide chunks, 128B swizzle.",
            live="from q_full to the last Q*K of the CTA",
        ),
        _Wanted(
            name="kv_smem",
            element="u8",
            element_bytes=1,
            count=tiles.k_stage_bytes * tiles.k_stages,
            align_bytes=TILE_ALIGN_BYTES,
            content="K ring; a stage is K_nope, then K_rope: block_n rows in 128-byte wide chunks, 128B swizzle.",
            live="per stage from k_full to k_empty",
        ),
    ]
    wanted += _v_fields(tiles)
    if has_scales:
        wanted += [
            _Wanted(
                name="q_scale_smem",
                element="float",
                element_bytes=_F32,
                count=tiles.block_m,
                align_bytes=SCALE_ALIGN_BYTES,
                content="Scales of the query rows.",
                live="from q_full to the first block",
            ),
            _Wanted(
                name="k_scale_smem",
                element="float",
                element_bytes=_F32,
                count=_k_scale_elems(tiles) * tiles.k_stages,
                align_bytes=SCALE_ALIGN_BYTES,
                content="Scales of the keys, one buffer per stage of the K ring; full and empty with it.",
                live="per stage from k_full to k_empty, signalled after they were read",
            ),
        ]
    wanted.append(
        _Wanted(
            name="mbar_base",
            element="u64",
            element_bytes=_MBARRIER,
            count=num_mbars,
            align_bytes=_MBARRIER,
            content="Transaction barriers, in the order of enum Mbarrier.",
            live="the whole CTA",
        )
    )
    return wanted


def _v_fields(tiles: Tiles) -> list[_Wanted]:
    if not tiles.transposes_v:
        return [
            _Wanted(
                name="v_smem",
                element="u8",
                element_bytes=1,
                count=tiles.v_stage_bytes * tiles.v_stages,
                align_bytes=TILE_ALIGN_BYTES,
                content="V ring: block_n rows in 128-byte wide chunks, 128B swizzle.",
                live="per stage from v_full to v_empty",
            )
        ]
    return [
        _Wanted(
            name="v_smem",
            element="u8",
            element_bytes=1,
            count=tiles.v_stage_bytes * tiles.v_stages,
            align_bytes=TILE_ALIGN_BYTES,
            content="Ring of transposed V: a row per V column, tokens in chunks of one swizzle width.",
            live="per stage from v_full to v_empty",
        ),
        _Wanted(
            name="v_raw_smem",
            element="u8",
            element_bytes=1,
            count=tiles.v_stage_bytes * tiles.v_raw_stages,
            align_bytes=TILE_ALIGN_BYTES,
            content="Ring of V as it lies in memory: block_n rows of 128 bytes, 128B swizzle.",
            live="per stage from v_raw_full to v_raw_empty",
        ),
    ]


def _k_scale_elems(tiles: Tiles) -> int:
    """block_n scales, rounded up so that the next stage keeps the alignment of a TMA box."""
    step = SCALE_ALIGN_BYTES // _F32
    return -(-tiles.block_n // step) * step


def k_scale_stride_bytes(tiles: Tiles) -> int:
    """Bytes from one stage of the key scales to the next."""
    return _k_scale_elems(tiles) * _F32


def _seed_constants(tiles: Tiles, has_scales: bool) -> tuple[SeedConstant, ...]:
    q_nope = tiles.block_m * tiles.nope_depth * tiles.qkv_bytes
    q_rope = tiles.block_m * tiles.rope_depth * tiles.rope_bytes
    k_nope = tiles.block_n * tiles.nope_depth * tiles.qkv_bytes * tiles.k_stages
    k_rope = tiles.block_n * tiles.rope_depth * tiles.rope_bytes * tiles.k_stages
    rows = [
        ("q_nope_bytes", q_nope, "BM * nope_depth * sizeof(qkv)"),
        ("q_rope_bytes", q_rope, "BM * rope_depth * sizeof(rope)"),
        ("q_bytes", q_nope + q_rope, "q_nope_bytes + q_rope_bytes"),
        ("num_kv_stages", tiles.k_stages, "stages of the K ring"),
        ("kv_nope_bytes", k_nope, "BN * nope_depth * sizeof(qkv) * num_kv_stages; V apart"),
        ("kv_rope_bytes", k_rope, "BN * rope_depth * sizeof(rope) * num_kv_stages"),
        ("kv_bytes", k_nope + k_rope, "kv_nope_bytes + kv_rope_bytes"),
    ]
    if has_scales:
        rows += [
            ("q_scale_bytes", tiles.block_m * _F32, "BM * sizeof(f32)"),
            ("k_scale_bytes", k_scale_stride_bytes(tiles), "BN * sizeof(f32) per stage, rounded to a TMA box"),
        ]
    return tuple(SeedConstant(name=name, value=value, comment=comment) for name, value, comment in rows)
