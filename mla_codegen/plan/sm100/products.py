"""The products of the MMA warp: instruction shape, steps, operands and instruction descriptor."""

from __future__ import annotations

from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.model import Product
from mla_codegen.plan.sm100.attention import FA4Config, KvRing
from mla_codegen.plan.sm100.operands import UMMA_K_BYTES, mma_kind
from mla_codegen.plan.sm100.rings import Ring

_FORMAT = {"f16": 0, "bf16": 1, "e4m3": 0, "e5m2": 1}
"""Codes of A and B in the instruction descriptor, within their kind (PTX ISA, instruction descriptor)."""
_F32_ACCUMULATOR = 1
P_GROUP_KEYS = 32
"""Keys whose P a softmax thread writes in one instruction."""


def plan_products(config: FA4Config, ring: Ring) -> tuple[Product, ...]:
    """Q*K of nope and of rope, which may be one chain, and P*V; the seed, MMA warp.

    Both kinds accumulate in fp32, so that an f8f6f4 chain and an f16 chain add up in the same columns.
    """
    return (*_qk(config, ring), _pv(config, ring))


def fuses_qk(config: FA4Config, ring: Ring) -> bool:
    """Nope and rope in one chain: one type, and K_rope right behind K_nope, as in separate rings only."""
    return config.operands.one_type and ring.kind is KvRing.SEPARATE


def pv_parts(config: FA4Config) -> tuple[int, int]:
    """Keys of the two sub-steps in which P is handed over.

    The seed has 3 to 1 where the steps are a multiple of 4, and says nothing of others; here the second part
    is a quarter of the block, in whole groups of the 32 keys whose P a thread writes at a time.
    """
    groups = config.block_n // P_GROUP_KEYS
    last = max(1, groups // 4) * P_GROUP_KEYS
    return (config.block_n - last, last)


def _qk(config: FA4Config, ring: Ring) -> tuple[Product, ...]:
    k = "k_nope" if ring.kind is KvRing.SEPARATE else "kv_nope"
    qkv, rope = config.operands.qkv, config.operands.rope_mma
    if fuses_qk(config, ring):
        comment = "S = Q K, nope and rope in one"
        return (_k_major("qk", qkv, config, config.padded_qk_depth, ("q_nope", k), True, comment),)
    comment = "S = Q_nope K_nope"
    nope = _k_major("qk_nope", qkv, config, config.padded_nope_depth, ("q_nope", k), True, comment)
    if config.rope_depth == 0:
        return (nope,)
    depth, comment = config.padded_rope_depth, "S += Q_rope K_rope"
    return (nope, _k_major("qk_rope", rope, config, depth, ("q_rope", "k_rope"), False, comment))


def _k_major(
    name: str,
    dtype: str,
    config: FA4Config,
    depth: int,
    operands: tuple[str, str],
    clears: bool,
    comment: str,
) -> Product:
    k = UMMA_K_BYTES // DTYPES[dtype].bytes
    return Product(
        name=name,
        kind=mma_kind(dtype),
        m=config.mma_m,
        n=config.block_n,
        k=k,
        steps=depth // k,
        a=operands[0],
        b=operands[1],
        b_mn_major=False,
        clears=clears,
        instruction_descriptor=instruction_descriptor(dtype, config.mma_m, config.block_n, b_mn_major=False),
        comment=comment,
    )


def _pv(config: FA4Config, ring: Ring) -> Product:
    dtype, n = config.operands.qkv, config.padded_ov_depth
    first, rest = pv_parts(config)
    return Product(
        name="pv",
        kind=mma_kind(dtype),
        m=config.mma_m,
        n=n,
        k=config.operands.mma_k,
        steps=config.block_n // config.operands.mma_k,
        a="p",
        b="v" if ring.kind is KvRing.SEPARATE else "kv_nope",
        b_mn_major=True,
        clears=True,
        instruction_descriptor=instruction_descriptor(dtype, config.mma_m, n, b_mn_major=True),
        comment=f"O += P V: {first} keys, then {rest}; the first block of a CTA overwrites O",
    )


def instruction_descriptor(dtype: str, m: int, n: int, *, b_mn_major: bool) -> int:
    """32 bits (PTX ISA, tcgen05, instruction descriptor of kind::f16 and kind::f8f6f4).

    Bits 4 to 5 accumulator (1: fp32), 7 to 9 type of A, 10 to 12 type of B, 16 B is MN-major, 17 to 22 N / 8,
    24 to 28 M / 16; no sparsity, no negation, A is K-major or in tensor memory.
    """
    code = _FORMAT[dtype]
    bits = _F32_ACCUMULATOR << 4 | code << 7 | code << 10
    return bits | int(b_mn_major) << 16 | (n >> 3) << 17 | (m >> 4) << 24
