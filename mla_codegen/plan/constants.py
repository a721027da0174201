"""The constants section of a generated file: every number once, with its unit, meaning or derivation."""

from __future__ import annotations

import math
import struct

from mla_codegen.plan.barriers import (
    LOAD_ARRIVALS,
    SCALED_LOAD_ARRIVALS,
    TRANSPOSE_WARPS,
    WARPGROUP_THREADS,
    WARPS_PER_WARPGROUP,
    TxBytes,
)
from mla_codegen.plan.mma import SWIZZLE_MODES
from mla_codegen.plan.model import Constant, ConstantGroup, Role, VTransposedChunk
from mla_codegen.plan.registers import Registers, num_threads
from mla_codegen.plan.smem import k_scale_stride_bytes
from mla_codegen.plan.tiles import (
    K_STEP_BYTES,
    LAZY_SUM_GOAL,
    TRANSPOSE_COLUMNS,
    RowChunks,
    Tiles,
)

GRID_Y_LIMIT = 65535
"""Largest grid.y and grid.z (CUDA programming guide, technical specifications)."""
LONGEST_RUN = 4
"""Heads of a run: a longer one would leave too few CTAs to share evenly."""
SMS = 132
"""Multiprocessors that the length of a run is chosen for: H100 SXM, H200 and GH200 (NVIDIA Hopper
Architecture In-Depth). Another number costs speed at most."""
RUN_GROUP = 8
"""Runs of heads that are launched together: K and V of the heads they are at stay in the L2 cache while all
query tiles pass."""
SMALLEST_FACTOR_LOG2 = -100
"""Stands in for a factor of 0; a score times less than that are 0 in fp32 all the same."""
SMALLEST_V_SCALE_LOG2 = -100
"""Stands in for a v_scale of 0, which has no logarithm; sums of P over it, up to 2^22, still fit fp32."""
MASTER_VECTOR_BYTES = 16
"""Of the widest load and store of a thread (PTX ISA, ld.v4 and st.v4 of 32 bits)."""


def plan_constants(
    tiles: Tiles,
    *,
    lse: str,
    registers: Registers,
    roles: tuple[Role, ...],
    tx_bytes: TxBytes,
    chunks: tuple[VTransposedChunk, ...],
) -> tuple[ConstantGroup, ...]:
    """The groups in printing order."""
    groups = [
        _shape(tiles),
        _threads(tiles, registers, roles),
        _rings(tiles),
        _chunks(tiles),
        _bytes(tiles, tx_bytes),
    ]
    if chunks:
        groups.append(_transposed(tiles, chunks))
    groups.append(_registers(tiles, chunks))
    groups.append(_numbers(lse, tiles))
    return tuple(groups)


