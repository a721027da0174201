"""Configurations of the Blackwell family that several tests look at."""

from __future__ import annotations

from mla_codegen.arch import ARCHS
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import BLOCKSCALE, PER_TOKEN_SCALE, Operands, generic
from mla_codegen.plan.sm100.selection import Selection, select_mla_prefill_config

LIMITS = ARCHS["sm_100a"]
PTS = PER_TOKEN_SCALE
BF16 = generic("bf16")
E4M3 = generic("e4m3")
OPERANDS = (PTS, BLOCKSCALE, BF16, E4M3)


def config(
    operands: Operands = PTS,
    *,
    nope: int = 128,
    v: int = 128,
    rope: int = 64,
    num_q: int = 2,
    heads: int = 128,
    single_o: bool = False,
    bn_cap: int = 0,
    page_size: int = 0,
) -> MLAConfig:
    """DeepSeek with per-token scales, unless said otherwise."""
    return MLAConfig(
        operands=operands,
        limits=LIMITS,
        num_q_heads=heads,
        group=1,
        depth=nope + rope,
        v_depth=v,
        rope_depth=rope,
        num_q=num_q,
        single_o=single_o,
        bn_cap=bn_cap,
        page_size=page_size,
    )


def select(operands: Operands, *, nope: int, v: int, rope: int = 64, page_size: int = 0) -> Selection:
    """What the selection makes of a shape."""
    return select_mla_prefill_config(
        operands=operands,
        limits=LIMITS,
        num_q_heads=128,
        group=1,
        depth=nope + rope,
        v_depth=v,
        rope_depth=rope,
        page_size=page_size,
    )
