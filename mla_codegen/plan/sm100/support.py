"""What this version's planner makes Blackwell kernels for; what else a spec can say is refused here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.support import must_be

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

LARGEST_BLOCK_N = 128
"""A softmax thread has a whole row of S in registers."""
BLOCK_N_STEP = 32
"""Columns of S that it loads in one instruction."""
SCALE_FORMS = ("tensor", "head", "token", "token_head")
KEY_SCALE_FORMS = ("token", "token_head")


def unsupported(spec: Spec) -> tuple[Diagnostic, ...]:
    """Every field of the spec that no kernel can be planned for yet; empty where the planner can go on."""
    return (*_dtype_faults(spec), *_layout_faults(spec), *_pipeline_faults(spec))


def _dtype_faults(spec: Spec) -> Iterator[Diagnostic]:
    dtypes, scales, arch = spec.dtypes, spec.scales, f"with arch {spec.arch}"
    yield from must_be("dtypes.qkv", dtypes.qkv, "e4m3", when=arch)
    if dtypes.qkv != "e4m3":
        return  # what the other types and the scales may be depends on it
    yield from must_be("dtypes.p", dtypes.p, "auto", "e4m3", when=arch)
    yield from must_be("dtypes.rope_gmem", dtypes.rope_gmem, "bf16", when=arch)
    yield from must_be("scales.q", scales.q, *SCALE_FORMS, when=arch)
    yield from must_be("scales.k", scales.k, *KEY_SCALE_FORMS, when=arch)
    yield from must_be("scales.v", scales.v, "none", when=arch)
    if spec.dims.rope:
        yield from must_be("scales.rope", scales.rope, "prescaled", when=arch)
    yield from must_be("scales.rope_k", scales.rope_k, "none", when=arch)


def _layout_faults(spec: Spec) -> Iterator[Diagnostic]:
    layout, softmax, arch = spec.layout, spec.softmax, f"with arch {spec.arch}"
    mask = spec.mask if isinstance(spec.mask, str) else spec.mask.model_dump(mode="json")
    kv = layout.kv if isinstance(layout.kv, str) else layout.kv.model_dump()
    rope = None if layout.rope is None else layout.rope.model_dump()
    yield from must_be("mask", mask, "full", "causal")
    yield from must_be("layout.kv", kv, "ragged", "dense")
    yield from must_be("layout.rope", rope, None)
    yield from must_be("layout.v", layout.v, "rows", when=arch)
    yield from must_be("softmax.variant", softmax.variant, "auto", "lazy", when=arch)
    yield from must_be("softmax.sink", softmax.sink, False)
    yield from must_be("softmax.softcap", softmax.softcap, None)
    yield from must_be("smem.layout", spec.smem.layout, "auto", "seed", when=arch)
    yield from must_be("accumulation.flush_blocks", spec.accumulation.flush_blocks, "auto", when=arch)


def _pipeline_faults(spec: Spec) -> Iterator[Diagnostic]:
    """Block sizes and rings are what the seed's rules say: nothing of them can be asked for."""
    tile, pipeline, schedule, arch = spec.tile, spec.pipeline, spec.schedule, f"with arch {spec.arch}"
    yield from must_be("tile.block_m", tile.block_m, "auto", when=arch)
    yield from must_be("tile.block_n", tile.block_n, "auto", when=arch)
    yield from must_be("pipeline.kv_stages", pipeline.kv_stages, "auto", when=arch)
    yield from must_be("pipeline.qk_stages", pipeline.qk_stages, 1)
    yield from must_be("pipeline.pv_stages", pipeline.pv_stages, "auto", 2, when=arch)
    yield from must_be("pipeline.v_stages", pipeline.v_stages, "auto", when=arch)
    yield from must_be("pipeline.v_raw_stages", pipeline.v_raw_stages, "auto", when=arch)
    yield from must_be("pipeline.kv_ring", pipeline.kv_ring, "auto", when=arch)
    yield from must_be("schedule.consumers", schedule.consumers, "auto", when=arch)
    yield from must_be("schedule.order", schedule.order, "auto", when=arch)
    yield from must_be("schedule.transpose_warps", schedule.transpose_warps, "auto", when=arch)
    yield from must_be("schedule.persistent", schedule.persistent, "auto", False)
    yield from must_be("schedule.longest_first", schedule.longest_first, "auto", True)


def shape_faults(config: MLAConfig) -> tuple[Diagnostic, ...]:
    """What the seed's rules support and the templates do not print yet."""
    fa4 = config.fa4
    faults = []
    if fa4.single_o:
        faults.append(
            Diagnostic(
                code="unsupported",
                field="dims.v",
                message=(
                    f"dims.v is {fa4.ov_depth}, which leaves room for a single O, this version makes kernels "
                    "with two"
                ),
                help="set dims.nope and dims.v to at most 192",
            )
        )
    elif fa4.block_n > LARGEST_BLOCK_N or fa4.block_n % BLOCK_N_STEP:
        allowed = f"a multiple of {BLOCK_N_STEP} up to {LARGEST_BLOCK_N}"
        faults.append(
            Diagnostic(
                code="unsupported",
                field="dims.v",
                message=(
                    f"dims.nope {fa4.nope_depth} and dims.v {fa4.ov_depth} give {fa4.block_n} keys per step, "
                    f"this version makes kernels for {allowed}"
                ),
                help="set dims.nope or dims.v to 128",
            )
        )
    return tuple(faults)
