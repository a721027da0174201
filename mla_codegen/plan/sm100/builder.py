"""Spec -> Plan of a Blackwell kernel: configuration, bodies, names, constants, checks, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen import digest
from mla_codegen.arch import ARCHS
from mla_codegen.plan import call, text
from mla_codegen.plan.constants import GRID_Y_LIMIT
from mla_codegen.plan.model import (
    PLAN_SCHEMA,
    Argument,
    HeadNames,
    Launch,
    Plan,
    PRounding,
    Sm100Body,
    Sm100EntryPartials,
    Sm100Features,
    Sm100Partials,
    Sm100Variant,
    TensorMap,
)
from mla_codegen.plan.scales import placed_scales, scale_names
from mla_codegen.plan.sm100 import names
from mla_codegen.plan.sm100 import text as own_text
from mla_codegen.plan.sm100.attention import KvRing
from mla_codegen.plan.sm100.body import Body, Sm100Kernel, plan_kernel
from mla_codegen.plan.sm100.checks import broken_invariants
from mla_codegen.plan.sm100.choices import choices
from mla_codegen.plan.sm100.constants import body_constants, shared_constants
from mla_codegen.plan.sm100.forms import PER_TOKEN, Forms, forms_of
from mla_codegen.plan.sm100.launch import B200_SMS
from mla_codegen.plan.sm100.operands import Operands
from mla_codegen.plan.sm100.primitives import common_primitives, device_primitives
from mla_codegen.plan.sm100.requests import request_faults
from mla_codegen.plan.sm100.selection import Selection, select_mla_prefill_config
from mla_codegen.plan.sm100.support import unsupported, with_asked_rows, with_narrow_blocks
from mla_codegen.plan.sm100.tma import with_batch_axes
from mla_codegen.plan.support import raise_if
from mla_codegen.plan.validation import validated

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

_TEMPLATE = "sm100_mla_prefill.cu.j2"
_GUARD = "defined(__CUDA_ARCH_FEAT_SM100_ALL) || \\\n      __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 10"
_GUARD_MESSAGE = "this source is for sm_100a, sm_100f and sm_103a: compile it with -arch=sm_100a"


def make_plan(spec: Spec, *, debug: bool) -> Plan:
    """The plan of a spec whose arch is of this family; PlanError with every diagnostic found."""
    raise_if(spec, unsupported(spec))
    selection = _selection(spec)
    raise_if(spec, selection.faults)
    raise_if(spec, request_faults(selection.config, layout=spec.smem.layout))
    forms, arguments = forms_of(spec, debug=debug), call.plan_arguments(spec)
    kernel = plan_kernel(
        selection.config, layout=spec.smem.layout, out=spec.dtypes.out, v_scales=forms.scales_p
    )
    broken = broken_invariants(kernel)
    assert not broken, f"the planner broke its own rules: {'; '.join(broken)}"
    variant = _variant(spec, kernel, forms, arguments)
    return _plan(spec, selection, kernel, forms, arguments, variant)


def _selection(spec: Spec) -> Selection:
    dtypes, dims = spec.dtypes, spec.dims
    scales = spec.scales
    has_scales = (scales.q, scales.k) != ("none", "none") or scales.v in PER_TOKEN
    chosen = select_mla_prefill_config(
        operands=Operands(
            qkv=dtypes.qkv,
            rope_gmem=dtypes.rope_gmem if dims.rope else dtypes.rope_mma,
            rope_mma=dtypes.rope_mma,
            scale=dtypes.scale if has_scales else None,
        ),
        limits=ARCHS[spec.arch],
        num_q_heads=spec.heads.group if spec.heads.q == "any" else spec.heads.q,
        group=spec.heads.group,
        depth=dims.nope + dims.rope,
        v_depth=dims.v,
        rope_depth=dims.rope,
    )
    return with_asked_rows(with_narrow_blocks(chosen, scales_p=scales.v in PER_TOKEN), spec.tile.block_m)


def _plan(
    spec: Spec,
    selection: Selection,
    kernel: Sm100Kernel,
    forms: Forms,
    arguments: tuple[Argument, ...],
    variant: Sm100Variant,
) -> Plan:
    mapping = spec.to_mapping()
    return Plan(
        plan_schema=PLAN_SCHEMA,
        name=spec.name,
        arch=spec.arch,
        template=_TEMPLATE,
        spec_digest=digest.short(mapping),
        spec=mapping,
        validated=validated(spec),
        formula=text.formula(spec, lift_log2=kernel.softmax.p_lift_log2, scales_p=forms.scales_p),
        choices=choices(spec, selection, kernel),
        arch_guard=_GUARD,
        arch_guard_message=_GUARD_MESSAGE,
        device_primitives=device_primitives(
            kernel.config.fa4,
            variant.bodies[0].mma,
            forms,
            o_cols=kernel.bodies[0].staging.block_cols,
            merges=_merges(kernel),
        ),
        common_primitives=common_primitives(kernel.config.fa4),
        mma_families=(),
        mma_atoms=(),
        arguments=arguments,
        variants=(variant,),
    )


def _variant(spec: Spec, kernel: Sm100Kernel, forms: Forms, arguments: tuple[Argument, ...]) -> Sm100Variant:
    config, numbers = kernel.config.fa4, kernel.softmax
    features = _features(kernel.bodies[0], forms)
    heads = _heads(forms)
    return Sm100Variant(
        name="main",
        namespace=f"mla::{spec.name}",
        entry=spec.name,
        features=features,
        partials=Sm100EntryPartials(
            visible_keys=f"_visible_keys_{forms.mask}.cu.j2", run=f"_run_{_run(kernel)}.cu.j2"
        ),
        constants=shared_constants(kernel, forms),
        heads=heads,
        placed_scales=placed_scales(forms),
        p_rounding=PRounding(
            dtype=config.operands.qkv,
            lift_log2=float(numbers.p_lift_log2),
            lazy=False,
            block_n=config.block_n,
            group_rows=config.mma_m,
            warp_rows=32,
            sum_limit=2.0**numbers.largest_p_log2,
            sum_goal=2.0**numbers.largest_p_log2,
        ),
        tensor_maps=_maps(kernel, forms),
        params=call.plan_params(spec, arguments),
        launch=Launch(
            threads=kernel.launch.threads,
            smem_bytes=kernel.launch.smem_bytes,
            block_m=kernel.launch.block_m,
            block_n=config.block_n,
            grid_y_limit=GRID_Y_LIMIT,
            run_heads=1,
            longest_run=1,
            sms=B200_SMS,
            launch_registers=kernel.launch.launch_registers,
            reported_barriers=1 + max(bar.id for body in kernel.bodies for bar in body.named_barriers),
        ),
        bodies=tuple(_body(body, kernel, forms) for body in kernel.bodies),
    )


def _run(kernel: Sm100Kernel) -> str:
    """Which bodies a CTA may run: one, or the one that fits the rows that are left."""
    return "switch" if len(kernel.bodies) > 1 else names.body_name(kernel.bodies[0])


def _shares_factors(body: Body) -> bool:
    """The seed's struct has one factor for each row, where two softmax threads of 1Q have a row each."""
    return body.storage.layout == "seed" and names.body_name(body) == "one_q"


