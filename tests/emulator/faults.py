"""Faults of synchronisation and layout in the committed kernels."""

from __future__ import annotations

from tests.emulator.fault import Fault, drop, edit

FP8 = "dsv3_fp8_sm90"
BF16 = "dsv3_bf16_sm90"

_TURN = "  bar_sync(turn_barrier(self.index), kTurnThreads);"
_STEP_WAITS = (
    "  mbarrier_wait(v_full(v.stage), v.phase);\n  mbarrier_wait(k_full(k.stage), k.phase);\n" + _TURN
)
_FENCE = (
    "    fence_proxy_async_shared();  // the tensor cores read what ordinary stores wrote\n    warp_sync();\n"
)
_TRANSPOSE_ARRIVES = (
    "    if (lane == 0) {\n      mbarrier_arrive(v_full(v.stage));\n"
    "      mbarrier_arrive(v_raw_empty(raw.stage));\n    }\n"
)
_FINISH = "finish_scores<kMasked>("
_RELEASE_V = "release_slot(v_empty(v.stage), self.lane);\nv.advance();\n" + _FINISH
_PASS_ON = "    bar_arrive(turn_barrier(is_last ? 0 : self.index + 1), kTurnThreads);\n"
_STEP_PRODUCTS = (
    "  issue_pv(o, p, v.stage);\n  issue_qk(s, self.q, k.stage);\n  wgmma_commit_group();\n"
    "  wgmma_wait_group<0>(o, s);\n"
)
_LAST_PV = "  issue_pv(o, p, v.stage);\n  wgmma_commit_group();\n  wgmma_wait_group<0>(o);\n"

WAITS = (
    edit("no wait for K", FP8, _STEP_WAITS, "  mbarrier_wait(v_full(v.stage), v.phase);\n" + _TURN),
    edit("no wait for V", FP8, _STEP_WAITS, "  mbarrier_wait(k_full(k.stage), k.phase);\n" + _TURN),
    drop("no wait for Q", FP8, "  mbarrier_wait(q_full(consumer), q_phase);\n"),
    drop("no wait for a free K slot", FP8, "      mbarrier_wait(k_empty(k.stage), k.phase);\n"),
    drop("no wait for a free raw V slot", FP8, "      mbarrier_wait(v_raw_empty(v.stage), v.phase);\n"),
    drop("no wait for raw V", FP8, "    mbarrier_wait(v_raw_full(raw.stage), raw.phase);\n"),
    drop("no wait for a free V slot", FP8, "    mbarrier_wait(v_empty(v.stage), v.phase);\n"),
    edit(
        "no wait before the last P*V",
        FP8,
        "outside the turns.\n      mbarrier_wait(v_full(v.stage), v.phase);\n",
        "outside the turns.\n",
    ),
    drop(
        "no wait for the cleared tail",
        BF16,
        "  if (has_tail(tile) && (kKStages > 1 || block == 0)) mbarrier_wait(v_tail_cleared(), q_phase);\n",
    ),
    edit(
        "tail warp does not wait for V",
        BF16,
        "    mbarrier_wait(v_full(v.stage), v.phase);\n    // Swizzling",
        "    // Swizzling",
    ),
)

ARRIVES = (
    drop("K slot not released", FP8, "  release_slot(k_empty(k_stage), self.lane);\n"),
    edit("V slot not released", FP8, _RELEASE_V, "v.advance();\n" + _FINISH),
    drop("K slot of a skipped block not released", FP8, "release_slot(k_empty(k.stage), self.lane);\n"),
    drop("raw V slot not released", FP8, "      mbarrier_arrive(v_raw_empty(raw.stage));\n"),
    drop("transposed V not signalled", FP8, "      mbarrier_arrive(v_full(v.stage));\n"),
    edit(
        "scales signalled before the other lanes are done",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(barrier);\n",
        "  if (lane == 0) mbarrier_arrive(barrier);\n",
    ),
    drop("scales not signalled", FP8, "  if (lane == 0) mbarrier_arrive(barrier);\n"),
    edit(
        "scales stored without a wait for the slot",
        FP8,
        "      mbarrier_wait(k_empty(k.stage), k.phase);\n      if (issues_copies) load_k_block",
        "      if (issues_copies) mbarrier_wait(k_empty(k.stage), k.phase);\n"
        "      if (issues_copies) load_k_block",
    ),
    drop("cleared tail not signalled", BF16, "  if (lane == 0) mbarrier_arrive(v_tail_cleared());\n"),
    edit(
        "every lane issues the copies",
        FP8,
        "const bool issues_copies = elect_sync();",
        "const bool issues_copies = true;",
    ),
    edit(
        "K slot released before its scales are read",
        FP8,
        "  scale_scores(s, rows, k_stage, self.lane);\n  release_keys(self, block, k_stage);\n",
        "  release_keys(self, block, k_stage);\n  scale_scores(s, rows, k_stage, self.lane);\n",
    ),
    edit(
        "V slot released before the products are complete",
        FP8,
        _STEP_PRODUCTS,
        "  issue_pv(o, p, v.stage);\n  issue_qk(s, self.q, k.stage);\n  wgmma_commit_group();\n"
        "  release_slot(v_empty(v.stage), self.lane);\n  wgmma_wait_group<0>(o, s);\n",
    ),
    drop(
        "slot released without the other lanes",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
    ),
    edit(
        "slot released before the other lanes are done",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
        "  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
    ),
    edit(
        "transposed V signalled before the other lanes are done",
        FP8,
        _FENCE,
        "    fence_proxy_async_shared();\n",
    ),
)

