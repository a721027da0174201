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
from mla_codegen.plan.model import Constant, ConstantGroup, Role, VTransposedChunk
from mla_codegen.plan.roles import Registers, num_threads
from mla_codegen.plan.smem import k_scale_stride_bytes
from mla_codegen.plan.tiles import E4M3_LARGEST, LAZY_SUM_GOAL, SWIZZLE_BYTES, Tiles
from mla_codegen.plan.v_chunks import K_STEP_BYTES

GRID_Y_LIMIT = 65535
"""Largest grid.y and grid.z (CUDA programming guide, technical specifications)."""
HEAD_GROUP = 8
"""Heads whose tiles are launched together: their K and V stay in the L2 cache while all query tiles pass."""
SMALLEST_FACTOR_LOG2 = -100
"""Stands in for a factor of 0; logits below 2^-60 times any score are 0 in fp32 all the same."""
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


def _as_f32(value: float) -> float:
    """The nearest fp32 number: a literal with more digits is a compiler's warning."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _group(title: str, *constants: tuple[str, str, object, str]) -> ConstantGroup:
    return ConstantGroup(
        title=title,
        constants=tuple(
            Constant(ctype=ctype, name=name, literal=str(value), comment=comment)
            for ctype, name, value, comment in constants
        ),
    )


def _shape(tiles: Tiles) -> ConstantGroup:
    return _group(
        "Shape",
        ("i32", "kBlockM", tiles.block_m, "query rows per CTA"),
        ("i32", "kBlockN", tiles.block_n, "keys per step"),
        ("u32", "kOvDepth", tiles.ov_depth, "columns of V and of the output"),
        *(
            [("i32", "kGroup", tiles.group, "query heads that share a head of K_nope and V")]
            if tiles.group > 1
            else []
        ),
        ("i32", "kHeadGroup", HEAD_GROUP, "heads whose tiles are launched together"),
        ("i32", "kGridYLimit", GRID_Y_LIMIT, "sequences per grid.z"),
    )


def _threads(tiles: Tiles, registers: Registers, roles: tuple[Role, ...]) -> ConstantGroup:
    ends = [
        ("u32", role.end_constant, role.first_warp + role.num_warps, f"first warp after the {role.name} role")
        for role in roles[:-1]
    ]
    return _group(
        "Threads",
        ("u32", "kNumThreads", num_threads(tiles), "per CTA: the producer warpgroup and the consumers"),
        ("u32", "kNumConsumers", tiles.consumers, "consumer warpgroups"),
        ("u32", "kRowsPerConsumer", tiles.block_m // tiles.consumers, "query rows of one consumer warpgroup"),
        *ends,
        ("int", "kProducerRegisters", registers.producer, "per thread, after setmaxnreg"),
        ("int", "kConsumerRegisters", registers.consumer, "per thread, after setmaxnreg"),
        ("u32", "kTurnThreads", 256, "the warpgroup whose turn it is and the one before it"),
        ("u32", "kLoadArrivals", LOAD_ARRIVALS, "the lane that issues the bulk copies"),
        *(
            [("u32", "kScaledLoadArrivals", SCALED_LOAD_ARRIVALS, "that lane, and one for the scales")]
            if tiles.scales_rows or tiles.scales_columns
            else []
        ),
        ("u32", "kConsumerArrivals", WARPS_PER_WARPGROUP * tiles.consumers, "one lane per consumer warp"),
        *(
            [("u32", "kTransposeWarps", TRANSPOSE_WARPS, "one lane of each arrives")]
            if tiles.transposes_v
            else [("u32", "kTailArrivals", 1, "one lane of the tail warp")]
        ),
    )


def _rings(tiles: Tiles) -> ConstantGroup:
    raw = [("u32", "kVRawStages", tiles.v_raw_stages, "slots of raw V")] if tiles.transposes_v else []
    kind = "transposed V" if tiles.transposes_v else "V"
    return _group(
        "Rings",
        ("u32", "kKStages", tiles.k_stages, "slots of K"),
        ("u32", "kVStages", tiles.v_stages, f"slots of {kind}"),
        *raw,
    )


def _chunks(tiles: Tiles) -> ConstantGroup:
    nope, rope = tiles.qkv_chunk_elems, tiles.rope_chunk_elems
    return _group(
        "Chunks: tiles lie in columns of 128 bytes, the widest swizzle",
        ("i32", "kNopeChunks", tiles.nope_depth // nope, "of Q_nope and K_nope"),
        ("i32", "kNopeChunkElems", nope, "elements"),
        ("u32", "kNopeChunkSteps", SWIZZLE_BYTES // K_STEP_BYTES, "wgmma steps along K in a chunk"),
        ("i32", "kRopeChunks", tiles.rope_depth // rope, "of Q_rope and K_rope"),
        ("i32", "kRopeChunkElems", rope, "elements"),
        ("u32", "kRopeChunkSteps", SWIZZLE_BYTES // K_STEP_BYTES, "wgmma steps along K in a chunk"),
        ("i32", "kVChunks", tiles.ov_depth // nope, "of V rows"),
        ("i32", "kVChunkElems", nope, "elements"),
    )


def _bytes(tiles: Tiles, tx_bytes: TxBytes) -> ConstantGroup:
    k_nope = tiles.block_n * tiles.nope_depth * tiles.qkv_bytes
    k_scale = k_scale_stride_bytes(tiles)
    unit = 16 if tiles.out_bytes == 2 else 8
    out_row_units = tiles.ov_depth * tiles.out_bytes // unit
    return _group(
        "Bytes",
        ("u32", "kQNopeChunkBytes", tiles.block_m * SWIZZLE_BYTES, "kBlockM * 128"),
        ("u32", "kQRopeChunkBytes", tiles.block_m * SWIZZLE_BYTES, "kBlockM * 128"),
        ("u32", "kKNopeChunkBytes", tiles.block_n * SWIZZLE_BYTES, "kBlockN * 128"),
        ("u32", "kKRopeChunkBytes", tiles.block_n * SWIZZLE_BYTES, "kBlockN * 128"),
        ("u32", "kVChunkBytes", tiles.block_n * SWIZZLE_BYTES, "kBlockN * 128"),
        ("u32", "kKStageBytes", tiles.k_stage_bytes, "K_nope and K_rope of kBlockN keys"),
        ("u32", "kKRopeOffset", k_nope, "of K_rope in a stage: after K_nope"),
        ("u32", "kVStageBytes", tiles.v_stage_bytes, "V of kBlockN keys"),
        ("u32", "kConsumerRowBytes", 64 * SWIZZLE_BYTES, "64 rows * 128: one consumer's part of a Q chunk"),
        ("u32", "kQTxBytes", tx_bytes.q, "Q_nope + Q_rope, whole boxes"),
        ("u32", "kKTxBytes", tx_bytes.k, "K_nope + K_rope, whole boxes"),
        ("u32", "kVTxBytes", tx_bytes.v, "V, whole boxes"),
        *([("u32", "kKScaleStageBytes", k_scale, "scales of kBlockN keys")] if tiles.scales_columns else []),
        ("i64", "kOutBytes", tiles.out_bytes, "per output element"),
        ("u32", "kOutRowUnits", out_row_units, "stores per output row"),
    )


def _transposed(tiles: Tiles, chunks: tuple[VTransposedChunk, ...]) -> ConstantGroup:
    columns = tiles.ov_depth // 32
    rows: list[tuple[str, str, object, str]] = [
        ("u32", "kVColumnGroups", columns, "groups of 32 V columns"),
        ("u32", "kTransposeTasks", tiles.block_n // 16 * columns, "pieces of 16 tokens x 32 columns"),
    ]
    for chunk in chunks:
        first, last = chunk.first_token, chunk.first_token + chunk.width_bytes
        tokens = f"tokens {first} to {last - 1}, in groups of 16"
        rows += [
            ("u32", f"{chunk.prefix}GroupBegin", first // 16, tokens),
            ("u32", f"{chunk.prefix}GroupEnd", last // 16, "one past its last group"),
            ("u32", f"{chunk.prefix}Offset", chunk.offset_bytes, "bytes in a stage: kOvDepth * first token"),
            ("u32", f"{chunk.prefix}Width", chunk.width_bytes, "bytes of a row, and swizzle width"),
            ("u32", f"{chunk.prefix}SwizzleMode", chunk.swizzle_mode, "of the matrix descriptor"),
            ("u32", f"{chunk.prefix}FirstStep", chunk.first_step, "wgmma step along K at which it starts"),
            ("u32", f"{chunk.prefix}Steps", chunk.steps, "wgmma steps along K"),
        ]
    return _group("Transposed V", *rows)


def _registers(tiles: Tiles, chunks: tuple[VTransposedChunk, ...]) -> ConstantGroup:
    v_rows: list[tuple[str, str, object, str]] = []
    if not chunks:
        v_rows = [
            ("u32", "kVRowUnits", SWIZZLE_BYTES // 16, "16-byte units of a chunk row"),
            ("u32", "kPvSteps", tiles.block_n // 16, "wgmma steps of P*V along the keys"),
            ("u32", "kPvStepBytes", 16 * SWIZZLE_BYTES, "16 keys * 128"),
        ]
    return _group(
        "Registers and matrix descriptors",
        ("int", "kScoreRegs", tiles.score_registers, "fp32 of S per thread: 64 * kBlockN / 128"),
        ("int", "kOutputRegs", tiles.output_registers, "fp32 of O per thread: 64 * kOvDepth / 128"),
        ("int", "kProbRegs", tiles.prob_registers, "registers of packed P per thread"),
        ("u32", "kKStepBytes", K_STEP_BYTES, "bytes along K of one wgmma step"),
        ("u32", "kKMajorLeadingBytes", 16, "not used by swizzled K-major operands"),
        ("u32", "kSwizzleAtomBytes", 8 * SWIZZLE_BYTES, "8 rows * 128: from one group of rows to the next"),
        ("u32", "kSwizzle128B", 1, "mode bits of the matrix descriptor"),
        *v_rows,
    )


def _numbers(lse: str, tiles: Tiles) -> ConstantGroup:
    lift = tiles.lift_log2
    smallest = float(2.0**SMALLEST_FACTOR_LOG2).hex()
    stride = WARPGROUP_THREADS * MASTER_VECTOR_BYTES
    return _group(
        "Numbers",
        ("float", "kLiftLog2", f"{lift.hex()}f", f"{lift:g}: log2 of what P is multiplied by, at most"),
        (
            "float",
            "kSmallestFactor",
            f"{smallest}f",
            f"2^{SMALLEST_FACTOR_LOG2}: stands in for a factor of 0",
        ),
        *_lse_number(lse),
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
    return [
        (
            "float",
            "kLazySumLimit",
            f"{E4M3_LARGEST}.0f",
            "of a thread's P in a block: the largest e4m3 number",
        ),
        ("float", "kLazySumGoal", f"{LAZY_SUM_GOAL}.0f", "what an exact step brings that sum down to"),
        ("u32", "kLiftSteps", tiles.lift_steps, "halvings that bring it there whatever the scores are"),
        ("i32", "kFlushBlocks", tiles.flush_blocks, "KV blocks after which O goes to its master"),
    ]


def _lse_number(lse: str) -> list[tuple[str, str, object, str]]:
    if lse == "none":
        return []
    factor = math.log(2.0) if lse == "natural" else 1.0
    meaning = (
        "ln 2: the LSE is a natural logarithm" if lse == "natural" else "the LSE is a logarithm to base 2"
    )
    return [("float", "kLsePerLog2", f"{_as_f32(factor).hex()}f", meaning)]
