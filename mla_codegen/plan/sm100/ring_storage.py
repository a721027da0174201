"""The struct of ``smem.layout: auto``: separate or shared rings, as deep as the parity rule found.

Field names and constants are the seed's; order and contents are those of its newer kernel: the factors of
correction lie before the scales, there is a buffer of key scales for each block of K in flight, and widths
are padded to whole swizzle rows. Here V has its own width where it has its own ring.
"""

from __future__ import annotations

from mla_codegen.plan.model import Region, SeedConstant
from mla_codegen.plan.sm100.attention import (
    CORRECTION_BYTES,
    MBARRIER_BYTES,
    FA4Config,
    KvRing,
    align_up,
)
from mla_codegen.plan.sm100.rings import Ring
from mla_codegen.plan.sm100.storage import Storage, Wanted, field, place, q_regions, tail_fields

F32_BYTES = 4


def ring_storage(config: FA4Config, ring: Ring, *, num_mbars: int, v_scales: bool = False) -> Storage:
    """The map with this ring and ``num_mbars`` barriers, whether or not it fits.

    ``v_scales`` where the V of each key has a scale: those of a block lie beside its key scales.
    """
    constants = ring_constants(config, ring)
    value = {constant.name: constant.value for constant in constants}
    wanted = (*_tiles(config, ring, value), *_rows(config, ring, v_scales), *tail_fields(num_mbars))
    smem = place(wanted, constants, config.limits.smem_per_cta_bytes)
    return Storage(
        layout="auto",
        smem=smem,
        regions=(*q_map(config), *_kv_regions(config, ring, field(smem, "kv_smem").offset_bytes)),
        seed_sizeof_bytes=align_up(smem.used_bytes, MBARRIER_BYTES),
    )


def q_map(config: FA4Config) -> tuple[Region, ...]:
    """The halves of Q, each with its rope behind it."""
    operands, rows = config.operands, config.block_m // config.num_q
    return q_regions(
        halves=config.num_q,
        rows=rows,
        nope_bytes=rows * config.padded_nope_depth * operands.qkv_bytes,
        rope_bytes=rows * config.padded_rope_depth * operands.rope_bytes,
        swizzles=(operands.qkv_swizzle_bytes, operands.rope_swizzle_bytes),
    )


def ring_constants(config: FA4Config, ring: Ring) -> tuple[SeedConstant, ...]:
    """The seed's ten constants, with what they mean in this struct."""
    operands = config.operands
    q_nope = config.block_m * config.padded_nope_depth * operands.qkv_bytes
    q_rope = config.block_m * config.padded_rope_depth * operands.rope_bytes
    kv_nope = ring.stages * _nope_bytes(config, ring) + _v_ring_bytes(config, ring)
    kv_rope = ring.rope_buffers * _rope_bytes(config)
    stages = "num_kv_stages"
    if ring.kind is KvRing.SEPARATE:
        kv_rope = ring.stages * _rope_bytes(config)
        nope = f"BN * (padded N + padded V) * sizeof(qkv) * {stages}"
    else:
        nope = f"BN * shared_kv_cols * sizeof(qkv) * {stages}"
        stages = "rope buffers"
    q_scale = config.block_m * operands.scale_bytes
    scale_field = None if operands.scale is None else "q_scale_smem"
    factors = CORRECTION_BYTES // F32_BYTES
    rows: tuple[tuple[str, int, str, str | None], ...] = (
        ("q_nope_bytes", q_nope, "BM * padded nope_depth * sizeof(qkv)", None),
        ("q_rope_bytes", q_rope, "BM * padded rope_depth * sizeof(rope)", None),
        ("q_bytes", q_nope + q_rope, "q_nope_bytes + q_rope_bytes", "q_smem"),
        ("num_kv_stages", ring.stages, f"slots of the {ring.kind.value} ring", None),
        ("kv_nope_bytes", kv_nope, nope, None),
        ("kv_rope_bytes", kv_rope, f"BN * padded rope_depth * sizeof(rope) * {stages}", None),
        ("kv_bytes", kv_nope + kv_rope, "kv_nope_bytes + kv_rope_bytes", "kv_smem"),
        ("q_scale_bytes", q_scale, "BM * sizeof(scale)", scale_field),
        ("k_scale_bytes", k_scale_stride_bytes(config), "BN * sizeof(scale), one buffer", None),
        ("correction_smem_size", factors, "elements, one for each softmax thread", None),
    )
    return tuple(
        SeedConstant(name=name, value=value, comment=comment, field=field_name)
        for name, value, comment, field_name in rows
    )


def k_scale_stride_bytes(config: FA4Config) -> int:
    """From one buffer of key scales to the next."""
    return config.block_n * config.operands.scale_bytes


