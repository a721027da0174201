"""What a user may ask of a supported configuration: heads, pages, types, and the seed's struct."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.sm100.attention import FA4Config
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.seed_storage import deepest_unified_ring, seed_storage, unified_mbars
from mla_codegen.plan.sm100.supported import SMALLEST_KV_STAGES

SMALLEST_SCALE_PAGE = 32
"""Tokens of a page whose fp32 scales fill 128 bytes, to which a bulk copy's destination is aligned."""


def request_faults(config: MLAConfig, *, layout: str = "auto") -> tuple[Diagnostic, ...]:
    """Every reason why no kernel of this layout can be made, though the sizes are supported."""
    return tuple(_faults(config, layout))


def _faults(config: MLAConfig, layout: str) -> Iterator[Diagnostic]:
    if config.num_q_heads % config.group:
        yield Diagnostic(
            code="bad-heads",
            field="heads.group",
            message=f"heads.q is {config.num_q_heads}, allowed with group {config.group}: its multiples",
            help=f"set heads.q to a multiple of {config.group}",
        )
    yield from _page_faults(config.fa4)
    if layout == "seed":
        yield from _seed_faults(config.fa4)


def _page_faults(config: FA4Config) -> Iterator[Diagnostic]:
    page, block_n = config.page_size, config.block_n
    if page == 0 or block_n == 0:
        return
    if page % block_n and block_n % page:
        yield Diagnostic(
            code="bad-page",
            field="layout.kv",
            message=f"pages have {page} tokens, allowed with {block_n} keys per step: divisors and multiples",
            help="take pages of a power of two",
        )
    elif config.operands.scale is not None and page < SMALLEST_SCALE_PAGE:
        yield Diagnostic(
            code="bad-page",
            field="layout.kv",
            message=f"pages have {page} tokens, allowed with scales: at least {SMALLEST_SCALE_PAGE}",
            notes=("the scales of a smaller page would start at no multiple of 128 bytes",),
            help=f"take pages of {SMALLEST_SCALE_PAGE} tokens or more",
        )


def _seed_faults(config: FA4Config) -> Iterator[Diagnostic]:
    """The literal struct has unpadded widths."""
    rows = (
        ("dims.nope", config.nope_depth, config.padded_nope_depth),
        ("dims.rope", config.rope_depth, config.padded_rope_depth),
    )
    for name, depth, padded in rows:
        if depth != padded:
            yield Diagnostic(
                code="seed-layout",
                field=name,
                message=f"{name} is {depth}, allowed with smem.layout seed: multiples of a swizzle row",
                notes=(f"the next one is {padded}; the seed's struct has no room for padding",),
                help="leave smem.layout to auto",
            )
    yield from _seed_room_faults(config)


def _seed_room_faults(config: FA4Config) -> Iterator[Diagnostic]:
    if config.block_n == 0 or deepest_unified_ring(config, guards=True) >= SMALLEST_KV_STAGES:
        return
    mbars = unified_mbars(config, SMALLEST_KV_STAGES, guards=True)
    smem = seed_storage(config, stages=SMALLEST_KV_STAGES, num_mbars=mbars).smem
    yield Diagnostic(
        code="smem-overflow",
        field="smem.layout",
        message=(
            f"smem.layout seed needs {smem.sizeof_bytes} B of shared memory for {SMALLEST_KV_STAGES} stages, "
            f"{config.limits.name} offers {smem.limit_bytes} B"
        ),
        help="leave smem.layout to auto",
    )
