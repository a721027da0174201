"""Named barriers of a Blackwell kernel: where softmax warpgroups wait for themselves or for each other."""

from __future__ import annotations

from mla_codegen.plan.model import NamedBarrier
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, FA4Config

FIRST_NAMED_BARRIER = 1
"""Id 0 belongs to the whole CTA (PTX ISA, bar)."""


def plan_named_barriers(config: FA4Config) -> tuple[NamedBarrier, ...]:
    """In the order of their ids; the seed, epilogue. With a single O one warpgroup has all rows.

    The output is staged by each warp for itself, which needs none.
    """
    groups = 1 if config.single_o else 2
    both = groups * Q_TILE_ROWS
    rows = []
    if config.num_q == 1 and groups == 2:
        rows.append(("state_written", both, "row maxima and sums of both softmax warpgroups can be read"))
    rows.append(("output_read", both, "O has left tensor memory, which warp 0 frees"))
    return tuple(
        NamedBarrier(
            name=name,
            id=FIRST_NAMED_BARRIER + index,
            threads=threads,
            comment=f"{threads} threads: {comment}",
        )
        for index, (name, threads, comment) in enumerate(rows)
    )
