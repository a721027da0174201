"""Invariants across the parts of a Blackwell kernel; a broken one is a bug of ours, never of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.model import Region, Smem, SmemField, TensorMap, TmemRegion
from mla_codegen.plan.sm100.attention import FA4Config, KvRing
from mla_codegen.plan.sm100.barriers import MOST_MBARRIERS, Sm100Mbarrier
from mla_codegen.plan.sm100.body import Body, Sm100Kernel
from mla_codegen.plan.sm100.rings import Ring

ATOM_ROWS = 8
"""Rows after which a swizzle pattern repeats."""
WARPGROUP_WARPS = 4


def broken_invariants(kernel: Sm100Kernel) -> tuple[str, ...]:
    """One sentence for each invariant that does not hold; empty for a sound kernel."""
    return tuple(_broken(kernel))


def _broken(kernel: Sm100Kernel) -> Iterator[str]:
    limits = kernel.config.limits
    for body in kernel.bodies:
        yield from _broken_fields(body.storage.smem.fields, body.storage.smem.used_bytes)
        yield from _broken_constants(body.storage.smem)
        yield from _broken_regions(body)
        yield from _broken_tmem(body, limits)
        yield from _broken_barriers(body)
        yield from _broken_bytes(body, kernel.tensor_maps)
        yield from _broken_roles(body, kernel, limits)
        yield from _broken_order(body.ring, body.config)
        yield from _broken_products(body, limits)
        if body.storage.smem.sizeof_bytes > kernel.launch.smem_bytes:
            yield f"{body.config.num_q}Q needs more shared memory than the launch asks for"
    if kernel.launch.smem_bytes > limits.smem_per_cta_bytes:
        yield f"{kernel.launch.smem_bytes} bytes of shared memory exceed {limits.smem_per_cta_bytes}"


def _broken_fields(fields: tuple[SmemField, ...], used_bytes: int) -> Iterator[str]:
    end = 0
    for field in fields:
        if field.offset_bytes < end:
            yield f"{field.name} starts at {field.offset_bytes}, the field before it ends at {end}"
        if field.offset_bytes % field.align_bytes:
            yield f"{field.name} at {field.offset_bytes} is not aligned to {field.align_bytes}"
        end = field.offset_bytes + field.size_bytes
    if end != used_bytes:
        yield f"the fields end at {end}, used_bytes is {used_bytes}"


def _broken_constants(smem: Smem) -> Iterator[str]:
    """A constant that names a field has just as many bytes, and is compared with it."""
    sizes = {field.name: field.size_bytes for field in smem.fields}
    sized = tuple(constant for constant in smem.constants if constant.field is not None)
    for constant in sized:
        size = sizes.get(constant.field or "")
        if constant.value != size:
            yield f"{constant.name} is {constant.value}, its field {constant.field} has {size} bytes"
    if smem.sized_constants != sized:
        yield f"{len(smem.sized_constants)} constants are compared with fields, {len(sized)} name one"


def _broken_regions(body: Body) -> Iterator[str]:
    """Inside their field, aligned to their swizzle, and apart from each other unless they are an alias."""
    fields = {field.name: field for field in body.storage.smem.fields}
    tiles: list[tuple[int, int, str]] = []
    for region in body.storage.regions:
        field = fields[region.field]
        last = region.offset_bytes + (region.count - 1) * region.stride_bytes + region.size_bytes
        if region.offset_bytes < field.offset_bytes or last > field.offset_bytes + field.size_bytes:
            yield f"{region.name} from {region.offset_bytes} to {last} is not inside of {region.field}"
        atom = max(1, ATOM_ROWS * region.swizzle_bytes)
        if region.offset_bytes % atom or region.stride_bytes % atom:
            yield f"{region.name} is not aligned to its swizzle, {atom} bytes"
        if not region.alias_of:
            tiles += _extents(region)
        elif region.alias_of not in fields:
            yield f"{region.name} is an alias of {region.alias_of}, which is no field"
    for (_, end, name), (start, _, other) in pairwise(sorted(tiles)):
        if start < end:
            yield f"{other} at {start} lies over {name}, which ends at {end}"


def _extents(region: Region) -> list[tuple[int, int, str]]:
    starts = [region.offset_bytes + index * region.stride_bytes for index in range(region.count)]
    return [(start, start + region.size_bytes, region.name) for start in starts]


def _broken_tmem(body: Body, limits: ArchLimits) -> Iterator[str]:
    tmem = body.tmem
    by_name = {region.name: region for region in tmem.regions}
    own = sorted((r.first_col, r.first_col + r.cols, r.name) for r in tmem.regions if not r.alias_of)
    for (_, end, name), (start, _, other) in pairwise(own):
        if start < end:
            yield f"TMEM columns of {other} start at {start}, those of {name} end at {end}"
    for region in tmem.regions:
        if region.alias_of and not _inside(region, by_name[region.alias_of]):
            yield f"{region.name} is not inside of {region.alias_of}, over which it lies"
    if own[-1][1] != tmem.used_cols:
        yield f"the TMEM regions end at {own[-1][1]}, used_cols is {tmem.used_cols}"
    if not tmem.used_cols <= tmem.alloc_cols <= limits.tmem_cols:
        yield f"{tmem.alloc_cols} TMEM columns are allocated for {tmem.used_cols} of {limits.tmem_cols}"


def _inside(region: TmemRegion, outer: TmemRegion) -> bool:
    last = region.first_col + region.cols
    return outer.first_col <= region.first_col and last <= outer.first_col + outer.cols


def _broken_barriers(body: Body) -> Iterator[str]:
    index = 0
    for barrier in body.mbarriers:
        if barrier.first_index != index:
            yield f"{barrier.name} starts at index {barrier.first_index}, the ones before it end at {index}"
        if len(barrier.arrivals) != barrier.stages:
            yield f"{barrier.name} has {barrier.stages} stages and {len(barrier.arrivals)} arrival counts"
        index += barrier.stages
    declared = next(field for field in body.storage.smem.fields if field.name == "mbar_base").count
    if not index == body.num_mbars == declared:
        yield f"{index} mbarriers, num_mbars is {body.num_mbars}, mbar_base has {declared}"
    if index > MOST_MBARRIERS:
        yield f"{index} mbarriers, {MOST_MBARRIERS} are initialised"


def _broken_bytes(body: Body, maps: tuple[TensorMap, ...]) -> Iterator[str]:
    """What the phases of the load barriers expect is what the boxes bring, each once a block."""
    size = {item.argument: item.issue_bytes * item.issues for item in maps}
    brings = {name: size.get(name, 0) for name in ("k_nope", "k_rope", "v")}
    copies = body.copy_bytes
    q = sum(size.get(name, 0) for name in ("q_nope", "q_rope"))
    if copies.q_half != q:
        yield f"half of Q is {copies.q_half} bytes, its boxes bring {q}"
    for name, expected in brings.items():
        if getattr(copies, name) != expected:
            yield f"{name} is {getattr(copies, name)} bytes a block, its boxes bring {expected}"
    copied = {b.name: b for b in body.mbarriers if b.tx_bytes}
    of_q = ("q1_full", "q_rope_raw_full")
    once_a_block = sum(_per_block(barrier) for name, barrier in copied.items() if name not in of_q)
    if once_a_block != sum(brings.values()):
        yield f"the barriers expect {once_a_block} bytes a block, the boxes bring {sum(brings.values())}"


def _per_block(barrier: Sm100Mbarrier) -> int:
    """Bytes of a block of keys on this barrier: without Q, which the first phase brings along."""
    return sum(barrier.tx_bytes[1:]) if len(barrier.tx_bytes) > 1 else barrier.tx_bytes[0]


def _broken_roles(body: Body, kernel: Sm100Kernel, limits: ArchLimits) -> Iterator[str]:
    """Every warp has one role, each warpgroup one number of registers, all together what was allocated."""
    registers = [role.registers for role in body.roles for _ in range(role.num_warps)]
    warps = kernel.launch.threads // limits.warp_threads
    if len(registers) != warps:
        yield f"the roles have {len(registers)} warps, the launch {warps}"
    for first in range(0, len(registers), WARPGROUP_WARPS):
        if len(set(registers[first : first + WARPGROUP_WARPS])) > 1:
            yield f"warps {first} to {first + WARPGROUP_WARPS - 1} ask for different numbers of registers"
    allowed = kernel.launch.launch_registers * warps
    if sum(registers) > allowed:
        yield f"the roles take {sum(registers)} registers per lane, {allowed} are allocated"
    for role in body.roles:
        if not limits.setmaxnreg_allows(role.registers):
            yield f"{role.name} asks setmaxnreg for {role.registers} registers"


def _broken_order(ring: Ring, config: FA4Config) -> Iterator[str]:
    """Rope and scales beside a shared ring: a buffer's last block has left the ring when it comes again."""
    if ring.kind is not KvRing.SHARED:
        return
    keys = [place for place, what in enumerate(load_order(config, 4 * ring.stages)) if what == "k"]
    for name, buffers in (("rope", ring.rope_buffers), ("scale", ring.k_scale_buffers)):
        if buffers and any(
            later - first < ring.stages for first, later in zip(keys, keys[buffers:], strict=False)
        ):
            yield f"{buffers} {name} buffers are too few for {ring.stages} slots"


