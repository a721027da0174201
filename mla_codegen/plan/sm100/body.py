"""All that a Blackwell kernel has, put together: one or two bodies (2Q, 1Q) and how they are launched."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.model import NamedBarrier, Product, Role, TensorMap, TmemMap
from mla_codegen.plan.sm100.attention import FA4Config
from mla_codegen.plan.sm100.barriers import MOST_MBARRIERS, Sm100Mbarrier, count, plan_mbarriers
from mla_codegen.plan.sm100.launch import Sm100Launch, bodies, plan_launch
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.named_barriers import plan_named_barriers
from mla_codegen.plan.sm100.products import plan_products, pv_parts
from mla_codegen.plan.sm100.ring_storage import ring_storage
from mla_codegen.plan.sm100.rings import (
    CopyBytes,
    Ring,
    converter_stages,
    copy_bytes,
    scale_step,
    shallower,
    solved_ring,
)
from mla_codegen.plan.sm100.roles import plan_roles, softmax_warps
from mla_codegen.plan.sm100.seed_storage import (
    deepest_unified_ring,
    seed_storage,
    unified_ring,
)
from mla_codegen.plan.sm100.softmax import SoftmaxNumbers, softmax_numbers
from mla_codegen.plan.sm100.staging import OutputStaging, plan_staging, staging_region
from mla_codegen.plan.sm100.storage import Storage, fits
from mla_codegen.plan.sm100.tma import plan_tensor_maps
from mla_codegen.plan.sm100.tmem import plan_tmem


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One way through the kernel, 2Q or 1Q: everything that its role functions name."""

    config: FA4Config
    ring: Ring
    storage: Storage
    tmem: TmemMap
    mbarriers: tuple[Sm100Mbarrier, ...]
    num_mbars: int
    named_barriers: tuple[NamedBarrier, ...]
    copy_bytes: CopyBytes
    roles: tuple[Role, ...]
    products: tuple[Product, ...]
    pv_parts: tuple[int, int]
    scale_step: int
    converter_stages: int
    staging: OutputStaging


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Kernel:
    """``bodies`` in the order of their use: the one of long sequences first."""

    config: MLAConfig
    layout: str
    bodies: tuple[Body, ...]
    tensor_maps: tuple[TensorMap, ...]
    softmax: SoftmaxNumbers
    launch: Sm100Launch


def plan_kernel(
    config: MLAConfig,
    *,
    layout: str = "auto",
    out: str = "bf16",
    unknown_mask: bool = False,
    v_scales: bool = False,
) -> Sm100Kernel:
    """The whole of a supported configuration; ``layout`` as in ``smem.layout``, ``out`` as in ``dtypes.out``.

    ``v_scales`` where the V of each key has a scale of its own.

    The seed's struct has one factor for each query row, where the softmax threads of 1Q need two, so that
    with ``layout: seed`` a 2Q configuration has its 2Q body alone.
    """
    choices = bodies(config, unknown_mask=unknown_mask or layout == "seed")
    made = tuple(
        plan_body(config.with_num_q(num_q), layout=layout, out=out, v_scales=v_scales) for num_q in choices
    )
    return Sm100Kernel(
        config=config,
        layout=layout,
        bodies=made,
        tensor_maps=plan_tensor_maps(config.fa4),
        softmax=softmax_numbers(config.operands),
        launch=plan_launch(
            config,
            smem_bytes=tuple(body.storage.smem.sizeof_bytes for body in made),
            tmem_cols=tuple(body.tmem.alloc_cols for body in made),
            limits=config.limits,
        ),
    )


def plan_body(config: MLAConfig, *, layout: str, out: str, v_scales: bool = False) -> Body:
    """The body of this configuration's ``num_q``."""
    fa4, out_bytes = config.fa4, DTYPES[out].bytes
    deepest = deepest_unified_ring(fa4, guards=True) if layout == "seed" else 0
    ring = unified_ring(fa4, deepest) if layout == "seed" else _solved_ring(fa4, v_scales)
    barriers = plan_mbarriers(fa4, ring)
    staging = plan_staging(fa4, out_bytes=out_bytes)
    return Body(
        config=fa4,
        ring=ring,
        storage=_storage(fa4, ring, layout, staging, barriers, out_bytes, v_scales),
        tmem=plan_tmem(fa4),
        mbarriers=barriers,
        num_mbars=count(barriers),
        named_barriers=plan_named_barriers(fa4, softmax_warps=softmax_warps(config.num_threads)),
        copy_bytes=copy_bytes(fa4),
        roles=plan_roles(
            barriers,
            num_threads=config.num_threads,
            block_n=fa4.block_n,
            converts_rope=config.operands.converts_rope,
        ),
        products=plan_products(fa4, ring),
        pv_parts=pv_parts(fa4),
        scale_step=scale_step(fa4),
        converter_stages=converter_stages(fa4, ring),
        staging=staging,
    )


def _solved_ring(config: FA4Config, v_scales: bool) -> Ring:
    """The ring that the parity rule chose; shallower where barriers run out, or scales of V find no room."""
    ring = solved_ring(config)
    while ring.stages > 1:
        bars = count(plan_mbarriers(config, ring))
        storage = ring_storage(config, ring, num_mbars=bars, v_scales=v_scales)
        if bars <= MOST_MBARRIERS and fits(storage):
            break
        ring = shallower(config, ring)
    return ring


def _storage(
    config: FA4Config,
    ring: Ring,
    layout: str,
    staging: OutputStaging,
    barriers: tuple[Sm100Mbarrier, ...],
    out_bytes: int,
    v_scales: bool,
) -> Storage:
    if layout == "seed":
        storage = seed_storage(config, stages=ring.stages, num_mbars=count(barriers))
    else:
        storage = ring_storage(config, ring, num_mbars=count(barriers), v_scales=v_scales)
    return replace(
        storage,
        regions=(*storage.regions, staging_region(staging, q_offset_bytes=0, out_bytes=out_bytes)),
    )
