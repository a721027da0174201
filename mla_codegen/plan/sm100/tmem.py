"""Columns of tensor memory: what lies where, what overlays what, and while each of it is live."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.plan.model import TmemMap, TmemRegion
from mla_codegen.plan.sm100.attention import FA4Config, ceil_div
from mla_codegen.plan.sm100.barriers import FULL_O, FULL_S, P_READY

STATE_COLS = 2
"""Row maximum and row sum of a softmax warpgroup, one fp32 each."""


def plan_tmem(config: FA4Config) -> TmemMap:
    """The map for this configuration; the seed, attention configuration and its map for DeepSeek."""
    return TmemMap(
        regions=tuple(_regions(config)),
        used_cols=config.tmem_used_cols,
        alloc_cols=config.limits.tmem_alloc_cols(config.tmem_used_cols),
        limit_cols=config.limits.tmem_cols,
    )


def p_cols(config: FA4Config) -> int:
    """Columns of P, packed into cells of 32 bits: block_n times the bytes of an element over 4."""
    return ceil_div(config.block_n * config.operands.qkv_bytes, config.limits.tmem_cell_bytes)


def _regions(config: FA4Config) -> Iterator[TmemRegion]:
    yield from (_scores(config, side) for side in range(2))
    yield from (_probabilities(config, side) for side in range(2))
    if config.num_q == 1 and not config.single_o:
        yield from (_state(config, side) for side in range(2))
    yield from (_output(config, side) for side in range(1 if config.single_o else 2))


def _scores(config: FA4Config, side: int) -> TmemRegion:
    which = "query half" if config.num_q == 2 else ("even blocks" if side == 0 else "odd blocks")
    of = f"{which} {side}" if config.num_q == 2 else which
    return TmemRegion(
        name=f"s{side}",
        first_col=config.tmem_s[side],
        cols=config.block_n,
        dtype="f32",
        content=f"scores of {of}",
        live=(
            f"from {FULL_S}[{side}] until its softmax warpgroup has them in registers; the next Q*K into "
            f"them is issued behind the P*V that reads p{side}"
        ),
    )


def _probabilities(config: FA4Config, side: int) -> TmemRegion:
    return TmemRegion(
        name=f"p{side}",
        first_col=config.tmem_s[side],
        cols=p_cols(config),
        dtype=config.operands.qkv,
        content=f"probabilities of s{side}, packed",
        live=(f"from {P_READY}{side} to the end of P*V; written once the rows of s{side} are in registers"),
        alias_of=f"s{side}",
    )


def _state(config: FA4Config, side: int) -> TmemRegion:
    return TmemRegion(
        name=f"state{side}",
        first_col=config.tmem_s[side],
        cols=STATE_COLS,
        dtype="f32",
        content=f"row maximum and row sum of softmax warpgroup {side}, for the other one",
        live=f"after the last P*V of the CTA: {FULL_O}[{side}] says that s{side} and p{side} are dead",
        alias_of=f"s{side}",
    )


def _output(config: FA4Config, side: int) -> TmemRegion:
    both = "both sides" if config.single_o else f"side {side}"
    return TmemRegion(
        name=f"o{side}",
        first_col=config.tmem_o[side],
        cols=config.padded_ov_depth,
        dtype="f32",
        content=f"output accumulator of {both}",
        live=f"from the first P*V to the output; read and rescaled after {FULL_O}[{side}]",
    )