def _tiles(config: FA4Config, ring: Ring, value: dict[str, int]) -> tuple[Wanted, ...]:
    separate = ring.kind is KvRing.SEPARATE
    rings = (
        "Ring of K (nope, then rope), then ring of V"
        if separate
        else "Ring in which K_nope and V alternate, then K_rope"
    )
    return (
        Wanted(
            name="q_smem",
            element="u8",
            count=value["q_bytes"],
            content="Each half of Q: nope, then rope, 128 rows; at the end the output.",
            live="from the first full barrier to the last Q*K",
        ),
        Wanted(
            name="kv_smem",
            element="u8",
            count=value["kv_bytes"],
            content=f"{rings}; {config.block_n} rows a slot.",
            live="per slot from its full to its empty barrier",
        ),
    )


def _rows(config: FA4Config, ring: Ring, v_scales: bool) -> tuple[Wanted, ...]:
    """What there is one of for each row: factors, and scales where there are any."""
    factors = Wanted(
        name="correction_smem",
        element="float",
        count=CORRECTION_BYTES // F32_BYTES,
        content="Factors by which correction rescales O, one a softmax thread.",
        live="from alpha_full to alpha_empty",
    )
    if config.operands.scale is None:
        return (factors,)
    q_scale = Wanted(
        name="q_scale_smem",
        element="float",
        count=config.block_m,
        content="Scales of the query rows.",
        live="from q_scale_full until softmax has them in registers",
    )
    k_scale = Wanted(
        name="k_scale_smem",
        element="float",
        count=config.block_n * ring.k_scale_buffers,
        content=f"{ring.k_scale_buffers} buffers of the scales of a block of keys.",
        live="per buffer from k_scale_full to k_scale_empty",
    )
    if not v_scales:
        return (factors, q_scale, k_scale)
    v_scale = Wanted(
        name="v_scale_smem",
        element="float",
        count=2 * config.block_n * ring.k_scale_buffers,
        content=f"{ring.k_scale_buffers} buffers of logarithms and reciprocals of a block's V scales.",
        live="with the key scales of its block",
    )
    return (factors, q_scale, k_scale, v_scale)


def _nope_bytes(config: FA4Config, ring: Ring) -> int:
    """Of K_nope in a slot: a slot that is shared with V is as wide as the wider of the two."""
    separate = ring.kind is KvRing.SEPARATE
    width = config.padded_nope_depth if separate else config.shared_kv_cols
    return config.block_n * width * config.operands.qkv_bytes


def _rope_bytes(config: FA4Config) -> int:
    return config.block_n * config.padded_rope_depth * config.operands.rope_bytes


def _v_ring_bytes(config: FA4Config, ring: Ring) -> int:
    return ring.stages * _v_bytes(config) if ring.kind is KvRing.SEPARATE else 0


def _v_bytes(config: FA4Config) -> int:
    return config.block_n * config.padded_ov_depth * config.operands.qkv_bytes


def _kv_regions(config: FA4Config, ring: Ring, start: int) -> tuple[Region, ...]:
    nope, rope = _nope_bytes(config, ring), _rope_bytes(config)
    if ring.kind is KvRing.SEPARATE:
        stage = nope + rope
        return (
            _slots(config, "k_nope", start, nope, ring.stages, stage, "k"),
            *_rope(config, start + nope, ring.stages, stage, "with the K_nope of its slot"),
            _slots(config, "v", start + ring.stages * stage, _v_bytes(config), ring.stages, 0, "v"),
        )
    live = "from kv_full to kv_empty of the slot that holds its K_nope"
    return (
        _slots(config, "kv_nope", start, nope, ring.stages, nope, "kv"),
        *_rope(config, start + ring.stages * nope, ring.rope_buffers, rope, live),
    )


def _slots(
    config: FA4Config, name: str, offset: int, size: int, count: int, stride: int, barrier: str
) -> Region:
    what = {"k_nope": "K_nope", "v": "V", "kv_nope": "K_nope or V"}[name]
    return Region(
        name=name,
        field="kv_smem",
        offset_bytes=offset,
        size_bytes=size,
        count=count,
        stride_bytes=stride or size,
        swizzle_bytes=config.operands.qkv_swizzle_bytes,
        content=f"{what}, {config.block_n} rows",
        live=f"from {barrier}_full to {barrier}_empty",
    )


def _rope(config: FA4Config, offset: int, count: int, stride: int, live: str) -> tuple[Region, ...]:
    size = _rope_bytes(config)
    if size == 0 or count == 0:
        return ()
    region = Region(
        name="k_rope",
        field="kv_smem",
        offset_bytes=offset,
        size_bytes=size,
        count=count,
        stride_bytes=stride,
        swizzle_bytes=config.operands.rope_swizzle_bytes,
        content=f"K_rope, {config.block_n} rows",
        live=live,
    )
    return (region,)