def as_f32(value: float) -> float:
    """The nearest fp32 number: a literal with more digits is a compiler's warning."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def group(title: str, *constants: tuple[str, str, object, str]) -> ConstantGroup:
    """Constants by type, name, value and meaning."""
    return ConstantGroup(
        title=title,
        constants=tuple(
            Constant(ctype=ctype, name=name, literal=str(value), comment=comment)
            for ctype, name, value, comment in constants
        ),
    )


def _shape(tiles: Tiles) -> ConstantGroup:
    return group(
        "Shape",
        ("i32", "kBlockM", tiles.block_m, "query rows per CTA"),
        ("i32", "kBlockN", tiles.block_n, "keys per step"),
        ("u32", "kOvDepth", tiles.ov_depth, "columns of V and of the output"),
        *(
            [("i32", "kGroup", tiles.group, "query heads that share a head of K_nope and V")]
            if tiles.group > 1
            else []
        ),
        ("i32", "kRunGroup", RUN_GROUP, "runs of heads whose tiles are launched together"),
        ("i32", "kGridYLimit", GRID_Y_LIMIT, "sequences per grid.z"),
    )


def _threads(tiles: Tiles, registers: Registers, roles: tuple[Role, ...]) -> ConstantGroup:
    ends = [
        ("u32", role.end_constant, role.first_warp + role.num_warps, f"first warp after the {role.name} role")
        for role in roles[:-1]
    ]
    return group(
        "Threads",
        ("u32", "kNumThreads", num_threads(tiles), "per CTA: the producer warpgroup and the consumers"),
        ("u32", "kNumConsumers", tiles.consumers, "consumer warpgroups"),
        ("u32", "kRowsPerConsumer", tiles.block_m // tiles.consumers, "query rows of one consumer warpgroup"),
        *ends,
        ("u32", "kConsumerWarpBegin", WARPS_PER_WARPGROUP, "first warp of the consumers"),
        ("int", "kProducerRegisters", registers.producer, "per thread, after setmaxnreg"),
        ("int", "kConsumerRegisters", registers.consumer, "per thread, after setmaxnreg"),
        ("u32", "kTurnThreads", 256, "the warpgroup whose turn it is and the one before it"),
        ("u32", "kLoadArrivals", LOAD_ARRIVALS, "the lane that issues the bulk copies"),
        *(
            [("u32", "kScaledLoadArrivals", SCALED_LOAD_ARRIVALS, "that lane, and one for the scales")]
            if tiles.scales_rows or tiles.scales_keys
            else []
        ),
        ("u32", "kConsumerArrivals", WARPS_PER_WARPGROUP * tiles.consumers, "one lane per consumer warp"),
        ("u32", "kQEmptyArrivals", WARPS_PER_WARPGROUP, "one lane per warp of one consumer warpgroup"),
        *(
            [("u32", "kTransposeWarps", TRANSPOSE_WARPS, "one lane of each arrives")]
            if tiles.transposes_v
            else [("u32", "kTailArrivals", 1, "one lane of the tail warp")]
        ),
    )


def _rings(tiles: Tiles) -> ConstantGroup:
    raw = [("u32", "kVRawStages", tiles.v_raw_stages, "slots of raw V")] if tiles.transposes_v else []
    kind = "transposed V" if tiles.fp8 else "V"
    return group(
        "Rings",
        ("u32", "kKStages", tiles.k_stages, "slots of K"),
        ("u32", "kVStages", tiles.v_stages, f"slots of {kind}"),
        *raw,
    )


def _chunks(tiles: Tiles) -> ConstantGroup:
    rows = [*_chunk_rows("Nope", tiles.nope, "Q_nope and K_nope")]
    if tiles.rope_depth:
        rows += _chunk_rows("Rope", tiles.rope_row, "Q_rope and K_rope")
    if not tiles.stored_transposed:
        rows += _chunk_rows("V", tiles.v_row, "V rows")[: 3 if tiles.fp8 else 4]
        if tiles.fp8:
            rows.append(
                ("u32", "kVChunkGroups", tiles.v_row.width_bytes // 32, "groups of 32 columns in a chunk")
            )
    return group("Chunks: tiles lie in columns of one swizzle width", *rows)


def _chunk_rows(name: str, row: RowChunks, what: str) -> list[tuple[str, str, object, str]]:
    """The chunks of an operand; the last one is for its matrix descriptor."""
    mode = SWIZZLE_MODES[row.width_bytes]
    return [
        ("i32", f"k{name}Chunks", row.count, f"of {what}"),
        ("i32", f"k{name}ChunkElems", row.elems, "elements"),
        ("u32", f"k{name}Width", row.width_bytes, "bytes of a chunk row, and swizzle width"),
        ("u32", f"k{name}SwizzleMode", mode, "of the matrix descriptor"),
    ]


def _bytes(tiles: Tiles, tx_bytes: TxBytes) -> ConstantGroup:
    nope, rope, v = tiles.nope.width_bytes, tiles.rope_row.width_bytes, tiles.v_row.width_bytes
    m, n = tiles.block_m, tiles.block_n
    k_scale = k_scale_stride_bytes(tiles)
    unit = 16 if tiles.out_bytes == 2 else 8
    rows: list[tuple[str, str, object, str]] = [
        ("u32", "kQNopeChunkBytes", m * nope, f"kBlockM * {nope}"),
        ("u32", "kKNopeChunkBytes", n * nope, f"kBlockN * {nope}"),
        ("u32", "kNopeConsumerBytes", 64 * nope, f"64 rows * {nope}: one consumer's part of a Q_nope chunk"),
    ]
    if tiles.rope_depth:
        rows += [
            ("u32", "kQRopeChunkBytes", m * rope, f"kBlockM * {rope}"),
            ("u32", "kKRopeChunkBytes", n * rope, f"kBlockN * {rope}"),
            ("u32", "kRopeConsumerBytes", 64 * rope, f"64 rows * {rope}: the same of Q_rope"),
            ("u32", "kKRopeOffset", tiles.k_nope_tile_bytes, "of K_rope in a stage: after K_nope"),
        ]
    rows.append(("u32", "kKStageBytes", tiles.k_stage_bytes, "K of kBlockN keys"))
    if not tiles.stored_transposed:
        rows.append(("u32", "kVChunkBytes", n * v, f"kBlockN * {v}"))
    if tiles.transposes_v:
        rows.append(("u32", "kVRawStageBytes", tiles.v_raw_stage_bytes, "V rows of kBlockN keys"))
    rows += [
        ("u32", "kVStageBytes", tiles.v_stage_bytes, "V of kBlockN keys"),
        ("u32", "kQTxBytes", tx_bytes.q, "Q of one consumer, whole boxes"),
        ("u32", "kKTxBytes", tx_bytes.k, "K, whole boxes"),
        ("u32", "kVTxBytes", tx_bytes.v, "V, whole boxes"),
    ]
    if tiles.scales_columns:
        rows.append(("u32", "kKScaleStageBytes", k_scale, "scales of kBlockN keys"))
    if tiles.scales_p:
        rows += [
            ("u32", "kVScaleStageBytes", 2 * k_scale, "logarithms and reciprocals of kBlockN scales"),
            ("u32", "kVScaleReciprocals", k_scale, "where the reciprocals start in a stage"),
        ]
    rows += [
        ("i64", "kOutBytes", tiles.out_bytes, "per output element"),
        ("u32", "kOutRowUnits", tiles.ov_depth * tiles.out_bytes // unit, "stores per output row"),
    ]
    return group("Bytes", *rows)


def _transposed(tiles: Tiles, chunks: tuple[VTransposedChunk, ...]) -> ConstantGroup:
    columns = tiles.v_columns // TRANSPOSE_COLUMNS
    rows: list[tuple[str, str, object, str]] = []
    if tiles.transposes_v:
        rows = [
            ("u32", "kVColumnGroups", columns, "groups of 32 V columns"),
            ("u32", "kTransposePieces", tiles.block_n // 16 * columns, "pieces of 16 tokens x 32 columns"),
        ]
    else:
        rows = [("u32", "kTokenGroups", tiles.block_n // 16, "groups of 16 tokens in a V column")]
    for chunk in chunks:
        first, last = chunk.first_token, chunk.first_token + chunk.width_bytes
        tokens = f"tokens {first} to {last - 1}, in groups of 16"
        rows += [
            *([("i32", f"{chunk.prefix}FirstToken", first, tokens)] if tiles.stored_transposed else []),
            ("u32", f"{chunk.prefix}GroupBegin", first // 16, tokens),
            ("u32", f"{chunk.prefix}GroupEnd", last // 16, "one past its last group"),
            (
                "u32",
                f"{chunk.prefix}Offset",
                chunk.offset_bytes,
                f"bytes in a stage: {tiles.v_columns} columns * first token",
            ),
            ("u32", f"{chunk.prefix}Width", chunk.width_bytes, "bytes of a row, and swizzle width"),
            ("u32", f"{chunk.prefix}SwizzleMode", chunk.swizzle_mode, "of the matrix descriptor"),
            ("u32", f"{chunk.prefix}FirstStep", chunk.first_step, "wgmma step along K at which it starts"),
            ("u32", f"{chunk.prefix}Steps", chunk.steps, "wgmma steps along K"),
        ]
    return group("Transposed V", *rows)


def _registers(tiles: Tiles, chunks: tuple[VTransposedChunk, ...]) -> ConstantGroup:
    v_rows: list[tuple[str, str, object, str]] = []
    if not chunks:
        width = tiles.v_row.width_bytes
        v_rows = [
            ("u32", "kVRowUnits", width // 16, "16-byte units of a chunk row"),
            ("u32", "kPvSteps", tiles.block_n // 16, "wgmma steps of P*V along the keys"),
            ("u32", "kPvStepBytes", 16 * width, f"16 keys * {width}"),
        ]
    return group(
        "Registers and matrix descriptors",
        ("int", "kScoreRegs", tiles.score_registers, "fp32 of S per thread: 64 * kBlockN / 128"),
        ("int", "kOutputRegs", tiles.output_registers, "fp32 of O per thread: 64 * kOvDepth / 128"),
        ("int", "kProbRegs", tiles.prob_registers, "registers of packed P per thread"),
        ("u32", "kKStepBytes", K_STEP_BYTES, "bytes along K of one wgmma step"),
        ("u32", "kKMajorLeadingBytes", 16, "not used by swizzled K-major operands"),
        *v_rows,
    )


def _numbers(lse: str, tiles: Tiles) -> ConstantGroup:
    lift = tiles.lift_log2
    smallest = float(2.0**SMALLEST_FACTOR_LOG2).hex()
    smallest_v_scale = float(2.0**SMALLEST_V_SCALE_LOG2).hex()
    stride = WARPGROUP_THREADS * MASTER_VECTOR_BYTES
    return group(
        "Numbers",
        ("float", "kLiftLog2", f"{lift.hex()}f", f"{lift:g}: log2 of what P is multiplied by, at most"),
        (
            "float",
            "kSmallestFactor",
            f"{smallest}f",
            f"2^{SMALLEST_FACTOR_LOG2}: stands in for a factor of 0",
        ),
        *lse_number(lse),
        *(
            [
                (
                    "float",
                    "kSmallestVScale",
                    f"{smallest_v_scale}f",
                    f"2^{SMALLEST_V_SCALE_LOG2}: stands in for 0",
                )
            ]
            if tiles.scales_p
            else []
        ),
        *(_lazy_numbers(tiles) if tiles.lazy_softmax else []),
        *(
            [
                ("u32", "kMasterVectorBytes", MASTER_VECTOR_BYTES, "8 bf16 of O of one thread"),
                ("u32", "kMasterVectorStride", stride, "bytes: 128 threads * kMasterVectorBytes"),
                ("u32", "kMasterGroupBytes", 64 * tiles.ov_depth * 2, "bytes: 64 rows of O in bf16"),
            ]
            if tiles.flush_blocks
            else []
        ),
    )


def _lazy_numbers(tiles: Tiles) -> list[tuple[str, str, object, str]]:
    meaning = "of a thread's P in a block" + (": the largest e4m3 number" if tiles.fp8 else "")
    limit = ("float", "kLazySumLimit", f"{tiles.lazy_sum_limit}.0f", meaning)
    if not tiles.fp8:
        return [limit]
    return [
        limit,
        ("float", "kLazySumGoal", f"{LAZY_SUM_GOAL}.0f", "what an exact step brings that sum down to"),
        ("u32", "kLiftSteps", tiles.lift_steps, "halvings that bring it there whatever the scores are"),
        ("i32", "kFlushBlocks", tiles.flush_blocks, "KV blocks after which O goes to its master"),
        ("i32", "kMaskedBlocks", tiles.masked_blocks, "of these, masked ones that come first, at most"),
    ]


def lse_number(lse: str) -> list[tuple[str, str, object, str]]:
    """What turns a logarithm to base 2 into the LSE; nothing where there is none."""
    if lse == "none":
        return []
    factor = math.log(2.0) if lse == "natural" else 1.0
    meaning = (
        "ln 2: the LSE is a natural logarithm" if lse == "natural" else "the LSE is a logarithm to base 2"
    )
    return [("float", "kLsePerLog2", f"{as_f32(factor).hex()}f", meaning)]
