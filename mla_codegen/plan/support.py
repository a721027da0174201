"""What this version's planner makes kernels for; everything else that a spec can say is refused here, with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_codegen.errors import Diagnostic

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

ARCHES = ("sm_90a",)
DIMS = {"nope": 128, "rope": 64, "v": 128}


def unsupported(spec: Spec) -> tuple[Diagnostic, ...]:
    """Every field of the spec that no kernel can be planned for yet; empty where the planner can go on."""
    return tuple(_faults(spec))


def _faults(spec: Spec) -> Iterator[Diagnostic]:
    if spec.arch not in ARCHES:
        yield _fault("arch", spec.arch, "sm_90a")
    yield from _dtype_faults(spec)
    for name, allowed in DIMS.items():
        found = getattr(spec.dims, name)
        if found != allowed:
            yield _fault(f"dims.{name}", found, allowed)
    if spec.heads.group != 1:
        yield _fault("heads.group", spec.heads.group, 1)
    if spec.heads.q != "any":
        yield _fault("heads.q", spec.heads.q, "any")
    if spec.mask not in ("full", "causal"):
        yield _fault("mask", spec.mask.model_dump(mode="json"), "full and causal")
    yield from _layout_faults(spec)
    yield from _schedule_faults(spec)


def _dtype_faults(spec: Spec) -> Iterator[Diagnostic]:
    dtypes, scales = spec.dtypes, spec.scales
    if dtypes.qkv not in ("e4m3", "bf16"):
        yield _fault("dtypes.qkv", dtypes.qkv, "e4m3 and bf16")
        return
    if dtypes.p not in ("auto", dtypes.qkv):
        yield _fault("dtypes.p", dtypes.p, f"auto and {dtypes.qkv}")
    for name in ("rope_gmem", "rope_mma"):
        if getattr(dtypes, name) != "bf16":
            yield _fault(f"dtypes.{name}", getattr(dtypes, name), "bf16")
    if dtypes.out not in ("bf16", "f32"):
        yield _fault("dtypes.out", dtypes.out, "bf16 and f32")
    if dtypes.qkv == "e4m3":
        for name in ("q", "k"):
            if getattr(scales, name) != "token":
                yield _fault(f"scales.{name}", getattr(scales, name), "token (with qkv e4m3)")
        if scales.v != "none":
            yield _fault("scales.v", scales.v, "none")
        if scales.rope not in ("prescaled", None):
            yield _fault("scales.rope", scales.rope, "prescaled")
    if scales.rope_k != "none":
        yield _fault("scales.rope_k", scales.rope_k, "none")


def _layout_faults(spec: Spec) -> Iterator[Diagnostic]:
    layout, softmax = spec.layout, spec.softmax
    if layout.q != "ragged":
        yield _fault("layout.q", layout.q, "ragged")
    if layout.kv != "ragged":
        yield _fault("layout.kv", layout.kv if isinstance(layout.kv, str) else "{paged: ...}", "ragged")
    if layout.rope is not None:
        yield _fault("layout.rope", "{paged: ...}", "null")
    if layout.v != "rows":
        yield _fault("layout.v", layout.v, "rows")
    if softmax.lse != "none":
        yield _fault("softmax.lse", softmax.lse, "none")
    if softmax.variant not in ("auto", "online"):
        yield _fault("softmax.variant", softmax.variant, "auto and online")
    if softmax.sink:
        yield _fault("softmax.sink", "true", "false")
    if softmax.softcap is not None:
        yield _fault("softmax.softcap", softmax.softcap, "null")
    if spec.smem.layout != "auto":
        yield _fault("smem.layout", spec.smem.layout, "auto (seed is for sm_100a)")
    if spec.accumulation.flush_blocks != "auto":
        yield _fault("accumulation.flush_blocks", spec.accumulation.flush_blocks, "auto")


def _schedule_faults(spec: Spec) -> Iterator[Diagnostic]:
    pipeline, schedule = spec.pipeline, spec.schedule
    if pipeline.qk_stages != 1:
        yield _fault("pipeline.qk_stages", pipeline.qk_stages, 1)
    if pipeline.pv_stages not in ("auto", 1):
        yield _fault("pipeline.pv_stages", pipeline.pv_stages, "auto and 1")
    if pipeline.kv_ring not in ("auto", "separate"):
        yield _fault("pipeline.kv_ring", pipeline.kv_ring, "auto and separate")
    if schedule.order not in ("auto", "turns"):
        yield _fault("schedule.order", schedule.order, "auto and turns")
    if schedule.transpose_warps not in ("auto", 3):
        yield _fault("schedule.transpose_warps", schedule.transpose_warps, "auto and 3")
    if schedule.persistent not in ("auto", False):
        yield _fault("schedule.persistent", "true", "auto and false")
    if schedule.longest_first not in ("auto", True):
        yield _fault("schedule.longest_first", "false", "auto and true")


def _fault(field: str, found: object, allowed: object) -> Diagnostic:
    return Diagnostic(
        code="unsupported",
        field=field,
        message=f"{field} is {found}, this version makes kernels for {allowed}",
        help=f"set {field} to {allowed}" if "and" not in str(allowed) else f"choose one of {allowed}",
    )
