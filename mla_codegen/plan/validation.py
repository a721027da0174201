"""What the kernels of a spec have been validated by: ``validated`` in plan.json."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

_EVERYWHERE = ("ptxas", "emulator")
_HARDWARE_ARCH = "sm_90a"
"""Every two values of dtypes, scales, layouts, masks, groups and outputs have met in a kernel on a GPU."""
_HARDWARE_DIMS = (
    (128, 64, 128),
    (192, 64, 256),
    (176, 32, 144),
    (80, 48, 112),
    (64, 0, 64),
    (16, 16, 16),
)
"""Widths of nope, rope and v of these kernels; others are padded, cut and fitted by the same rules."""
_TUNED = (
    "tile.block_m",
    "tile.block_n",
    "pipeline.kv_stages",
    "pipeline.v_stages",
    "pipeline.v_raw_stages",
    "schedule.consumers",
    "accumulation.flush_blocks",
)
"""Fields of which only what auto chooses has been run on a GPU."""


def validated(spec: Spec) -> tuple[str, ...]:
    """ptxas and the emulator for every plan; hardware where kernels of the same features ran on a GPU."""
    return (*_EVERYWHERE, "hardware") if _ran_on_hardware(spec) else _EVERYWHERE


def _ran_on_hardware(spec: Spec) -> bool:
    dims = spec.dims
    return (
        spec.arch == _HARDWARE_ARCH
        and (dims.nope, dims.rope, dims.v) in _HARDWARE_DIMS
        and all(attrgetter(field)(spec) == "auto" for field in _TUNED)
    )
