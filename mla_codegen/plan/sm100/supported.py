"""Which configurations can work: the seed's ``supported()``, with the numbers behind every no."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.sm100.attention import CORRECTION_BYTES, FA4Config, ceil_div

SMALLEST_QK_DEPTH = 64
LARGEST_QK_DEPTH_1Q = 256
SMALLEST_BLOCK_N = 64
SMALLEST_KV_STAGES = 2


def supported(config: FA4Config) -> bool:
    """Whether nothing stands against this configuration."""
    return not support_faults(config)


def support_faults(config: FA4Config) -> tuple[Diagnostic, ...]:
    """Every reason why the configuration cannot work, in the seed's order; empty where it can."""
    return tuple(_faults(config))


def _faults(config: FA4Config) -> Iterator[Diagnostic]:
    yield from _depth_faults(config)
    yield from _block_faults(config)
    if config.block_n == 0:
        return  # without a block of keys there are no stages to count
    yield from _stage_faults(config)
    yield from _room_faults(config)


def _depth_faults(config: FA4Config) -> Iterator[Diagnostic]:
    depth = config.qk_depth
    largest = LARGEST_QK_DEPTH_1Q if config.num_q == 1 else None
    if depth >= SMALLEST_QK_DEPTH and (largest is None or depth <= largest):
        return
    allowed = f"at least {SMALLEST_QK_DEPTH}" if largest is None else f"{SMALLEST_QK_DEPTH} to {largest}"
    yield Diagnostic(
        code="qk-depth",
        field="dims.nope",
        message=f"nope + rope is {depth}, allowed with {_mode(config)}: {allowed}",
        notes=(f"dims.nope {config.nope_depth}, dims.rope {config.rope_depth}",),
        help="set dims.nope and dims.rope so that their sum is in this range",
    )


def _block_faults(config: FA4Config) -> Iterator[Diagnostic]:
    if config.block_n >= SMALLEST_BLOCK_N:
        return
    width = config.shared_kv_cols
    cap = f", at most {config.bn_cap} asked for" if config.bn_cap else ""
    page = f", pages of {config.page_size} tokens" if config.page_size else ""
    yield Diagnostic(
        code="block-n",
        field="dims.v" if config.padded_ov_depth >= config.padded_nope_depth else "dims.nope",
        message=(
            f"{_mode(config)} leaves {config.block_n} keys per step, allowed: at least {SMALLEST_BLOCK_N}"
        ),
        notes=(
            f"the wider of K_nope and V has {width} columns, tensor memory has {config.limits.tmem_cols}"
            f"{cap}{page}",
        ),
        help="set dims.nope and dims.v to at most 192",
    )


def _stage_faults(config: FA4Config) -> Iterator[Diagnostic]:
    stages = config.num_kv_stages
    if stages >= SMALLEST_KV_STAGES:
        return
    slot, extra, fixed = config.kv_slot_bytes, config.k_extra_bytes, config.fixed_smem_bytes
    slots = 2 * SMALLEST_KV_STAGES if config.kv_ring.value == "separate" else SMALLEST_KV_STAGES
    needed = fixed + slots * slot + ceil_div(slots, 2) * extra
    yield Diagnostic(
        code="kv-stages",
        field="tile.block_n",
        message=(
            f"{stages} KV stages fit in shared memory, allowed: at least {SMALLEST_KV_STAGES}; these need "
            f"{needed} B, {config.limits.name} offers {config.limits.smem_per_cta_bytes} B"
        ),
        notes=(
            f"q, scales, factors of {CORRECTION_BYTES} B and barriers {fixed} + {slots} x {slot} for K_nope "
            f"and V + {ceil_div(slots, 2)} x {extra} for rope and scales",
        ),
        help="take fewer keys per step",
    )


def _room_faults(config: FA4Config) -> Iterator[Diagnostic]:
    limits = config.limits
    if config.tmem_used_cols > limits.tmem_cols:
        yield Diagnostic(
            code="tmem-overflow",
            field="tile.block_n",
            message=f"needs {config.tmem_used_cols} columns of tensor memory, allowed: {limits.tmem_cols}",
            help="take fewer keys per step",
        )
    if config.smem_used_bytes > limits.smem_per_cta_bytes:
        used, there = config.smem_used_bytes, limits.smem_per_cta_bytes
        yield Diagnostic(
            code="smem-overflow",
            field="tile.block_n",
            message=f"needs {used} B of shared memory, {limits.name} offers {there} B",
            help="take fewer keys per step",
        )


def _mode(config: FA4Config) -> str:
    return f"{config.num_q}Q with {'a single O' if config.single_o else 'two O'}"
