"""The seed's struct, field for field: one ring whose slots hold K_nope or V, and one buffer of key scales."""

from __future__ import annotations

from mla_codegen.plan.model import Region, SeedConstant
from mla_codegen.plan.sm100.attention import (
    MBARRIER_BYTES,
    NUM_QK_STAGES,
    FA4Config,
    KvRing,
    align_up,
)
from mla_codegen.plan.sm100.barriers import MOST_MBARRIERS, count, plan_mbarriers
from mla_codegen.plan.sm100.mla import NUM_CORRECTION_COLS
from mla_codegen.plan.sm100.rings import Ring
from mla_codegen.plan.sm100.storage import Storage, Wanted, field, fits, place, q_regions, tail_fields

F32_BYTES = 4


def unified_ring(config: FA4Config, stages: int) -> Ring:
    """The literal struct's ring: a rope buffer for each slot, one buffer of key scales for all."""
    scales = 0 if config.operands.scale is None else 1
    return Ring(kind=KvRing.UNIFIED, stages=stages, rope_buffers=stages, k_scale_buffers=scales)


def unified_mbars(config: FA4Config, stages: int, *, guards: bool = False) -> int:
    """num_mbars with this ring: the seed has 13 + 2 stages in 2Q and 12 + 2 stages in 1Q.

    With ``guards`` those are counted too that the project adds.
    """
    return count(plan_mbarriers(config, unified_ring(config, stages), guards=guards))


def deepest_unified_ring(config: FA4Config, *, guards: bool = False) -> int:
    """Most stages whose literal struct fits, and for which there are barriers; 0 where none does."""
    assert config.block_n, "a ring needs a block of keys"
    stages = 0
    while fits(_with_stages(config, stages + 1, guards=guards)) and (
        unified_mbars(config, stages + 1, guards=guards) <= MOST_MBARRIERS
    ):
        stages += 1
    return stages


def _with_stages(config: FA4Config, stages: int, *, guards: bool) -> Storage:
    return seed_storage(config, stages=stages, num_mbars=unified_mbars(config, stages, guards=guards))


def seed_storage(config: FA4Config, *, stages: int, num_mbars: int) -> Storage:
    """The literal struct with a ring of ``stages`` and ``num_mbars`` barriers, whether or not it fits.

    Widths are unpadded where the seed's are, and the scales are fp32 and there for every type of operands.
    """
    constants = seed_constants(config, stages)
    value = {constant.name: constant.value for constant in constants}
    wanted = (*_tile_fields(value), *_row_fields(config, value), *tail_fields(num_mbars))
    smem = place(wanted, constants, config.limits.smem_per_cta_bytes)
    return Storage(
        layout="seed",
        smem=smem,
        regions=(*_q_regions(config), *_kv_regions(config, stages, field(smem, "kv_smem").offset_bytes)),
        seed_sizeof_bytes=align_up(smem.used_bytes, MBARRIER_BYTES),
    )


def seed_constants(config: FA4Config, stages: int) -> tuple[SeedConstant, ...]:
    """The ten constants of the seed's struct, by its formulas."""
    operands, slots = config.operands, stages * NUM_QK_STAGES
    q_nope = config.block_m * config.nope_depth * operands.qkv_bytes
    q_rope = config.block_m * config.rope_depth * operands.rope_bytes
    kv_nope = config.shared_kv_cols * config.block_n * operands.qkv_bytes * slots
    kv_rope = config.rope_depth * config.block_n * operands.rope_bytes * slots
    factors = config.block_m * NUM_CORRECTION_COLS
    rows: tuple[tuple[str, int, str, str | None], ...] = (
        ("q_nope_bytes", q_nope, "BM * nope_depth * sizeof(qkv)", None),
        ("q_rope_bytes", q_rope, "BM * rope_depth * sizeof(rope)", None),
        ("q_bytes", q_nope + q_rope, "q_nope_bytes + q_rope_bytes", "q_smem"),
        ("num_kv_stages", slots, "num_kv_stages * num_qk_stages of the configuration", None),
        ("kv_nope_bytes", kv_nope, "shared_kv_cols * BN * sizeof(qkv) * num_kv_stages", None),
        ("kv_rope_bytes", kv_rope, "rope_depth * BN * sizeof(rope) * num_kv_stages", None),
        ("kv_bytes", kv_nope + kv_rope, "kv_nope_bytes + kv_rope_bytes", "kv_smem"),
        ("q_scale_bytes", config.block_m * F32_BYTES, "BM * sizeof(f32)", "q_scale_smem"),
        ("k_scale_bytes", config.block_n * F32_BYTES, "BN * sizeof(f32)", "k_scale_smem"),
        ("correction_smem_size", factors, "BM * num_correction_cols, elements", None),
    )
    return tuple(
        SeedConstant(name=name, value=value, comment=comment, field=field_name)
        for name, value, comment, field_name in rows
    )