PHASES = (
    edit(
        "producer starts at phase 0",
        FP8,
        "  PipelineState<kKStages> k{0, 1};",
        "  PipelineState<kKStages> k{0, 0};",
    ),
    edit(
        "raw V producer starts at phase 0",
        FP8,
        "PipelineState<kVRawStages> v{0, 1};",
        "PipelineState<kVRawStages> v{0, 0};",
    ),
    edit(
        "transpose starts at phase 0",
        FP8,
        "PipelineState<kVStages> v{0, 1};",
        "PipelineState<kVStages> v{0, 0};",
    ),
    edit(
        "raw V consumer starts at phase 1",
        FP8,
        "PipelineState<kVRawStages> raw{0, 0};",
        "PipelineState<kVRawStages> raw{0, 1};",
    ),
    edit(
        "consumer starts K at phase 1",
        FP8,
        "  PipelineState<kKStages> k{0, 0};",
        "  PipelineState<kKStages> k{0, 1};",
    ),
    edit(
        "consumer starts V at phase 1",
        FP8,
        "  PipelineState<kVStages> v{0, 0};",
        "  PipelineState<kVStages> v{0, 1};",
    ),
    edit(
        "Q waited for with phase 1",
        FP8,
        "mbarrier_wait(q_full(consumer), q_phase)",
        "mbarrier_wait(q_full(consumer), 1 - q_phase)",
    ),
    edit("phase never flips", FP8, "if (stage == 0) phase ^= 1;", "if (stage == 0) phase ^= 0;"),
    edit(
        "raw V ring one slot too short in one role",
        FP8,
        "PipelineState<kVRawStages> raw{0, 0};",
        "PipelineState<kVRawStages - 1> raw{0, 0};",
    ),
    edit(
        "consumer starts at slot 1",
        FP8,
        "  PipelineState<kKStages> k{0, 0};",
        "  PipelineState<kKStages> k{1, 0};",
    ),
    edit("V slot not advanced", FP8, _RELEASE_V, "release_slot(v_empty(v.stage), self.lane);\n" + _FINISH),
    edit(
        "scales of another slot",
        FP8,
        "  scale_scores(s, rows, k_stage, self.lane);",
        "  scale_scores(s, rows, 0, self.lane);",
    ),
)

COUNTS = (
    edit("one consumer arrival too few", FP8, "kConsumerArrivals = 12;", "kConsumerArrivals = 11;"),
    edit("one consumer arrival too many", FP8, "kConsumerArrivals = 12;", "kConsumerArrivals = 13;"),
    edit("one load arrival too few", FP8, "kScaledLoadArrivals = 2;", "kScaledLoadArrivals = 1;"),
    edit("one load arrival too many", FP8, "kScaledLoadArrivals = 2;", "kScaledLoadArrivals = 3;"),
    edit("16 bytes too few announced for K", FP8, "kKTxBytes = 24576;", "kKTxBytes = 24560;"),
    edit("16 bytes too many announced for K", FP8, "kKTxBytes = 24576;", "kKTxBytes = 24592;"),
    edit("16 bytes too few announced for V", FP8, "kVTxBytes = 12288;", "kVTxBytes = 12272;"),
    edit("16 bytes too many announced for Q", FP8, "kQTxBytes = 16384;", "kQTxBytes = 16400;"),
    edit("half of Q announced", FP8, "kQTxBytes = 16384;", "kQTxBytes = 8192;"),
    edit("one V block not loaded", FP8, "block >= -1; --block", "block >= 0; --block"),
)

