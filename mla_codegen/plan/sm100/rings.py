"""Rings of K, V, rope and scales: how deep, what their copies bring, and in which steps they are read."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, FA4Config, KvRing, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBytes:
    """Bytes of 128 rows of Q with rope, of rope alone, of scales; of a block of K_nope, K_rope, scales and V.

    The seed copies scales in bulk, as boxes of a map of two dimensions; here the load warp carries them, from
    any stride and alignment, so that no barrier counts their bytes.
    """

    q_half: int
    q_rope: int
    q_scale: int
    k_nope: int
    k_rope: int
    k_scale: int
    v: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How deep the rings are: ``stages`` slots (of each ring where there are two) and the buffers beside."""

    kind: KvRing
    stages: int
    rope_buffers: int
    k_scale_buffers: int


def solved_ring(config: FA4Config) -> Ring:
    """The ring that the parity rule chose."""
    return Ring(
        kind=config.kv_ring,
        stages=config.num_kv_stages,
        rope_buffers=config.num_rope_buffers,
        k_scale_buffers=config.num_k_scale_buffers,
    )


def shallower(config: FA4Config, ring: Ring) -> Ring:
    """The same with a slot less (of each ring where there are two), and as many buffers as that needs."""
    stages = ring.stages - 1
    keys = stages if ring.kind is KvRing.SEPARATE else ceil_div(stages, 2)
    return Ring(
        kind=ring.kind,
        stages=stages,
        rope_buffers=min(ring.rope_buffers, keys),
        k_scale_buffers=min(ring.k_scale_buffers, keys),
    )


def copy_bytes(config: FA4Config) -> CopyBytes:
    """Whole boxes: a copy counts its whole box, whatever of it lies beyond the tensor."""
    operands = config.operands
    rope = DTYPES[operands.rope_gmem].bytes * config.padded_rope_depth
    return CopyBytes(
        q_half=Q_TILE_ROWS * config.padded_nope_depth * operands.qkv_bytes + Q_TILE_ROWS * rope,
        q_rope=Q_TILE_ROWS * rope,
        q_scale=Q_TILE_ROWS * operands.scale_bytes,
        k_nope=config.block_n * config.padded_nope_depth * operands.qkv_bytes,
        k_rope=config.block_n * rope,
        k_scale=config.block_n * operands.scale_bytes,
        v=config.block_n * config.padded_ov_depth * operands.qkv_bytes,
    )


def converter_stages(config: FA4Config, ring: Ring) -> int:
    """Rope buffers between the copy and the converter: at least one, with separate rings one for each K.

    The seed takes the number of rope buffers, which is 0 with separate rings.
    """
    if not config.operands.converts_rope or config.rope_depth == 0:
        return 0
    return ring.rope_buffers or ring.stages


def q_tx_bytes(config: FA4Config, *, guards: bool = True) -> int:
    """Of half of Q, without rope that is to be converted; the seed copies its scales along."""
    tx = copy_bytes(config)
    rope = tx.q_rope if guards and config.operands.converts_rope else 0
    return tx.q_half - rope + (0 if guards else tx.q_scale)


def k_tx_bytes(config: FA4Config, *, guards: bool = True) -> int:
    """Of a block of K, without rope that is to be converted; the seed copies its scales along."""
    tx = copy_bytes(config)
    rope = 0 if guards and config.operands.converts_rope else tx.k_rope
    return tx.k_nope + rope + (0 if guards else tx.k_scale)


def scale_readers(config: FA4Config) -> int:
    """Softmax warpgroups that read each block's key scales: both halves of Q do, else one warpgroup does."""
    return 2 if config.num_q == 2 else 1


def scale_step(config: FA4Config) -> int:
    """Buffers from one block of keys of a softmax warpgroup to its next.

    1 where it sees every block (2Q, or a single O, where warpgroup 0 takes them all), 2 where it sees every
    second one. The seed takes 2 for every 1Q, which reads wrong scales with a single O.
    """
    return 2 if config.num_q == 1 and not config.single_o else 1
