"""What the ``auto`` of a Blackwell spec became and why, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen.plan.model import Choice
from mla_codegen.plan.sm100.body import Sm100Kernel
from mla_codegen.plan.sm100.selection import Selection

if TYPE_CHECKING:
    from mla_codegen.spec import Spec


def choices(spec: Spec, selection: Selection, kernel: Sm100Kernel) -> tuple[Choice, ...]:
    """The choices of the body that runs long sequences."""
    body, numbers = kernel.bodies[0], kernel.softmax
    config, ring = body.config, body.ring
    fits = "the deepest that fits in shared memory"
    keys = "as many keys as tensor memory has columns for, beside O"
    if config.bn_cap and not config.single_o:
        keys = "as many keys as softmax has registers for"
    layout = "the rings of the seed's newest kernel"
    parity = f"{config.num_slots} slots of K or V fit: even makes two rings, odd a shared one"
    if spec.smem.layout == "seed":
        parity = "the seed's: slots of K_nope or V, each with one of K_rope"
        keys = "as many keys as tensor memory has columns for, beside O"
    if config.bn_cap and not config.single_o:
        keys = "as many keys as softmax has registers for"
    layout = "the seed's struct, field for field"
    grown = f"the reference point moves where a row has grown by 2^{-numbers.rescale_threshold_log2}"
    rows = (
        ("tile.block_m", config.block_m, f"{selection.rule}: 128 rows for each softmax warpgroup"),
        ("tile.block_n", config.block_n, keys),
        ("pipeline.kv_ring", ring.kind.value, parity),
        ("pipeline.kv_stages", ring.stages, fits),
        ("pipeline.pv_stages", 2, f"P is handed over as {body.pv_parts[0]} and {body.pv_parts[1]} keys"),
        ("dtypes.p", config.operands.qkv, "as qkv"),
        ("softmax.variant", "lazy", grown),
        ("smem.layout", spec.smem.layout, layout),
    )
    return tuple(Choice(field=field, value=str(value), rule=rule) for field, value, rule in rows)