def _broken_products(body: Body, limits: ArchLimits) -> Iterator[str]:
    """Instruction shapes exist, operands are there, and the parts of P are what P*V reads."""
    operands = {region.name for region in body.storage.regions} | {"p"}
    for product in body.products:
        if product.n % limits.umma_n_step or not 0 < product.n <= limits.umma_n_max:
            allowed = f"a multiple of {limits.umma_n_step} up to {limits.umma_n_max}"
            yield f"{product.name} has N {product.n}, {allowed}"
        for operand in (product.a, product.b):
            if operand not in operands:
                yield f"{product.name} reads {operand}, which is no region"
    if sum(body.pv_parts) != body.config.block_n:
        yield f"P is handed over in {sum(body.pv_parts)} keys, a block has {body.config.block_n}"
    for barrier in body.named_barriers:
        if not 0 < barrier.id < limits.named_barriers:
            yield f"named barrier {barrier.name} has id {barrier.id}"


def load_order(config: FA4Config, blocks: int) -> tuple[str, ...]:
    """What the load warp puts into a ring of K and V for so many blocks of keys: ``k`` and ``v``.

    2Q, and a single O: K and V in turn. 1Q: a pair of K, then the pair of V; an odd last block is K, V.
    """
    if config.num_q == 2 or config.single_o:
        return ("k", "v") * blocks
    return ("k", "k", "v", "v") * (blocks // 2) + ("k", "v") * (blocks % 2)
