"""What this version's planner makes Blackwell kernels for; what else a spec can say is refused here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.sm100.selection import Selection
from mla_codegen.plan.sm100.supported import support_faults
from mla_codegen.plan.support import must_be

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

CONVERTED_ROPE = 64
"""A row of bf16 rope is one swizzle row, of which e4m3 takes half."""
LARGEST_BLOCK_N = 128
"""A softmax thread has a whole row of S in registers."""
LARGEST_SCALED_BLOCK_N = 96
"""The same where it needs the scales of V beside it."""


def unsupported(spec: Spec) -> tuple[Diagnostic, ...]:
    """Every field of the spec that no kernel can be planned for yet; empty where the planner can go on."""
    return (*_dtype_faults(spec), *_layout_faults(spec), *_pipeline_faults(spec))


def _dtype_faults(spec: Spec) -> Iterator[Diagnostic]:
    dtypes, scales, arch = spec.dtypes, spec.scales, f"with arch {spec.arch}"
    yield from must_be("dtypes.p", dtypes.p, "auto", dtypes.qkv, when=arch)
    if spec.smem.layout == "seed":
        when = f"with smem.layout seed and dtypes.rope_gmem {dtypes.rope_gmem}"
        yield from must_be("dtypes.rope_mma", dtypes.rope_mma, dtypes.rope_gmem, when=when)
    elif dtypes.rope_mma != dtypes.rope_gmem and spec.dims.rope > CONVERTED_ROPE:
        yield Diagnostic(
            code="unsupported",
            field="dims.rope",
            message=(
                f"dims.rope is {spec.dims.rope}, this version makes kernels that convert rope for at most "
                f"{CONVERTED_ROPE}"
            ),
            help=f"set dims.rope to at most {CONVERTED_ROPE}, or dtypes.rope_mma: e4m3",
        )
    if spec.smem.layout == "seed":
        when_seed = "with smem.layout seed"
        yield from must_be("scales.v", scales.v, "none", "tensor", "head", when=when_seed)
    if scales.rope is not None:
        yield from must_be("scales.rope", scales.rope, "prescaled", when=arch)


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
    """Keys per step and rings are what the seed's rules say: only 1Q or 2Q can be asked for."""
    tile, pipeline, schedule, arch = spec.tile, spec.pipeline, spec.schedule, f"with arch {spec.arch}"
    yield from must_be("tile.block_m", tile.block_m, "auto", 128, 256, when=arch)
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


def with_narrow_blocks(selection: Selection, *, scales_p: bool) -> Selection:
    """The same with at most as many keys per step as a softmax thread has registers for."""
    largest = LARGEST_SCALED_BLOCK_N if scales_p else LARGEST_BLOCK_N
    if selection.faults or selection.config.fa4.block_n <= largest:
        return selection
    return replace(selection, config=replace(selection.config, bn_cap=largest))


def with_asked_rows(selection: Selection, block_m: int | str) -> Selection:
    """The same with the query rows of ``tile.block_m``: 128 makes a 1Q kernel of what would be 2Q."""
    config = selection.config
    if selection.faults or block_m in ("auto", config.fa4.block_m):
        return selection
    if block_m == config.with_num_q(1).fa4.block_m:
        one_q = config.with_num_q(1)
        return replace(selection, config=one_q, rule="two O, 1Q", faults=support_faults(one_q.fa4))
    fault = Diagnostic(
        code="bad-block-m",
        field="tile.block_m",
        message=f"tile.block_m is {block_m}, allowed with a single O: {config.fa4.block_m}",
        help="set tile.block_m: auto, or dims.nope and dims.v to at most 192",
    )
    return replace(selection, faults=(fault,))
