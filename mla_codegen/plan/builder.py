"""Spec -> Plan: tiles, shared memory, registers, barriers, roles, maps, constants, checks, in this order."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from mla_codegen import digest
from mla_codegen.arch import ARCHS, ArchLimits
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
from mla_codegen.plan.primitives import common_primitives, device_primitives
from mla_codegen.plan.registers import (
    Registers,
    num_threads,
    register_faults,
    registers_fit,
    split_registers,
)
from mla_codegen.plan.scales import placed_scales, scale_names, score_factors
from mla_codegen.plan.sm100 import builder as sm100
from mla_codegen.plan.smem_faults import smem_faults
from mla_codegen.plan.support import raise_if, unsupported
from mla_codegen.plan.tiles import (
    E4M3_LARGEST,
    LAZY_SUM_GOAL,
    Tiles,
    fewer_consumers,
    narrower,
    online_instead,
    resolve_tiles,
    shallower,
)
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
    if limits.family == "blackwell":
        return sm100.make_plan(spec, debug=debug)
    tiles, faults = resolve_tiles(spec)
    refused = unsupported(spec)
    if refused:
        raise_if(spec, refused + faults)
    raise_if(spec, faults)  # the tiles are not those asked for: whether they fit says nothing
    tiles, memory = _fit(spec, tiles, limits)
    asked = _asked(spec)
    faults = register_faults(tiles, limits, asked=asked)
    faults += smem_faults(memory, tiles, arch=spec.arch, asked=asked)
    raise_if(spec, faults)
    registers = split_registers(tiles, limits)
    arguments = call.plan_arguments(spec)
    variant = _variant(spec, tiles, memory, registers, arguments, debug=debug)
    plan = _plan(spec, tiles, arguments, variant, debug=debug)
    broken = checks.broken_invariants(plan, limits)
    assert not broken, f"the planner broke its own rules: {'; '.join(broken)}"
    return plan


def _fit(spec: Spec, tiles: Tiles, limits: ArchLimits) -> tuple[Tiles, Smem]:
    """The first of the tiles that ``auto`` may take and that fit, or the last of them."""
    while True:
        memory = smem.plan_smem(
            tiles,
            mbarriers=barriers.num_mbars(tiles),
            limit_bytes=limits.smem_per_cta_bytes,
        )
        smaller_tiles = narrower(spec, tiles) or fewer_consumers(spec, tiles)
        less = None
        if not registers_fit(tiles, limits):
            less = smaller_tiles or online_instead(spec, tiles)
        if less is None and not smem.fits(memory):
            less = shallower(spec, tiles, least=2) or smaller_tiles or shallower(spec, tiles, least=1)
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
    registers: Registers,
    arguments: tuple[Argument, ...],
    *,
    debug: bool,
) -> Variant:
    qkv, rope, lse = spec.dtypes.qkv, spec.dtypes.rope_mma, spec.softmax.lse
    chunks = v_transposed_chunks(tiles)
    maps = tma.plan_tensor_maps(tiles, chunks, qkv=qkv, rope=rope)
    tx_bytes = tma.tx_bytes(maps)
    mbarriers = barriers.plan_mbarriers(tiles, tx_bytes)
    named = barriers.plan_named_barriers(tiles)
    role_list = roles.plan_roles(tiles, registers)
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
        heads=_head_names(tiles),
        scales=scale_names(tiles),
        placed_scales=placed_scales(tiles),
        factors=score_factors(tiles),
        p_rounding=_p_rounding(tiles, qkv),
        p_conversion="cvt_e4m3x4" if tiles.fp8 else f"cvt_{tiles.qkv}x2",
        out_conversion="none" if tiles.out == "f32" else f"cvt_{tiles.out}x2",
        v_transposed_chunks=chunks,
        tensor_maps=maps,
        params=call.plan_params(spec, arguments, runs_of_heads=True),
        launch=_launch(tiles, memory, registers, spec.schedule.persistent),
        smem_table=text.smem_table(memory),
        role_table=text.role_table(role_list),
        barrier_table=text.barrier_table(mbarriers, named),
        schedule=text.schedule(tiles),
    )


def _run_heads(tiles: Tiles, persistent: bool | str) -> int | None:
    """Heads of a CTA, None where the launch decides.

    With one slot of V the tail warp cannot tell by parity whether the slot holds the first block of its head
    or still the last but one of the head before, so that a CTA has one head, whatever is asked for.
    """
    if not tiles.transposes_v and tiles.v_stages == 1:
        return 1
    return {"auto": None, True: constants.LONGEST_RUN, False: 1}[persistent]


def _launch(tiles: Tiles, memory: Smem, registers: Registers, persistent: bool | str) -> Launch:
    return Launch(
        threads=num_threads(tiles),
        smem_bytes=memory.sizeof_bytes,
        block_m=tiles.block_m,
        block_n=tiles.block_n,
        grid_y_limit=constants.GRID_Y_LIMIT,
        run_heads=_run_heads(tiles, persistent),
        longest_run=constants.LONGEST_RUN,
        sms=constants.SMS,
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
        formula=text.formula(spec, lift_log2=tiles.lift_log2, scales_p=tiles.scales_p),
        choices=tile_choices(spec, tiles),
        arch_guard="defined(__CUDA_ARCH_FEAT_SM90_ALL)",
        arch_guard_message="this source is for sm_90a: compile it with -arch=sm_90a",
        device_primitives=device_primitives(spec, tiles, debug=debug),
        common_primitives=common_primitives(tiles),
        mma_families=mma.mma_families(atoms),
        mma_atoms=atoms,
        arguments=arguments,
        variants=(variant,),
    )


def _features(spec: Spec, tiles: Tiles, *, debug: bool) -> Features:
    return Features(
        has_rope=tiles.rope_depth > 0,
        raw_rope=tiles.raw_rope,
        scales_raw_rows=tiles.scales_raw_rows,
        q_dense=tiles.q_dense,
        kv_dense=tiles.kv_dense,
        counts_sequences=tiles.q_dense or tiles.kv_dense or tiles.stored_transposed,
        carries_scales=tiles.scales_rows or tiles.scales_keys,
        scales_rows=tiles.scales_rows,
        scales_columns=tiles.scales_columns,
        scales_scores=tiles.scales_scores,
        scales_keys=tiles.scales_keys,
        folds_k_scale=tiles.folds_k_scale,
        scales_output=tiles.scales_output,
        scales_p=tiles.scales_p,
        groups_heads=tiles.group > 1,
        transposes_v=tiles.transposes_v,
        clears_v_tail=not tiles.transposes_v,
        rereads_factors=tiles.rereads_factors,
        rereads_tile=tiles.rereads_tile,
        renews_q=tiles.renews_q,
        mixed_qk=tiles.rope_depth > 0 and spec.dtypes.qkv != spec.dtypes.rope_mma,
        lazy_softmax=tiles.lazy_softmax,
        lowers_lift=tiles.lazy_softmax and tiles.fp8,
        flushes_output=tiles.flush_blocks > 0,
        f32_output=tiles.out == "f32",
        whole_output_groups=tiles.ov_depth >= 32,
        half_output_group=tiles.ov_depth % 32 != 0,
        writes_lse=spec.softmax.lse != "none",
        causal=spec.mask == "causal",
        debug=debug,
    )


def _partials(spec: Spec, tiles: Tiles) -> Partials:
    blocks = {(True, True): "_flushing", (True, False): "_pairs"}.get((tiles.lazy_softmax, tiles.fp8), "")
    pairs = "_pairs" if tiles.paired_steps else ""
    v = "transposed" if tiles.fp8 else "rows"
    return Partials(
        visible_keys=f"_visible_keys_{spec.mask}.cu.j2",
        copy_tile=f"_copy_tile_{_layouts(tiles)}.cu.j2",
        load_v="_load_v_transposed.cu.j2" if tiles.stored_transposed else "_load_v_rows.cu.j2",
        helper_warp=f"_{_helper_warp(tiles)}_sm90.cu.j2",
        issue_qk=f"_issue_qk_{_issue_qk(tiles)}.cu.j2",
        issue_pv=f"_issue_pv_{v}_sm90.cu.j2",
        scale_scores=_scale_scores(tiles),
        pack_p="_pack_p_e4m3.cu.j2" if tiles.fp8 else "_pack_p_16bit.cu.j2",
        kv_step="_kv_step_turns_sm90.cu.j2" if tiles.fp8 else f"_kv_step_ping_pong{pairs}_sm90.cu.j2",
        unmasked_blocks=f"_unmasked_blocks{blocks}.cu.j2",
        softmax_step=f"_softmax_step_{_softmax_step(tiles)}.cu.j2",
        store_output="_store_output_f32.cu.j2" if tiles.out == "f32" else "_store_output_16bit.cu.j2",
    )


def _layouts(tiles: Tiles) -> str:
    if tiles.q_dense != tiles.kv_dense:
        return "mixed"
    return "dense" if tiles.q_dense else "ragged"


def _helper_warp(tiles: Tiles) -> str:
    if tiles.transposes_v:
        return "transpose_warp"
    return "tail_warp_transposed" if tiles.fp8 else "tail_warp"


def _issue_qk(tiles: Tiles) -> str:
    if tiles.raw_rope:
        return "raw_rope"
    return "rope_first" if tiles.rope_first else "whole"


def _scale_scores(tiles: Tiles) -> str | None:
    """The partial that scales S; None where the factor of softmax has all scales."""
    if not tiles.scales_scores:
        return None
    which = "rows" if tiles.scales_raw_rows else "columns"
    if tiles.scales_columns and tiles.scales_raw_rows:
        which = "both"
    return f"_scale_scores_{which}.cu.j2"


def _softmax_step(tiles: Tiles) -> str:
    if not tiles.flush_blocks:
        return "online"
    return "lazy" if tiles.lazy_softmax else "flushing"


def _p_rounding(tiles: Tiles, dtype: str) -> PRounding:
    return PRounding(
        dtype=dtype,
        lift_log2=tiles.lift_log2,
        lazy=tiles.lazy_softmax and tiles.fp8,
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
        copy=f"cp_async_bulk_tensor_{4 if tiles.kv_dense else 3}d",
    )


def _head_names(tiles: Tiles) -> HeadNames:
    scaled = (("q_full", tiles.scales_rows), ("k_full", tiles.scales_keys))
    return HeadNames(
        kv_head=tiles.kv_head,
        q_begin=text.first_token("query", dense=tiles.q_dense),
        k_begin=text.first_token("key", dense=tiles.kv_dense),
        scale_arrivals=" and ".join(name for name, carried in scaled if carried),
    )
