"""The constants of a Blackwell kernel: those that all bodies share, and those of each body."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.constants import (
    GRID_Y_LIMIT,
    RUN_GROUP,
    SMALLEST_FACTOR_LOG2,
    SMALLEST_V_SCALE_LOG2,
    as_f32,
    group,
    lse_number,
)
from mla_codegen.plan.model import ConstantGroup, Region, Role
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, FA4Config, KvRing
from mla_codegen.plan.sm100.barriers import TAIL_WARPS
from mla_codegen.plan.sm100.body import Body, Sm100Kernel
from mla_codegen.plan.sm100.forms import Forms
from mla_codegen.plan.sm100.names import camel
from mla_codegen.plan.sm100.operands import UMMA_K_BYTES, swizzle_bytes
from mla_codegen.plan.sm100.rings import k_tx_bytes, q_tx_bytes, scale_readers
from mla_codegen.plan.sm100.roles import WARPGROUP_WARPS
from mla_codegen.plan.sm100.softmax import EXP2_COEFFICIENTS, EXP2_ROUND_TO_INTEGER
from mla_codegen.plan.sm100.staging import UNIT_BYTES

F32_BYTES = 4
SCORE_GROUP_COLS = 32
"""Columns of S that a thread loads, and keys whose P it writes, in one instruction."""
SWIZZLE_LAYOUTS = {0: 0, 128: 2, 64: 4, 32: 6}
"""Layout code of the matrix descriptor, by swizzle bytes (PTX ISA, tcgen05, shared memory descriptor)."""
_Row = tuple[str, str, object, str]


def shared_constants(kernel: Sm100Kernel, forms: Forms) -> tuple[ConstantGroup, ...]:
    """Of work, parameters and outputs."""
    config, out_bytes = kernel.config.fa4, DTYPES[forms.out].bytes
    head_group = [("i32", "kGroup", forms.group, "query heads that share a head of K_nope and V")]
    numbers = lse_number(forms.lse)
    return (
        group(
            "Shape",
            ("i32", "kBlockM", kernel.launch.block_m, "query rows per CTA"),
            ("i32", "kBlockN", config.block_n, "keys per step"),
            ("u32", "kOvDepth", config.ov_depth, "columns of V and of the output"),
            *(head_group if forms.group > 1 else []),
            ("i32", "kHeadGroup", RUN_GROUP, "heads whose tiles are launched together"),
            ("i32", "kGridYLimit", GRID_Y_LIMIT, "sequences per grid.z"),
            ("u32", "kNumThreads", kernel.launch.threads, "per CTA"),
        ),
        group(
            "Output",
            ("i64", "kOutBytes", out_bytes, "per output element"),
            ("u32", "kOutRowUnits", config.ov_depth * out_bytes // UNIT_BYTES, "16-byte stores per row"),
            *numbers,
        ),
    )


def body_constants(
    body: Body, kernel: Sm100Kernel, forms: Forms, roles: tuple[Role, ...]
) -> tuple[ConstantGroup, ...]:
    """The groups of one body in printing order."""
    return (
        group("Shape", *_shape(body, forms)),
        group("Roles", *_roles(body, roles)),
        group("Rings", *_rings(body)),
        group("Places of tiles in their fields", *_places(body)),
        group("Chunks: tiles lie in columns of one swizzle width", *_chunks(body.config)),
        group("Bytes of copies", *_copies(body)),
        group("Tensor memory", *_columns(body)),
        group("Products", *_products(body)),
        group("Softmax", *_softmax(kernel, forms)),
        group("Output", *_output(body, forms)),
    )


def _shape(body: Body, forms: Forms) -> Iterator[_Row]:
    if forms.scales_rows:
        yield ("u32", "kQRows", body.config.block_m, "query rows")
    yield ("i32", "kQTileRows", Q_TILE_ROWS, "query rows of one side, and of one softmax warpgroup")
    yield ("u32", "kSides", 2, "accumulators of S")


def _roles(body: Body, roles: tuple[Role, ...]) -> Iterator[_Row]:
    registers = {role.name: role.registers for role in roles}
    first = {role.name: role.first_warp for role in roles}
    helper = roles[-1]
    for role in roles[:-1]:
        end = role.first_warp + role.num_warps
        yield ("u32", role.end_constant, end, f"first warp after the {role.name} role")
    yield ("u32", "kMmaWarpBegin", first["mma"], "the MMA warp")
    yield ("u32", "kTailWarpBegin", helper.first_warp, f"first {helper.name} warp")
    yield ("u32", "kTailWarps", TAIL_WARPS, "one lane of each arrives")
    after = "per thread, after setmaxnreg"
    yield ("int", "kSoftmaxRegisters", registers["softmax"], after)
    yield ("int", "kCorrectionRegisters", registers["correction"], after)
    yield ("int", "kLastWarpgroupRegisters", registers["mma"], f"{after}: MMA, load and tail warps")
    yield ("u32", "kOneArrival", 1, "one lane, or one tcgen05.commit")
    yield ("u32", "kPFirstArrivals", 2 * Q_TILE_ROWS, "the threads of softmax and those of correction")
    yield ("u32", "kSoftmaxArrivals", Q_TILE_ROWS, "every thread of one softmax warpgroup")
    yield ("u32", "kCorrectionArrivals", Q_TILE_ROWS, "every thread of the correction warpgroup")
    if body.ring.k_scale_buffers:
        readers = scale_readers(body.config) * WARPGROUP_WARPS
        yield ("u32", "kScaleReaderWarps", readers, "one lane of each warp that reads key scales")
    for barrier in body.named_barriers:
        yield ("u32", f"k{camel(barrier.name)}Threads", barrier.threads, f"threads of {barrier.name}")


def _rings(body: Body) -> Iterator[_Row]:
    ring, separate = body.ring, body.ring.kind is KvRing.SEPARATE
    yield ("u32", "kKStages", ring.stages, "slots of K" if separate else "slots of the ring of K and V")
    if separate:
        yield ("u32", "kVStages", ring.stages, "slots of V")
    if body.converter_stages:
        yield ("u32", "kQRopeSides", body.config.num_q, "tiles of Q_rope")
    if (ring.kind is KvRing.SHARED and ring.rope_buffers) or body.converter_stages:
        buffers = body.converter_stages or ring.rope_buffers
        yield ("u32", "kRopeBuffers", buffers, "buffers of K_rope")
    if ring.k_scale_buffers:
        yield ("u32", "kKScaleBuffers", ring.k_scale_buffers, "buffers of the scales of a block of keys")
    yield ("u32", "kSideBarriers", 2, "from a barrier of side 0 to the same of side 1")


def _places(body: Body) -> Iterator[_Row]:
    fields = {field.name: field.offset_bytes for field in body.storage.smem.fields}
    for region in body.storage.regions:
        yield from _place(region, region.offset_bytes - fields[region.field])


def _place(region: Region, offset: int) -> Iterator[_Row]:
    what = f"{region.name} in {region.field}, bytes"
    yield ("u32", f"k{camel(region.name)}Offset", offset, what)
    step = f"from one to the next of {region.count}"
    yield ("u32", f"k{camel(region.name)}Stride", region.stride_bytes, step)


def _chunks(config: FA4Config) -> Iterator[_Row]:
    operands = config.operands
    yield from _row_chunks("Nope", "Q_nope and K_nope", operands.qkv, config.padded_nope_depth)
    if config.rope_depth:
        yield from _row_chunks("Rope", "Q_rope and K_rope", operands.rope_mma, config.padded_rope_depth)
    yield from _row_chunks("V", "V rows", operands.qkv, config.padded_ov_depth)
    units = operands.qkv_swizzle_bytes // UNIT_BYTES
    yield ("u32", "kVRowUnits", units, "16-byte units of a chunk row of V")


def _row_chunks(prefix: str, what: str, dtype: str, depth: int) -> Iterator[_Row]:
    width = swizzle_bytes(dtype)
    elems = width // DTYPES[dtype].bytes
    yield ("i32", f"k{prefix}Chunks", depth // elems, f"of {what}")
    yield ("i32", f"k{prefix}ChunkElems", elems, "elements")
    yield ("u32", f"k{prefix}Width", width, "bytes of a chunk row, and swizzle width")
    yield ("u32", f"k{prefix}SwizzleLayout", SWIZZLE_LAYOUTS[width], "of the matrix descriptor")


def _copies(body: Body) -> Iterator[_Row]:
    config = body.config
    nope, rope = config.operands.qkv_swizzle_bytes, config.operands.rope_swizzle_bytes
    q, k = q_tx_bytes(config), k_tx_bytes(config)
    yield ("u32", "kQNopeChunkBytes", Q_TILE_ROWS * nope, f"kQTileRows * {nope}")
    yield ("u32", "kKNopeChunkBytes", config.block_n * nope, f"kBlockN * {nope}")
    if config.rope_depth:
        yield ("u32", "kQRopeChunkBytes", Q_TILE_ROWS * rope, f"kQTileRows * {rope}")
        yield ("u32", "kKRopeChunkBytes", config.block_n * rope, f"kBlockN * {rope}")
    yield ("u32", "kVChunkBytes", config.block_n * nope, f"kBlockN * {nope}")
    if body.converter_stages:
        raw, tx = config.operands.rope_gmem_swizzle_bytes, body.copy_bytes
        yield ("u32", "kRopeRawWidth", raw, "bytes of a row of stored rope, and swizzle width")
        yield ("u32", "kRopeRawUnits", raw // UNIT_BYTES, "16-byte units of such a row")
        yield ("u32", "kQRopeRawOffset", tx.q_rope, "of stored Q_rope in its tile: the second half")
        yield ("u32", "kKRopeRawOffset", tx.k_rope, "of stored K_rope in its buffer: the second half")
        yield ("u32", "kQRopeTxBytes", tx.q_rope, "stored Q_rope of one side, whole boxes")
        yield ("u32", "kKRopeTxBytes", tx.k_rope, "stored K_rope, whole boxes")
    if config.num_q == 2:
        yield ("u32", "kQTxBytes", q, "Q of one side, whole boxes")
    yield ("u32", "kKTxBytes", k, "K, whole boxes")
    yield ("u32", "kQKTxBytes", q + k, "K and Q of one side: the first phase")
    yield ("u32", "kVTxBytes", body.copy_bytes.v, "V, whole boxes")


def _columns(body: Body) -> Iterator[_Row]:
    config = body.config
    parts = config.block_n // SCORE_GROUP_COLS
    p_cols = SCORE_GROUP_COLS * config.operands.qkv_bytes // config.limits.tmem_cell_bytes
    o_cols = body.staging.block_cols
    yield ("u32", "kTmemCols", body.tmem.alloc_cols, f"allocated, {body.tmem.used_cols} of them used")
    yield ("u32", "kSStrideCols", config.tmem_s[1] - config.tmem_s[0], "from S of side 0 to S of side 1")
    yield ("u32", "kOFirstCol", config.tmem_o[0], "O of side 0")
    yield ("u32", "kOStrideCols", config.tmem_o[1] - config.tmem_o[0], "from O of side 0 to O of side 1")
    yield ("u32", "kScoreGroups", parts, f"groups of {SCORE_GROUP_COLS} columns of S")
    yield ("u32", "kScoreGroupCols", SCORE_GROUP_COLS, "columns, and keys")
    yield ("u32", "kPGroupCols", p_cols, "columns of the P of such a group, packed")
    yield ("u32", "kPFirstGroups", body.pv_parts[0] // SCORE_GROUP_COLS, "groups in the first part of P")
    yield ("u32", "kOGroups", config.ov_depth // o_cols, "groups of columns of O")
    yield ("u32", "kOGroupCols", o_cols, "columns that a thread has in registers at a time")
    if config.num_q == 1 and not config.single_o:
        half = -(-config.ov_depth // o_cols // 2)
        yield ("u32", "kOFirstHalfGroups", half, "groups that side 0 stores, side 1 stores the others")


def _products(body: Body) -> Iterator[_Row]:
    config, shapes = body.config, {product.name: product for product in body.products}
    nope = shapes.get("qk_nope") or shapes["qk"]
    rope = shapes.get("qk_rope") or nope
    pv, k = shapes["pv"], config.operands.mma_k
    yield ("u32", "kMmaStepBytes", UMMA_K_BYTES, "bytes of an operand row in one product, along K")
    yield ("u32", "kKMajorLeadingBytes", UNIT_BYTES, "not used by swizzled K-major operands")
    yield ("u32", "kQkNopeInstruction", _hex(nope.instruction_descriptor), f"128 x {nope.n} x {nope.k}")
    if config.rope_depth:
        yield ("u32", "kQkRopeInstruction", _hex(rope.instruction_descriptor), f"128 x {rope.n} x {rope.k}")
    yield ("u32", "kPvInstruction", _hex(pv.instruction_descriptor), f"128 x {pv.n} x {pv.k}, B by columns")
    yield ("u32", "kPvSteps", pv.steps, "products along the keys")
    yield ("u32", "kPvFirstSteps", body.pv_parts[0] // k, f"of these, for the first {body.pv_parts[0]} keys")
    step = k * config.operands.qkv_swizzle_bytes
    yield ("u32", "kPvStepBytes", step, f"of V: {k} keys * kVWidth")
    yield ("u32", "kPStepCols", UMMA_K_BYTES // config.limits.tmem_cell_bytes, "columns of P in one product")


def _hex(value: int) -> str:
    return f"{value:#010x}"


def _softmax(kernel: Sm100Kernel, forms: Forms) -> Iterator[_Row]:
    numbers = kernel.softmax
    lift, threshold = float(numbers.p_lift_log2), float(-numbers.rescale_threshold_log2)
    smallest = float(2.0**SMALLEST_FACTOR_LOG2).hex()
    yield ("float", "kLiftLog2", f"{lift.hex()}f", f"{lift:g}: log2 of what P is multiplied by")
    meaning = "log2 of the growth that moves the rows"
    yield ("float", "kRescaleThresholdLog2", f"{threshold.hex()}f", f"{threshold:g}: {meaning}")
    comment = f"2^{SMALLEST_FACTOR_LOG2}: stands in for a factor of 0"
    yield ("float", "kSmallestFactor", f"{smallest}f", comment)
    if forms.scales_p:
        small, keys = float(2.0**SMALLEST_V_SCALE_LOG2).hex(), kernel.config.fa4.block_n
        yield ("float", "kSmallestVScale", f"{small}f", f"2^{SMALLEST_V_SCALE_LOG2}: stands in for 0")
        yield ("u32", "kVScaleBufferBytes", 2 * keys * F32_BYTES, "of a block: logarithms and reciprocals")
        yield ("u32", "kVScaleReciprocals", keys * F32_BYTES, "bytes from the one to the other")
    for power, value in enumerate(EXP2_COEFFICIENTS):
        comment = f"{value:.7g}: 2^f on [0, 1), coefficient of f^{power}"
        yield ("float", f"kExp2C{power}", f"{as_f32(value).hex()}f", comment)
    shift = EXP2_ROUND_TO_INTEGER
    yield ("float", "kRoundToInteger", f"{shift.hex()}f", "1.5 * 2^23: a sum with it has no fraction")


def _output(body: Body, forms: Forms) -> Iterator[_Row]:
    staging, out_bytes = body.staging, DTYPES[forms.out].bytes
    cols = staging.block_cols
    units = staging.pass_cols * out_bytes // UNIT_BYTES
    mask = next(mask for mask in (7, 3, 1, 0) if units % (mask + 1) == 0)
    yield ("u32", "kOutPassGroups", staging.pass_cols // cols, "groups of columns of O staged at a time")
    yield ("u32", "kOutPassUnits", units, "16-byte units of a staged row")
    yield ("u32", "kOutGroupUnits", cols * out_bytes // UNIT_BYTES, "16-byte units of such a group")
    yield ("u32", "kOutUnitMask", mask, "bits of the row that a unit is XORed with")
