"""Invariants across the parts of a plan; a broken one is a bug of the planner, never of a spec."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.barriers import WARPGROUP_THREADS, WARPS_PER_WARPGROUP
from mla_codegen.plan.model import Mbarrier, Plan, TensorMap, Variant

_ELEMENT_BYTES = {"i32": 4, "u8": 1, "float": 4, "u64": 8}
_DTYPE_BYTES = {"e4m3": 1, "bf16": 2, "f16": 2, "f32": 4}
_ONE_LANE_ROLES = ("load", "tail")
"""Roles of which one lane of one warp arrives; of the others one lane of every warp does."""
_MASTER_ELEMENT_BYTES = _DTYPE_BYTES["bf16"]


def broken_invariants(plan: Plan, limits: ArchLimits) -> tuple[str, ...]:
    """One sentence for each invariant that does not hold; empty for a sound plan."""
    return tuple(sentence for variant in plan.variants for sentence in _broken(variant, limits))


def _broken(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    yield from _broken_smem(variant, limits)
    yield from _broken_sizes(variant)
    yield from _broken_scales(variant)
    yield from _broken_master(variant)
    yield from _broken_barriers(variant, limits)
    yield from _broken_roles(variant, limits)
    yield from _broken_maps(variant, limits)


def _broken_smem(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    smem, end = variant.smem, 0
    for field in smem.fields:
        if field.offset_bytes < end:
            yield f"{field.name} starts at {field.offset_bytes}, the field before it ends at {end}"
        if field.offset_bytes % field.align_bytes:
            yield f"{field.name} at {field.offset_bytes} is not aligned to {field.align_bytes}"
        if field.size_bytes != field.count * _ELEMENT_BYTES[field.element]:
            yield f"{field.name} has {field.size_bytes} bytes, {field.count} elements of {field.element}"
        if smem.align_bytes % field.align_bytes:
            yield f"{field.name} is aligned to {field.align_bytes}, the struct to {smem.align_bytes} only"
        end = field.offset_bytes + field.size_bytes
    if end != smem.used_bytes:
        yield f"the fields end at {end}, used_bytes is {smem.used_bytes}"
    if smem.sizeof_bytes != -(-end // smem.align_bytes) * smem.align_bytes:
        yield f"sizeof is {smem.sizeof_bytes}, {end} bytes are rounded up to {smem.align_bytes}"
    if smem.sizeof_bytes > limits.smem_per_cta_bytes:
        yield f"{smem.sizeof_bytes} bytes of shared memory exceed {limits.smem_per_cta_bytes}"
    if variant.launch.smem_bytes != smem.sizeof_bytes:
        yield f"the launch asks for {variant.launch.smem_bytes} bytes, the struct has {smem.sizeof_bytes}"


def _broken_sizes(variant: Variant) -> Iterator[str]:
    """The seed's constants are what they say of the map, and all that name a field are compared with it."""
    sizes = _field_sizes(variant)
    for constant in variant.smem.constants:
        if constant.field is not None and constant.value != sizes.get(constant.field):
            size = sizes.get(constant.field)
            yield f"{constant.name} is {constant.value}, its field {constant.field} has {size} bytes"
    sized = tuple(constant for constant in variant.smem.constants if constant.field is not None)
    if variant.smem.sized_constants != sized:
        yield f"{len(variant.smem.sized_constants)} constants are compared with fields, {len(sized)} name one"


def _broken_scales(variant: Variant) -> Iterator[str]:
    """Each stage of the K ring has its scales of keys: whole stages fill the field."""
    literals, sizes = _literals(variant), _field_sizes(variant)
    stages = int(literals["kKStages"])
    for name, stage_bytes in (("k_scale_smem", "kKScaleStageBytes"), ("v_scale_smem", "kVScaleStageBytes")):
        wanted = stages * int(literals.get(stage_bytes, 0))
        if sizes.get(name, 0) != wanted:
            yield f"{name} has {sizes.get(name, 0)} bytes, {stages} stages of {stage_bytes} have {wanted}"


def _field_sizes(variant: Variant) -> dict[str, int]:
    return {field.name: field.size_bytes for field in variant.smem.fields}


def _broken_master(variant: Variant) -> Iterator[str]:
    """Each consumer has its part of the master, and the vectors of its threads cover that part."""
    if not variant.features.flushes_output:
        return
    literals = _literals(variant)
    group, vector, stride, registers = (
        int(literals[name])
        for name in ("kMasterGroupBytes", "kMasterVectorBytes", "kMasterVectorStride", "kOutputRegs")
    )
    consumers = _warps(variant).get("consumer", 0) // WARPS_PER_WARPGROUP
    size = _field_sizes(variant).get("o_master_smem")
    if size != consumers * group:
        yield f"o_master_smem has {size} bytes, {consumers} consumers have {group} each"
    if stride != WARPGROUP_THREADS * vector:
        yield f"master vectors are {stride} bytes apart, {WARPGROUP_THREADS} threads have {vector} each"
    covered = registers * _MASTER_ELEMENT_BYTES // vector * stride
    if covered != group:
        yield f"master vectors cover {covered} bytes, a consumer has {group}"


def _literals(variant: Variant) -> dict[str, str]:
    return {item.name: item.literal for group in variant.constants for item in group.constants}


def _warps(variant: Variant) -> dict[str, int]:
    return {role.name: role.num_warps for role in variant.roles}


