"""Where the output is put together before it is stored: over Q, in as many passes as Q's bytes allow.

The seed stages the whole output over Q and checks nowhere that it fits; for its DeepSeek types it does to the
byte. Here each writer has its share of Q's bytes, and columns that do not fit wait for the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import Region
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, FA4Config, align_down, align_up, ceil_div

UNIT_BYTES = 16
"""What a thread stores of a row at a time (PTX ISA, st.v4 of 32 bits)."""


def o_group_cols(config: FA4Config, out_bytes: int) -> int:
    """Columns of O that a thread has in registers at a time: at most 32, whole groups in a row.

    A writer of 1Q, which has half of the Q of 128 rows to stage them in, has room for one group.
    """
    row_bytes = config.q_row_bytes // 2
    return next(cols for cols in (32, 16, 8) if config.ov_depth % cols == 0 and cols * out_bytes <= row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStaging:
    """``writers`` softmax warpgroups write ``writer_cols`` columns each, of 128 rows, in ``passes`` passes.

    A pass takes ``pass_cols`` columns, a multiple of the ``block_cols`` that a thread reads of O at a time;
    writer w has the ``writer_bytes`` bytes of ``q_smem`` from ``w * writer_bytes`` on.
    """

    writers: int
    writer_cols: int
    writer_bytes: int
    pass_cols: int
    passes: int
    block_cols: int


def plan_staging(config: FA4Config, *, out_bytes: int) -> OutputStaging:
    """``out_bytes`` of one output element.

    2Q: each warpgroup stores its half of the rows. 1Q: both store the same rows, half of the columns each. A
    single O: warpgroup 0 stores everything.
    """
    writers = 1 if config.single_o else 2
    halves_columns = config.num_q == 1 and writers == 2
    columns = ceil_div(config.ov_depth, 2) if halves_columns else config.ov_depth
    block_cols = o_group_cols(config, out_bytes)
    there = config.block_m * config.q_row_bytes // writers
    pass_cols = align_down(min(there // (Q_TILE_ROWS * out_bytes), align_up(columns, block_cols)), block_cols)
    assert pass_cols > 0, f"{there} bytes of Q hold no column block of {Q_TILE_ROWS} rows"
    return OutputStaging(
        writers=writers,
        writer_cols=columns,
        writer_bytes=there,
        pass_cols=pass_cols,
        passes=ceil_div(columns, pass_cols),
        block_cols=block_cols,
    )


def staging_region(staging: OutputStaging, *, q_offset_bytes: int, out_bytes: int) -> Region:
    """The part of ``MLASmemStorage`` that this takes."""
    return Region(
        name="o",
        field="q_smem",
        offset_bytes=q_offset_bytes,
        size_bytes=Q_TILE_ROWS * staging.pass_cols * out_bytes,
        count=staging.writers,
        stride_bytes=staging.writer_bytes,
        swizzle_bytes=0,
        content=f"{staging.pass_cols} columns of 128 rows, 16-byte units XORed by row",
        live="after the last o_full: the last Q*K was issued before the last P*V, so that Q is dead",
        alias_of="q_smem",
    )
