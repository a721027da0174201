"""Spec -> Plan: tiles, shared memory, barriers, roles, tensor maps, constants, checks, in this order."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from mla_codegen import digest
from mla_codegen.arch import ARCHS, ArchLimits
from mla_codegen.errors import Diagnostic, PlanError
from mla_codegen.plan import barriers, call, checks, constants, mma, roles, smem, text, tma
from mla_codegen.plan.choices import tile_choices
from mla_codegen.plan.model import (
    PLAN_SCHEMA,
    Argument,
    Features,
    HeadNames,
    Launch,
    Partials,
    Plan,
    PRounding,
    Smem,
    Variant,
    VLoad,
)
from mla_codegen.plan.support import ARCHES, unsupported
from mla_codegen.plan.tiles import E4M3_LARGEST, LAZY_SUM_GOAL, Tiles, resolve_tiles, smaller
from mla_codegen.plan.v_chunks import v_transposed_chunks
from mla_codegen.plan.validation import validated

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

_TEMPLATE = "sm90_mla_prefill.cu.j2"
_REPORTED_BARRIERS = 16
"""What ptxas reports where the id of a named barrier is computed at run time."""
_SIZE_FIELDS = (
    "pipeline.kv_stages",
    "pipeline.v_stages",
    "pipeline.v_raw_stages",
    "tile.block_n",
    "tile.block_m",
    "schedule.consumers",
)


def make_plan(spec: Spec, *, debug: bool = False) -> Plan:
    """The plan of a spec; the same spec gives the same plan everywhere.

    ``debug`` makes every barrier wait give up after a time limit and report who waited for what. Raises
    PlanError with every diagnostic found, each at the place of its field in the spec's file.
    """
    limits = ARCHS[spec.arch]
    tiles, faults = resolve_tiles(spec)
    refused = unsupported(spec)
    if refused:
        _raise_if(spec, refused + (faults if spec.arch in ARCHES else ()))
    tiles, memory = _fit(spec, tiles, limits)
    asked = _asked(spec)
    faults += roles.register_faults(tiles, limits, asked=asked)
    faults += smem.smem_faults(memory, tiles, arch=spec.arch, asked=asked)
    _raise_if(spec, faults)
    registers = roles.split_registers(tiles, limits)
    arguments = call.plan_arguments(spec)
    variant = _variant(spec, tiles, memory, registers, arguments, debug=debug)
    plan = _plan(spec, tiles, arguments, variant, debug=debug)
    broken = checks.broken_invariants(plan, limits)
    assert not broken, f"the planner broke its own rules: {'; '.join(broken)}"
    return plan


def _fit(spec: Spec, tiles: Tiles, limits: ArchLimits) -> tuple[Tiles, Smem]:
    """The largest of the tiles that ``auto`` may take and that fit, or the smallest of them."""
    while True:
        memory = smem.plan_smem(
            tiles,
            mbarriers=barriers.num_mbars(tiles),
            limit_bytes=limits.smem_per_cta_bytes,
        )
        less = None if smem.fits(memory) else smaller(spec, tiles)
        if less is None:
            return tiles, memory
        tiles = less


def _asked(spec: Spec) -> tuple[str, ...]:
    """The fields that decide about shared memory and registers and that the user set."""
    return tuple(field for field in _SIZE_FIELDS if attrgetter(field)(spec) != "auto")


def _variant(
    spec: Spec,
    tiles: Tiles,
    memory: Smem,
    registers: roles.Registers,
    arguments: tuple[Argument, ...],
    *,
    debug: bool,
) -> Variant:
    qkv, rope, lse = spec.dtypes.qkv, spec.dtypes.rope_mma, spec.softmax.lse
    maps = tma.plan_tensor_maps(tiles, qkv=qkv, rope=rope)
    tx_bytes = tma.tx_bytes(maps)
    mbarriers = barriers.plan_mbarriers(tiles, tx_bytes)
    named = barriers.plan_named_barriers(tiles)
    role_list = roles.plan_roles(tiles, registers)
    chunks = v_transposed_chunks(tiles)
    features = _features(spec, tiles, debug=debug)
    return Variant(
        name="main",
        namespace=f"mla::{spec.name}",
        entry=spec.name,
        features=features,
        partials=_partials(spec, tiles),
        constants=constants.plan_constants(
            tiles, lse=lse, registers=registers, roles=role_list, tx_bytes=tx_bytes, chunks=chunks
        ),
        smem=memory,
        mbarriers=mbarriers,
        num_mbars=barriers.num_mbars(tiles),
        named_barriers=named,
        roles=role_list,
        mma=mma.mma_names(tiles),
        v_load=_v_load(tiles),
        heads=_head_names(features, tiles),
        p_rounding=_p_rounding(tiles, qkv),
        p_conversion="cvt_e4m3x4" if tiles.transposes_v else f"cvt_{tiles.qkv}x2",
        out_conversion="none" if tiles.out == "f32" else f"cvt_{tiles.out}x2",
        v_transposed_chunks=chunks,
        tensor_maps=maps,
        params=call.plan_params(spec, arguments),
        launch=_launch(tiles, memory, registers),
        smem_table=text.smem_table(memory),
        role_table=text.role_table(role_list),
        barrier_table=text.barrier_table(mbarriers, named),
        schedule=text.schedule(tiles),
    )


def _launch(tiles: Tiles, memory: Smem, registers: roles.Registers) -> Launch:
    return Launch(
        threads=roles.num_threads(tiles),
        smem_bytes=memory.sizeof_bytes,
        block_m=tiles.block_m,
        block_n=tiles.block_n,
        grid_y_limit=constants.GRID_Y_LIMIT,
        launch_registers=registers.launch,
        reported_barriers=_REPORTED_BARRIERS,
    )


def _plan(
    spec: Spec, tiles: Tiles, arguments: tuple[Argument, ...], variant: Variant, *, debug: bool
) -> Plan:
    atoms = mma.mma_atoms(tiles)
    mapping = spec.to_mapping()
    return Plan(
        plan_schema=PLAN_SCHEMA,
        name=spec.name,
        arch=spec.arch,
        template=_TEMPLATE,
        spec_digest=digest.short(mapping),
        spec=mapping,
        validated=validated(spec),
        formula=text.formula(spec, tiles),
        choices=tile_choices(spec, tiles),
        arch_guard="defined(__CUDA_ARCH_FEAT_SM90_ALL)",
        arch_guard_message="this source is for sm_90a: compile it with -arch=sm_90a",
        device_primitives=_device_primitives(spec, tiles, debug=debug),
        common_primitives=_common_primitives(tiles),
        mma_families=mma.mma_families(atoms),
        mma_atoms=atoms,
        arguments=arguments,
        variants=(variant,),
    )


def _features(spec: Spec, tiles: Tiles, *, debug: bool) -> Features:
    return Features(
        carries_scales=tiles.scales_rows or tiles.scales_columns,
        scales_rows=tiles.scales_rows,
        scales_columns=tiles.scales_columns,
        q_scale_per_head=tiles.q_scale in ("head", "token_head"),
        folds_k_scale=tiles.folds_k_scale,
        scales_output=tiles.scales_output,
        groups_heads=tiles.group > 1,
        transposes_v=tiles.transposes_v,
        clears_v_tail=not tiles.transposes_v,
        mixed_qk=spec.dtypes.qkv != spec.dtypes.rope_mma,
        lazy_softmax=tiles.lazy_softmax,
        flushes_output=tiles.flush_blocks > 0,
        f32_output=tiles.out == "f32",
        writes_lse=spec.softmax.lse != "none",
        causal=spec.mask == "causal",
        debug=debug,
    )


def _partials(spec: Spec, tiles: Tiles) -> Partials:
    flushing = "_flushing" if tiles.lazy_softmax else ""
    return Partials(
        visible_keys=f"_visible_keys_{spec.mask}.cu.j2",
        helper_warp="_transpose_warp_sm90.cu.j2" if tiles.transposes_v else "_tail_warp_sm90.cu.j2",
        issue_pv="_issue_pv_transposed_sm90.cu.j2" if tiles.transposes_v else "_issue_pv_rows_sm90.cu.j2",
        scores="_scores_scaled.cu.j2" if tiles.scales_columns else "_mask_scores.cu.j2",
        pack_p="_pack_p_e4m3.cu.j2" if tiles.transposes_v else "_pack_p_16bit.cu.j2",
        kv_step="_kv_step_turns_sm90.cu.j2" if tiles.transposes_v else "_kv_step_ping_pong_sm90.cu.j2",
        unmasked_blocks=f"_unmasked_blocks{flushing}.cu.j2",
        softmax_step=f"_softmax_step_{_softmax_step(tiles)}.cu.j2",
        store_output="_store_output_f32.cu.j2" if tiles.out == "f32" else "_store_output_16bit.cu.j2",
    )


def _softmax_step(tiles: Tiles) -> str:
    if tiles.lazy_softmax:
        return "lazy"
    return "flushing" if tiles.flush_blocks else "online"


def _p_rounding(tiles: Tiles, dtype: str) -> PRounding:
    return PRounding(
        dtype=dtype,
        lift_log2=tiles.lift_log2,
        lazy=tiles.lazy_softmax,
        block_n=tiles.block_n,
        group_rows=tiles.block_m // tiles.consumers,
        warp_rows=tiles.block_m // tiles.consumers // barriers.WARPS_PER_WARPGROUP,
        sum_limit=float(E4M3_LARGEST),
        sum_goal=float(LAZY_SUM_GOAL),
    )


def _v_load(tiles: Tiles) -> VLoad:
    ring = "v_raw" if tiles.transposes_v else "v"
    return VLoad(
        full=f"{ring}_full",
        empty=f"{ring}_empty",
        tile=f"{ring}_tile",
        stages="kVRawStages" if tiles.transposes_v else "kVStages",
    )


def _head_names(features: Features, tiles: Tiles) -> HeadNames:
    scaled = (("q_full", tiles.scales_rows), ("k_full", tiles.scales_columns))
    return HeadNames(
        kv_head="tile.kv_head" if features.groups_heads else "tile.head",
        q_scales="q_scales" if features.q_scale_per_head else "params.q_scale",
        scale_arrivals=" and ".join(name for name, carried in scaled if carried),
    )


def _device_primitives(spec: Spec, tiles: Tiles, *, debug: bool) -> tuple[str, ...]:
    """Headers of the primitive layer in a fixed order, only those that the kernel uses."""
    names = ["types", "layout", "thread", "shuffle", "barrier", "mbarrier"]
    names.append("mbarrier_wait_debug" if debug else "mbarrier_wait")
    names += ["fence", "tma", "shared_memory"]
    if tiles.scales_rows:
        names.append("ld_shared_f32")
    if tiles.scales_columns:
        names.append("ld_shared_v2_f32")
    if tiles.scales_rows or tiles.scales_columns:
        names.append("st_shared_f32")
    if {tiles.q_scale, tiles.k_scale, tiles.v_scale} != {"none"}:
        names.append("ld_global_f32")
    names += ["matrix_transpose"] if tiles.transposes_v else ["st_shared_v4_u32"]
    if tiles.flush_blocks:
        names += ["ld_shared_v4_u32", "st_shared_v4_u32", "bits"]
    if tiles.lazy_softmax:
        names.append("vote")
    names += ["ld_global_i32", "st_global_v2_f32" if tiles.out == "f32" else "st_global_v4_u32"]
    if spec.softmax.lse != "none":
        names += ["st_global_f32", "lg2"]
    conversions = {tiles.qkv, *({tiles.out} - {"f32"})}
    if tiles.flush_blocks:
        conversions.add("bf16")
    names += [f"convert_{kind}" for kind in sorted(conversions)]
    names += ["math", "setmaxnreg", "wgmma"]
    return tuple(f"primitives/device/{name}.cuh" for name in names)


def _common_primitives(tiles: Tiles) -> tuple[str, ...]:
    names = ["field_at", "pipeline_state", "matrix_descriptor"] + (["swizzle"] if tiles.transposes_v else [])
    return tuple(f"primitives/common/{name}.cuh" for name in names)


def _raise_if(spec: Spec, faults: Iterable[Diagnostic]) -> None:
    located = tuple(spec.locate(fault) for fault in faults)
    if located:
        raise PlanError(located)