def _broken_barriers(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    index = 0
    issued = _issued_bytes(variant)
    for barrier in variant.mbarriers:
        if barrier.first_index != index:
            yield f"{barrier.name} starts at index {barrier.first_index}, the one before it ends at {index}"
        index += barrier.stages
        arriving = _arriving_threads(variant, barrier)
        if barrier.arrivals != arriving:
            yield f"{barrier.name} expects {barrier.arrivals} arrivals, {arriving} threads arrive"
        brought = issued.get(barrier.name, 0)
        if barrier.tx_bytes != brought:
            yield f"{barrier.name} expects {barrier.tx_bytes} bytes, its copies bring {brought}"
        if barrier.tx_bytes > limits.mbarrier_tx_bytes:
            yield f"{barrier.name} expects {barrier.tx_bytes} bytes, the limit is {limits.mbarrier_tx_bytes}"
        if barrier.arrivals > limits.mbarrier_arrivals:
            most = limits.mbarrier_arrivals
            yield f"{barrier.name} expects {barrier.arrivals} arrivals, the limit is {most}"
        yield from _broken_constants(variant, barrier)
    if index != variant.num_mbars:
        yield f"the barriers are {index}, num_mbars is {variant.num_mbars}"
    room = {field.name: field.count for field in variant.smem.fields}.get("mbar_base")
    if room != variant.num_mbars:
        yield f"mbar_base has room for {room} barriers, num_mbars is {variant.num_mbars}"
    yield from _broken_named_barriers(variant, limits)


def _arriving_threads(variant: Variant, barrier: Mbarrier) -> int:
    scaled = {"q_full": variant.features.scales_rows, "k_full": variant.features.scales_keys}
    if scaled.get(barrier.name):
        return 2
    if barrier.name == "q_empty":
        return WARPS_PER_WARPGROUP
    return 1 if barrier.arrives in _ONE_LANE_ROLES else _warps(variant).get(barrier.arrives, 0)


def _broken_constants(variant: Variant, barrier: Mbarrier) -> Iterator[str]:
    """What the source says by name is what the plan says by number."""
    literals = _literals(variant)
    pairs = ((barrier.stages_constant, barrier.stages), (barrier.arrivals_constant, barrier.arrivals))
    for name, value in pairs:
        literal = literals.get(name, name)
        if literal != str(value):
            yield f"{barrier.name} has {value} where the source says {name}, which is {literal}"


def _broken_named_barriers(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    ids = [barrier.id for barrier in variant.named_barriers]
    if len(set(ids)) != len(ids) or not all(0 < item < limits.named_barriers for item in ids):
        yield f"named barrier ids {ids} are not distinct numbers from 1 to {limits.named_barriers - 1}"
    for barrier in variant.named_barriers:
        if barrier.threads % limits.warp_threads or not 0 < barrier.threads <= variant.launch.threads:
            yield f"{barrier.name} is for {barrier.threads} threads, not whole warps of the CTA"


def _issued_bytes(variant: Variant) -> dict[str, int]:
    """Bytes that the copies of one phase bring to each full barrier, from the boxes."""
    barrier_of = {"q_nope": "q_full", "q_rope": "q_full"}
    barrier_of |= {"k_nope": "k_full", "k_rope": "k_full", "v": variant.v_load.full}
    total: dict[str, int] = {}
    for item in variant.tensor_maps:
        name = barrier_of[item.argument]
        total[name] = total.get(name, 0) + _box_bytes(item) * item.issues
    return total


def _box_bytes(item: TensorMap) -> int:
    return math.prod(item.box) * _DTYPE_BYTES[item.dtype]


def _broken_roles(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    warp = 0
    for role in variant.roles:
        if role.first_warp != warp:
            yield f"role {role.name} starts at warp {role.first_warp}, the one before it ends at {warp}"
        warp += role.num_warps
    if warp * limits.warp_threads != variant.launch.threads:
        yield f"the roles have {warp} warps, the launch {variant.launch.threads} threads"
    yield from _broken_registers(variant, limits)


def _broken_registers(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    """The pool of setmaxnreg is what the launch allocates; a warpgroup that asks for more waits for ever."""
    launch = variant.launch
    cap = limits.launch_cap_regs(launch.threads)
    if launch.launch_registers > cap:
        yield f"the launch has {launch.launch_registers} registers a thread, it can have {cap}"
    by_warpgroup: dict[int, set[int]] = {}
    used = 0
    for role in variant.roles:
        if not limits.setmaxnreg_allows(role.registers):
            yield f"role {role.name} has {role.registers} registers, which setmaxnreg does not take"
        used += role.registers * role.num_warps * limits.warp_threads
        for index in range(role.first_warp, role.first_warp + role.num_warps):
            by_warpgroup.setdefault(index // WARPS_PER_WARPGROUP, set()).add(role.registers)
    pool = launch.threads * launch.launch_registers
    if used > pool:
        yield f"the warpgroups take {used} registers, the launch allocates {pool}"
    for index, values in by_warpgroup.items():
        if len(values) > 1:
            yield f"warpgroup {index} has several register counts: {sorted(values)}"


def _broken_maps(variant: Variant, limits: ArchLimits) -> Iterator[str]:
    for item in variant.tensor_maps:
        ranks = (len(item.box), len(item.axes), len(item.dims))
        if len(set(ranks)) > 1 or ranks[0] > limits.tensor_map_rank:
            box, axes, dims = ranks
            yield f"{item.name} has a box of {box} dimensions, {axes} axes and {dims} dims"
        if any(not 0 < extent <= limits.tensor_map_box_elems for extent in item.box):
            yield f"{item.name} has box {item.box}, each extent is at most {limits.tensor_map_box_elems}"
        if item.issue_bytes != _box_bytes(item):
            yield f"{item.name} issues {item.issue_bytes} bytes, its box has {_box_bytes(item)}"
        if item.swizzle_bytes and item.box[0] * _DTYPE_BYTES[item.dtype] != item.swizzle_bytes:
            yield f"{item.name} has box {item.box}, its rows are not {item.swizzle_bytes} bytes wide"