FENCES = (
    edit("no proxy fence after the transpose", FP8, _FENCE, "    warp_sync();\n"),
    edit(
        "proxy fence after the barrier",
        FP8,
        _FENCE + _TRANSPOSE_ARRIVES,
        "    warp_sync();\n" + _TRANSPOSE_ARRIVES + "    fence_proxy_async_shared();\n",
    ),
    drop(
        "no proxy fence after clearing the tail",
        BF16,
        "  fence_proxy_async_shared();  // the tensor cores read what ordinary stores wrote\n",
    ),
    drop("no fence after mbarrier.init", FP8, "  fence_mbarrier_init();\n"),
    edit(
        "no CTA barrier after mbarrier.init", FP8, "  cta_sync();\n\n  const Role role", "  const Role role"
    ),
)

PRODUCTS = (
    edit(
        "no wgmma fence",
        FP8,
        "  wgmma_fence();\n  issue_pv(o, p, v.stage);\n  issue_qk",
        "  issue_pv(o, p, v.stage);\n  issue_qk",
    ),
    drop(
        "no wgmma fence between products of two shapes",
        FP8,
        "  wgmma_fence();  // the next products have another shape and accumulate into the same registers\n",
    ),
    edit("no commit", FP8, _STEP_PRODUCTS, _STEP_PRODUCTS.replace("  wgmma_commit_group();\n", "")),
    edit(
        "no wait for the products",
        FP8,
        _STEP_PRODUCTS,
        _STEP_PRODUCTS.replace("  wgmma_wait_group<0>(o, s);\n", ""),
    ),
    edit("wait leaves a group in flight", FP8, "wgmma_wait_group<0>(o, s)", "wgmma_wait_group<1>(o, s)"),
    edit("wait does not name S", FP8, "wgmma_wait_group<0>(o, s)", "wgmma_wait_group<0>(o)"),
    edit("no wait for the last P*V", FP8, _LAST_PV, _LAST_PV.replace("  wgmma_wait_group<0>(o);\n", "")),
    edit(
        "first product accumulates",
        FP8,
        "wgmma_e4m3_ss<kBlockN>(s, a, b, chunk + step);",
        "wgmma_e4m3_ss<kBlockN>(s, a, b, 1);",
    ),
    edit(
        "every product overwrites S",
        FP8,
        "wgmma_bf16_ss<kBlockN>(s, a, b, 1);",
        "wgmma_bf16_ss<kBlockN>(s, a, b, step);",
    ),
)

TURNS = (
    drop("turn not passed on", FP8, _PASS_ON),
    drop(
        "first turn not given",
        FP8,
        "  if (done == 0 && consumer + 1 == kNumConsumers && tile.num_blocks > 1) {\n"
        "    bar_arrive(turn_barrier(0), kTurnThreads);\n  }\n",
    ),
    edit(
        "turn not passed on by a skipped block",
        FP8,
        "bar_sync(turn_barrier(self.index), kTurnThreads);\npass_turn(self, block);\n",
        "bar_sync(turn_barrier(self.index), kTurnThreads);\n",
    ),
    edit("turn passed to itself", FP8, _PASS_ON, "    bar_arrive(turn_barrier(self.index), kTurnThreads);\n"),
    edit("turn of the wrong width", FP8, "kTurnThreads = 256;", "kTurnThreads = 384;"),
    edit(
        "turn passed to the one after the next",
        FP8,
        _PASS_ON,
        "    bar_arrive(turn_barrier((self.index + 2) % kNumConsumers), kTurnThreads);\n",
    ),
    edit(
        "register pool overdrawn, 384 threads", BF16, "kProducerRegisters = 24;", "kProducerRegisters = 32;"
    ),
    edit(
        "register pool overdrawn, 512 threads", FP8, "kConsumerRegisters = 160;", "kConsumerRegisters = 168;"
    ),
)

