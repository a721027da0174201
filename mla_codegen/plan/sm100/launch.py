"""1Q or 2Q, for a launch and inside of one, and what a launch asks for.

The rule looks at the configuration, the declared largest query length and the sequence itself, so that the
bits of a row do not depend on the rest of its batch: a launch is 1Q where every sequence would be, and a CTA
of a 2Q launch turns to 1Q by the rows that its own sequence has left. A row gets the same body either way.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, ceil_div
from mla_codegen.plan.sm100.mla import MLAConfig

B200_SMS = 148
"""Multiprocessors of a B200 (NVIDIA Blackwell data sheet); nothing depends on it while a CTA has one head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Launch:
    """What a launch asks for; ``smem_bytes`` is the largest struct of the bodies that may run."""

    threads: int
    smem_bytes: int
    tmem_cols: int
    block_m: int
    launch_registers: int


def bodies(config: MLAConfig, *, unknown_mask: bool = False) -> tuple[int, ...]:
    """num_q of every body that may run, the one of long sequences first.

    ``unknown_mask``: which blocks of keys a mask hides is known at run time only, which the 1Q body, whose
    warpgroups take turns at the blocks, cannot use.
    """
    if config.num_q == 2 and not unknown_mask and config.can_switch_to_1q():
        return (2, 1)
    return (config.num_q,)


def launch_num_q(config: MLAConfig, *, max_seqlen_q: int, unknown_mask: bool = False) -> int:
    """1 where no sequence can have more query rows than one 1Q tile, as far as the bodies allow."""
    return _pick(bodies(config, unknown_mask=unknown_mask), max_seqlen_q)


def body_num_q(config: MLAConfig, *, rows_left: int, unknown_mask: bool = False) -> int:
    """What a CTA runs that starts ``rows_left`` rows before the end of its sequence.

    A 2Q body then never has an empty second half where 1Q exists.
    """
    return _pick(bodies(config, unknown_mask=unknown_mask), rows_left)


def query_tiles(config: MLAConfig, *, max_seqlen_q: int, unknown_mask: bool = False) -> int:
    """CTAs of one head of the longest sequence."""
    num_q = launch_num_q(config, max_seqlen_q=max_seqlen_q, unknown_mask=unknown_mask)
    return ceil_div(max_seqlen_q, Q_TILE_ROWS * num_q)


def plan_launch(
    config: MLAConfig, *, smem_bytes: tuple[int, ...], tmem_cols: tuple[int, ...], limits: ArchLimits
) -> Sm100Launch:
    """``smem_bytes`` and ``tmem_cols`` of each body."""
    registers = limits.launch_cap_regs(config.num_threads)
    return Sm100Launch(
        threads=config.num_threads,
        smem_bytes=max(smem_bytes),
        tmem_cols=max(tmem_cols),
        block_m=config.fa4.block_m,
        launch_registers=registers - registers % limits.setmaxnreg_step_regs,
    )


def _pick(choices: tuple[int, ...], rows: int) -> int:
    return 1 if 1 in choices and rows <= Q_TILE_ROWS else choices[0]
