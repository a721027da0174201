"""Named barriers of a Blackwell kernel: where softmax warpgroups wait for themselves or for each other."""

from __future__ import annotations

from mla_codegen.plan.model import NamedBarrier
from mla_codegen.plan.sm100.attention import FA4Config
from mla_codegen.plan.sm100.barriers import TAIL_WARPS

WARP_THREADS = 32
FIRST_NAMED_BARRIER = 1
"""Id 0 belongs to the whole CTA (PTX ISA, bar)."""


def plan_named_barriers(config: FA4Config, *, softmax_warps: int) -> tuple[NamedBarrier, ...]:
    """In the order of their ids; the seed, epilogue.

    The output is staged by each warp for itself, which needs none.
    """
    both = softmax_warps * WARP_THREADS
    rows = []
    if config.num_q == 1 and not config.single_o:
        rows.append(("state_written", both, "row maxima and sums of both softmax warpgroups can be read"))
    rows.append(("output_read", both, "O has left tensor memory, which warp 0 frees"))
    if config.operands.converts_rope and config.rope_depth:
        rows.append(("rope_read", TAIL_WARPS * WARP_THREADS, "stored rope is in registers"))
    return tuple(
        NamedBarrier(
            name=name,
            id=FIRST_NAMED_BARRIER + index,
            threads=threads,
            comment=f"{threads} threads: {comment}",
        )
        for index, (name, threads, comment) in enumerate(rows)
    )