def _tile_fields(value: dict[str, int]) -> tuple[Wanted, ...]:
    """Q and the ring; ``value`` are the constants."""
    return (
        Wanted(
            name="q_smem",
            element="u8",
            count=value["q_bytes"],
            content="Q_nope and Q_rope, BM rows.",
            live="from the first full barrier to the last Q*K",
        ),
        Wanted(
            name="kv_smem",
            element="u8",
            count=value["kv_bytes"],
            content="Ring of K_nope or V, then a ring of K_rope; BN rows a slot.",
            live="per slot from kv_full to kv_empty",
        ),
    )


def _row_fields(config: FA4Config, value: dict[str, int]) -> tuple[Wanted, ...]:
    """Scales and factors."""
    return (
        Wanted(
            name="q_scale_smem",
            element="float",
            count=config.block_m,
            content="Scales of the query rows.",
            live="from q_scale_full until softmax has them in registers",
        ),
        Wanted(
            name="k_scale_smem",
            element="float",
            count=config.block_n,
            content="Scales of one block of keys.",
            live="from k_scale_full to k_scale_empty",
        ),
        Wanted(
            name="correction_smem",
            element="float",
            count=value["correction_smem_size"],
            content="Factors by which correction rescales O, one a query row.",
            live="from alpha_full to alpha_empty",
        ),
    )


def _q_regions(config: FA4Config) -> tuple[Region, ...]:
    """The halves of Q one behind the other, each a tile of nope and a tile of rope."""
    operands, rows = config.operands, config.block_m // config.num_q
    return q_regions(
        halves=config.num_q,
        rows=rows,
        nope_bytes=rows * config.nope_depth * operands.qkv_bytes,
        rope_bytes=rows * config.rope_depth * operands.rope_bytes,
        swizzles=(operands.qkv_swizzle_bytes, operands.rope_swizzle_bytes),
    )


def _kv_regions(config: FA4Config, stages: int, kv_offset: int) -> tuple[Region, ...]:
    """The ring of K_nope and V, then the ring of K_rope where there is any."""
    operands = config.operands
    slot = config.shared_kv_cols * config.block_n * operands.qkv_bytes
    rope = config.rope_depth * config.block_n * operands.rope_bytes
    nope_region = Region(
        name="kv_nope",
        field="kv_smem",
        offset_bytes=kv_offset,
        size_bytes=slot,
        count=stages,
        stride_bytes=slot,
        swizzle_bytes=operands.qkv_swizzle_bytes,
        content=f"K_nope or V, {config.block_n} rows",
        live="from kv_full to kv_empty",
    )
    rope_region = Region(
        name="k_rope",
        field="kv_smem",
        offset_bytes=kv_offset + stages * slot,
        size_bytes=rope,
        count=stages,
        stride_bytes=rope,
        swizzle_bytes=operands.rope_swizzle_bytes,
        content=f"K_rope, {config.block_n} rows; unused where the slot holds V",
        live="with its slot",
    )
    return (nope_region, rope_region) if rope else (nope_region,)