def _merges(kernel: Sm100Kernel) -> bool:
    return any(names.body_name(body) == "one_q" for body in kernel.bodies)


def _maps(kernel: Sm100Kernel, forms: Forms) -> tuple[TensorMap, ...]:
    dense = {"q": forms.q_dense, "k": forms.kv_dense, "v": forms.kv_dense}
    return tuple(with_batch_axes(item) if dense[item.argument[0]] else item for item in kernel.tensor_maps)


def _body(body: Body, kernel: Sm100Kernel, forms: Forms) -> Sm100Body:
    roles, barriers = names.named_roles(body), names.mbarriers(body)
    storage = body.storage
    return Sm100Body(
        name=names.body_name(body),
        title=own_text.title(body),
        features=_features(body, forms),
        partials=_partials(body, forms),
        names=names.words(body, forms),
        heads=_heads(forms),
        scales=scale_names(forms),
        mma=names.product_names(body),
        waits=names.role_texts(roles, "waits_on"),
        signals=names.role_texts(roles, "signals"),
        constants=body_constants(body, kernel, forms, roles),
        smem=storage.smem,
        seed_sizeof_bytes=storage.seed_sizeof_bytes,
        smem_regions=storage.regions,
        regions=names.region_names(storage.regions),
        tmem=body.tmem,
        mbarriers=barriers,
        barrier_accessors=names.barrier_accessors(body),
        num_mbars=body.num_mbars,
        named_barriers=body.named_barriers,
        roles=roles,
        products=body.products,
        smem_table=text.smem_table(storage.smem),
        region_table=own_text.region_table(storage.regions),
        tmem_table=own_text.tmem_table(body.tmem),
        role_table=text.role_table(roles),
        barrier_table=text.barrier_table(barriers, body.named_barriers),
        schedule=own_text.schedule(body),
    )