LAYOUTS = (
    edit(
        "rope product reads K_nope",
        FP8,
        "advance_descriptor(k_rope, chunk",
        "advance_descriptor(k_nope, chunk",
    ),
    edit(
        "rope product reads Q_nope",
        FP8,
        "advance_descriptor(q.rope, chunk",
        "advance_descriptor(q.nope, chunk",
    ),
    edit("wrong swizzle mode of V", FP8, "kVChunk0SwizzleMode = 2;", "kVChunk0SwizzleMode = 1;"),
    edit(
        "wrong swizzle mode of V, narrow chunk", FP8, "kVChunk1SwizzleMode = 3;", "kVChunk1SwizzleMode = 2;"
    ),
    Fault(name="K map without swizzle", kernel=FP8, swizzle_of="k_nope_map", swizzle_bytes=0),
    Fault(name="V map with the wrong swizzle", kernel=BF16, swizzle_of="v_map", swizzle_bytes=64),
    edit(
        "P packed in the wrong order",
        FP8,
        "cvt_e4m3x4(s[8 * i], s[8 * i + 1], s[8 * i + 4], s[8 * i + 5])",
        "cvt_e4m3x4(s[8 * i], s[8 * i + 4], s[8 * i + 1], s[8 * i + 5])",
    ),
    edit(
        "columns of V swapped",
        FP8,
        "self.even_first = lane < 16 ? 0x6420u : 0x7531u",
        "self.even_first = lane < 16 ? 0x7531u : 0x6420u",
    ),
    edit(
        "raw V read without swizzle",
        FP8,
        "swizzle<kVWidth>(((matrix & 1) * 8 + row) * kVWidth + matrix / 2 * 16)",
        "((matrix & 1) * 8 + row) * kVWidth + matrix / 2 * 16",
    ),
    edit("wrong step along K", FP8, "kKStepBytes = 32;", "kKStepBytes = 64;"),
    edit(
        "wrong stride between row groups",
        FP8,
        "kKMajorLeadingBytes, 8 * width, swizzle_mode",
        "kKMajorLeadingBytes, 16 * width, swizzle_mode",
    ),
    edit(
        "wrong leading offset of V",
        BF16,
        "matrix_descriptor(v_tile(stage), kVChunkBytes, 8 * kVWidth",
        "matrix_descriptor(v_tile(stage), 8 * kVWidth, kVChunkBytes",
    ),
    edit("wrong offset of K_rope", FP8, "kKRopeOffset = 12288;", "kKRopeOffset = 0;"),
    edit("consumer reads another's queries", FP8, "kNopeConsumerBytes = 8192;", "kNopeConsumerBytes = 4096;"),
)

MASKS = (
    edit("tail and diagonal not masked", FP8, "  if (kMasked) mask_scores(s, self, block);\n", ""),
    edit("mask one key too wide", BF16, "column < limit[i / 2 % 2]", "column <= limit[i / 2 % 2]"),
    edit(
        "V beyond the sequence not cleared in the transpose",
        FP8,
        "> valid_tokens) {\n    const i32 first_token",
        "> valid_tokens + 4096) {\n    const i32 first_token",
    ),
    edit(
        "V beyond the sequence not cleared",
        BF16,
        "      st_shared_v4_u32(v_tile(v.stage) + chunk * kVChunkBytes + unit * 16, 0, 0, 0, 0);\n",
        "",
    ),
    edit(
        "one row too few cleared",
        BF16,
        "unit = first_row * kVRowUnits + lane",
        "unit = (first_row + 1) * kVRowUnits + lane",
    ),
    edit(
        "rows before the sequence written",
        BF16,
        "      if (is_query(row)) st_global_v4_u32(unit, word[0]",
        "      st_global_v4_u32(unit, word[0]",
    ),
    edit(
        "row sums of a quad not combined",
        FP8,
        "    rows.row_sum[half] += shfl_xor_f32(rows.row_sum[half], 2);\n",
        "",
    ),
    drop(
        "rescale of O forgotten",
        BF16,
        "  MLA_UNROLL for (u32 i = 0; i < kOutputRegs; ++i) o[i] *= rescale[i / 2 % 2];\n",
    ),
    edit(
        "master of O shared by neighbours",
        FP8,
        "    st_shared_v4_u32(o_master + i * kMasterVectorStride, word[0]",
        "    st_shared_v4_u32((o_master ^ 16) + i * kMasterVectorStride, word[0]",
    ),
    drop(
        "master of O not cleared",
        FP8,
        "    st_shared_v4_u32(o_master + i * kMasterVectorStride, 0, 0, 0, 0);\n",
    ),
    edit(
        "vote of the own lane only",
        FP8,
        "  if (vote_any(sum[0] > kLazySumLimit || sum[1] > kLazySumLimit)) {",
        "  if (sum[0] > kLazySumLimit || sum[1] > kLazySumLimit) {",
    ),
)

FAULTS = WAITS + ARRIVES + PHASES + COUNTS + FENCES + PRODUCTS + TURNS + LAYOUTS + MASKS
