"""Invariants across the parts of a plan; a broken one is a bug of the planner, never of a spec."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.barriers import WARPS_PER_WARPGROUP
from mla_codegen.plan.model import Plan, Variant


def broken_invariants(plan: Plan, limits: ArchLimits) -> tuple[str, ...]:
    """One sentence for each invariant that does not hold; empty for a sound plan."""
    return tuple(sentence for variant in plan.variants for sentence in _broken(variant, limits))


def _broken(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    yield from _broken_smem(variant, limits)
    yield from _broken_barriers(variant, limits)
    yield from _broken_roles(variant, limits)
    yield from _broken_maps(variant, limits)


def _broken_smem(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    end = 0
    for field in variant.smem.fields:
        if field.offset_bytes < end:
            yield f"{field.name} starts at {field.offset_bytes}, before the field in front of it ends at {end}"
        if field.offset_bytes % field.align_bytes:
            yield f"{field.name} at {field.offset_bytes} is not aligned to {field.align_bytes}"
        end = field.offset_bytes + field.size_bytes
    if end != variant.smem.used_bytes:
        yield f"the fields end at {end}, used_bytes is {variant.smem.used_bytes}"
    if variant.smem.sizeof_bytes > limits.smem_per_cta_bytes:
        yield f"{variant.smem.sizeof_bytes} bytes of shared memory exceed {limits.smem_per_cta_bytes}"
    if variant.launch.smem_bytes != variant.smem.sizeof_bytes:
        yield f"the launch asks for {variant.launch.smem_bytes} bytes, the struct has {variant.smem.sizeof_bytes}"


def _broken_barriers(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    index = 0
    warps = {role.name: role.num_warps for role in variant.roles}
    issued = _issued_bytes(variant)
    for barrier in variant.mbarriers:
        if barrier.first_index != index:
            yield f"{barrier.name} starts at index {barrier.first_index}, the one before it ends at {index}"
        index += barrier.stages
        expected = 1 if barrier.arrives in ("load", "tail") else warps[barrier.arrives]
        if barrier.arrivals != expected:
            yield f"{barrier.name} expects {barrier.arrivals} arrivals, {expected} threads arrive"
        if barrier.tx_bytes != issued.get(barrier.name, 0):
            yield f"{barrier.name} expects {barrier.tx_bytes} bytes, its copies bring {issued.get(barrier.name, 0)}"
    if index != variant.num_mbars:
        yield f"the barriers are {index}, num_mbars is {variant.num_mbars}"
    ids = [barrier.id for barrier in variant.named_barriers]
    if len(set(ids)) != len(ids) or not all(0 < item < limits.named_barriers for item in ids):
        yield f"named barrier ids {ids} are not distinct numbers from 1 to {limits.named_barriers - 1}"


def _issued_bytes(variant: Variant) -> dict[str, int]:
    """Bytes that the copies of one phase bring to each full barrier, from the boxes."""
    barrier_of = {"q_nope": "q_full", "q_rope": "q_full", "q_scale": "q_full"}
    barrier_of |= {"k_nope": "k_full", "k_rope": "k_full", "k_scale": "k_full", "v": variant.v_load.full}
    element = {"e4m3": 1, "bf16": 2, "f16": 2, "f32": 4}
    total: dict[str, int] = {}
    for item in variant.tensor_maps:
        elements = 1
        for extent in item.box:
            elements *= extent
        name = barrier_of[item.argument]
        total[name] = total.get(name, 0) + elements * element[item.dtype] * item.issues
    return total


def _broken_roles(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    warp = 0
    for role in variant.roles:
        if role.first_warp != warp:
            yield f"role {role.name} starts at warp {role.first_warp}, the one before it ends at {warp}"
        warp += role.num_warps
    if warp * limits.warp_threads != variant.launch.threads:
        yield f"the roles have {warp} warps, the launch {variant.launch.threads} threads"
    pool = variant.launch.threads * variant.launch.launch_registers
    by_warpgroup: dict[int, set[int]] = {}
    used = 0
    for role in variant.roles:
        if not limits.setmaxnreg_allows(role.registers):
            yield f"role {role.name} has {role.registers} registers, which setmaxnreg does not take"
        used += role.registers * role.num_warps * limits.warp_threads
        for index in range(role.first_warp, role.first_warp + role.num_warps):
            by_warpgroup.setdefault(index // WARPS_PER_WARPGROUP, set()).add(role.registers)
    if used > pool:
        yield f"the warpgroups take {used} registers, the launch allocates {pool}"
    for index, values in by_warpgroup.items():
        if len(values) > 1:
            yield f"warpgroup {index} has several register counts: {sorted(values)}"


def _broken_maps(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    for item in variant.tensor_maps:
        if len(item.box) != len(item.axes) or len(item.box) > limits.tensor_map_rank:
            yield f"{item.name} has a box of {len(item.box)} dimensions and {len(item.axes)} axes"
        if any(not 0 < extent <= limits.tensor_map_box_elems for extent in item.box):
            yield f"{item.name} has box {item.box}, each extent is at most {limits.tensor_map_box_elems}"