def _features(body: Body, forms: Forms) -> Sm100Features:
    has_rope = body.config.rope_depth > 0
    return Sm100Features(
        has_rope=has_rope,
        one_ring=body.ring.kind is not KvRing.SEPARATE,
        rope_ring=has_rope and body.ring.kind is KvRing.SHARED,
        converts_rope=names.converts(body),
        scales_rope=forms.k_rope_scale != "none",
        shares_factors=_shares_factors(body),
        q_dense=forms.q_dense,
        kv_dense=forms.kv_dense,
        counts_sequences=forms.q_dense or forms.kv_dense,
        groups_heads=forms.group > 1,
        carries_scales=forms.carries_scales,
        scales_rows=forms.scales_rows,
        scales_columns=forms.scales_columns,
        folds_k_scale=forms.folds_k_scale,
        scales_p=forms.scales_p,
        scales_output=forms.scales_output,
        scales_keys=forms.scales_keys,
        releases_early=forms.scales_columns and not forms.scales_p,
        writes_lse=forms.lse != "none",
        causal=forms.mask == "causal",
        debug=forms.debug,
    )


def _partials(body: Body, forms: Forms) -> Sm100Partials:
    layouts = "dense" if forms.q_dense else "ragged"
    order = {"two_q": "2q", "one_q": "1q"}.get(names.body_name(body), "single_o")
    raw = "_raw" if names.converts(body) else ""
    p = "e4m3" if body.config.operands.qkv_bytes == 1 else "16bit"
    return Sm100Partials(
        load_q_rope=f"_load_q_rope{raw}_sm100.cu.j2",
        load_k_rope=f"_load_k_rope{raw}_sm100.cu.j2",
        helper_warps=f"_{'converter_warps' if raw else 'tail_warp'}_sm100.cu.j2",
        sides=f"_sides_{order}.cu.j2",
        copy_tile=f"_copy_tile_{layouts if forms.q_dense == forms.kv_dense else 'mixed'}.cu.j2",
        load_order=f"_load_order_{order}.cu.j2",
        mma_order=f"_mma_order_{order}.cu.j2",
        correction_order=f"_correction_order_{order}.cu.j2",
        softmax_order=f"_softmax_order_{order}.cu.j2",
        exponentiate=f"_exponentiate{'_folded' if forms.scales_p else ''}_sm100.cu.j2",
        store_p=f"_store_p_{p}_sm100.cu.j2",
        fetch_output=f"_fetch_output_{'merged' if order == '1q' else 'one'}.cu.j2",
        stage_output=f"_stage_output_{'f32' if forms.out == 'f32' else '16bit'}.cu.j2",
    )


def _heads(forms: Forms) -> HeadNames:
    return HeadNames(
        kv_head=forms.kv_head,
        q_begin=text.first_token("query", dense=forms.q_dense),
        k_begin=text.first_token("key", dense=forms.kv_dense),
        scale_arrivals="",
    )
