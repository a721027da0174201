"""What the kernels of a spec have been validated by: ``validated`` in plan.json."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

_EVERYWHERE = ("ptxas", "emulator")
_HARDWARE_SCALES = {"e4m3": ("token", "token", "none", "prescaled"), "bf16": ("none", "none", "none", None)}
"""Scales of q, k and v and the convention of rope that have been run on a GPU, by the type of qkv."""

_HARDWARE_DIMS = (128, 64, 128)
"""Widths of nope, rope and v that have been run on a GPU; layouts are ragged, with V in rows."""

_TUNED = (
    "tile.block_m",
    "tile.block_n",
    "pipeline.kv_stages",
    "pipeline.v_stages",
    "pipeline.v_raw_stages",
    "schedule.consumers",
    "softmax.variant",
    "accumulation.flush_blocks",
)
"""Fields of which only what auto chooses has been run on a GPU."""


def validated(spec: Spec) -> tuple[str, ...]:
    """ptxas and the emulator for every plan; hardware where kernels of the same features ran on a GPU."""
    return (*_EVERYWHERE, "hardware") if _ran_on_hardware(spec) else _EVERYWHERE


def _ran_on_hardware(spec: Spec) -> bool:
    dtypes, dims, scales, layout = spec.dtypes, spec.dims, spec.scales, spec.layout
    return (
        spec.arch == "sm_90a"
        and (dtypes.rope_gmem, dtypes.rope_mma) == ("bf16", "bf16")
        and dtypes.out in ("bf16", "f32")
        and (dims.nope, dims.rope, dims.v) == _HARDWARE_DIMS
        and (layout.q, layout.kv, layout.v) == ("ragged", "ragged", "rows")
        and (scales.q, scales.k, scales.v, scales.rope) == _HARDWARE_SCALES.get(dtypes.qkv)
        and (spec.heads.q, spec.heads.group) == ("any", 1)
        and spec.softmax.lse == "none"
        and all(attrgetter(field)(spec) == "auto" for field in _TUNED)
    )
