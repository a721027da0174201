"""What every ``auto`` of a spec became and why, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen.plan.model import Choice
from mla_codegen.plan.tiles import FLUSH_KEYS, Tiles

if TYPE_CHECKING:
    from mla_codegen.spec import Spec


def tile_choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    """What every ``auto`` became and why, once the tiles are final."""
    return (*_block_choices(spec, tiles), *_stage_choices(spec, tiles), *_number_choices(spec, tiles))


def _block_choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    kind = "e4m3" if tiles.fp8 else "16-bit"
    count = "three warpgroups of it fit" if tiles.consumers == 3 else "S, O and P of two fill the registers"
    asked_m = spec.tile.block_m if spec.tile.block_m != "auto" else spec.schedule.consumers
    return (
        Choice(
            field="schedule.consumers",
            value=str(tiles.consumers),
            rule=_rule(asked_m, f"{kind}: {count}"),
        ),
        Choice(
            field="tile.block_m",
            value=str(tiles.block_m),
            rule=_rule(asked_m, "64 rows per consumer warpgroup"),
        ),
        Choice(
            field="tile.block_n",
            value=str(tiles.block_n),
            rule=_rule(spec.tile.block_n, "the widest S that leaves no spill and room for the rings"),
        ),
        Choice(
            field="schedule.order",
            value="turns" if tiles.fp8 else "ping_pong",
            rule=_rule(
                spec.schedule.order,
                "one warpgroup's products at a time in the tensor core"
                if tiles.fp8
                else "softmax runs beside the warpgroup's own P*V",
            ),
        ),
    )


def _number_choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    p_rule = "as qkv" if not tiles.fp8 else "as qkv: flushing O keeps the accuracy contract"
    online = "the lazy one needs more registers than there are"
    lazy = "the reference point moves only where P would leave its range"
    choices = [
        Choice(field="dtypes.p", value=spec.dtypes.qkv, rule=_rule(spec.dtypes.p, p_rule)),
        Choice(
            field="softmax.variant",
            value="lazy" if tiles.lazy_softmax else "online",
            rule=_rule(spec.softmax.variant, lazy if tiles.lazy_softmax else online),
        ),
    ]
    if tiles.flush_blocks:
        choices.append(
            Choice(
                field="accumulation.flush_blocks",
                value=str(tiles.flush_blocks),
                rule=_rule(spec.accumulation.flush_blocks, _flush_rule(tiles)),
            )
        )
    return tuple(choices)


def _flush_rule(tiles: Tiles) -> str:
    if tiles.lazy_softmax:
        return f"{FLUSH_KEYS} keys: V with a mean within 3e-2, whatever the logits"
    return "where the online softmax rescales O"


def _stage_choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    rule = "the deepest rings that fit, up to what still gains speed"
    rows = [("kv_stages", tiles.k_stages), ("v_stages", tiles.v_stages)]
    if tiles.transposes_v:
        rows.append(("v_raw_stages", tiles.v_raw_stages))
    return tuple(
        Choice(field=f"pipeline.{name}", value=str(value), rule=_rule(getattr(spec.pipeline, name), rule))
        for name, value in rows
    )


def _rule(asked: object, rule: str) -> str:
    return rule if asked == "auto" else "as the spec says"
