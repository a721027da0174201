"""Faults of synchronisation and layout, each one edit of a generated kernel or of its plan."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan.model import Plan
from tests.emulator.support import plan_of, source_of

FP8 = "dsv3_fp8_sm90"
BF16 = "dsv3_bf16_sm90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`old` becomes `new` in the source at its `nth` place (0: the only one), or the plan changes."""

    name: str
    kernel: str
    old: str = ""
    new: str = ""
    nth: int = 0
    swizzle_of: str = ""
    swizzle_bytes: int = 0

    def build(self) -> EmulatedKernel:
        """The kernel with the fault in it."""
        plan, source = plan_of(self.kernel), source_of(self.kernel)
        if self.swizzle_of:
            return EmulatedKernel(_with_swizzle(plan, self.swizzle_of, self.swizzle_bytes), source)
        places = [match.span() for match in _pattern(self.old).finditer(source)]
        assert len(places) > self.nth if self.nth else len(places) == 1, (
            f"{self.name}: {self.old!r} stands {len(places)} times in {self.kernel}, adapt the fault"
        )
        begin, end = places[max(self.nth - 1, 0)]
        return EmulatedKernel(plan, source[:begin] + self.new + source[end:])


def _pattern(text: str) -> re.Pattern[str]:
    """`text` with any indentation of its lines."""
    return re.compile(r"\s*\n\s*".join(re.escape(line.strip()) for line in text.strip().splitlines()))


def _with_swizzle(plan: Plan, name: str, swizzle_bytes: int) -> Plan:
    variant = plan.variants[0]
    maps = tuple(
        dataclasses.replace(item, swizzle_bytes=swizzle_bytes) if item.name == name else item
        for item in variant.tensor_maps
    )
    return dataclasses.replace(plan, variants=(dataclasses.replace(variant, tensor_maps=maps),))


def _drop(name: str, kernel: str, old: str, *, nth: int = 0) -> Fault:
    return Fault(name=name, kernel=kernel, old=old, new="", nth=nth)


def _edit(name: str, kernel: str, old: str, new: str, *, nth: int = 0) -> Fault:
    return Fault(name=name, kernel=kernel, old=old, new=new, nth=nth)


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
_PASS_ON = "    bar_arrive(turn_barrier(consumer + 1 < kNumConsumers ? consumer + 1 : 0), kTurnThreads);\n"
_STEP_PRODUCTS = (
    "  issue_pv(o, p, v.stage);\n  issue_qk(s, self.q, k.stage);\n  wgmma_commit_group();\n"
    "  wgmma_wait_group<0>(o, s);\n"
)
_LAST_PV = "  issue_pv(o, p, v.stage);\n  wgmma_commit_group();\n  wgmma_wait_group<0>(o);\n"

WAITS = (
    _edit("no wait for K", FP8, _STEP_WAITS, "  mbarrier_wait(v_full(v.stage), v.phase);\n" + _TURN),
    _edit("no wait for V", FP8, _STEP_WAITS, "  mbarrier_wait(k_full(k.stage), k.phase);\n" + _TURN),
    _drop("no wait for Q", FP8, "  mbarrier_wait(q_full(), 0);\n"),
    _drop("no wait for a free K slot", FP8, "      mbarrier_wait(k_empty(k.stage), k.phase);\n"),
    _drop("no wait for a free raw V slot", FP8, "      mbarrier_wait(v_raw_empty(v.stage), v.phase);\n"),
    _drop("no wait for raw V", FP8, "    mbarrier_wait(v_raw_full(raw.stage), raw.phase);\n"),
    _drop("no wait for a free V slot", FP8, "    mbarrier_wait(v_empty(v.stage), v.phase);\n"),
    _edit(
        "no wait before the last P*V",
        FP8,
        "  mbarrier_wait(v_full(v.stage), v.phase);\n  wgmma_fence();\n",
        "  wgmma_fence();\n",
    ),
    _drop(
        "no wait for the cleared tail", BF16, "  if (has_tail(tile)) mbarrier_wait(v_tail_cleared(), 0);\n"
    ),
    _drop("tail warp does not wait for V", BF16, "  mbarrier_wait(v_full(0), 0);\n"),
)

ARRIVES = (
    _drop("K slot not released", FP8, "  release_slot(k_empty(k_stage), self.lane);\n"),
    _edit("V slot not released", FP8, _RELEASE_V, "v.advance();\n" + _FINISH),
    _drop("K slot of a skipped block not released", FP8, "release_slot(k_empty(k.stage), self.lane);\n"),
    _drop("raw V slot not released", FP8, "      mbarrier_arrive(v_raw_empty(raw.stage));\n"),
    _drop("transposed V not signalled", FP8, "      mbarrier_arrive(v_full(v.stage));\n"),
    _edit(
        "scales signalled before the other lanes are done",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(barrier);\n",
        "  if (lane == 0) mbarrier_arrive(barrier);\n",
    ),
    _drop("scales not signalled", FP8, "  if (lane == 0) mbarrier_arrive(barrier);\n"),
    _edit(
        "scales stored without a wait for the slot",
        FP8,
        "      mbarrier_wait(k_empty(k.stage), k.phase);\n      if (issues_copies) load_k_block",
        "      if (issues_copies) mbarrier_wait(k_empty(k.stage), k.phase);\n"
        "      if (issues_copies) load_k_block",
    ),
    _drop("cleared tail not signalled", BF16, "  if (lane == 0) mbarrier_arrive(v_tail_cleared());\n"),
    _edit(
        "every lane issues the copies",
        FP8,
        "const bool issues_copies = elect_sync();",
        "const bool issues_copies = true;",
    ),
    _edit(
        "K slot released before its scales are read",
        FP8,
        "  scale_scores(s, rows, k_stage, self.lane);\n  release_slot(k_empty(k_stage), self.lane);\n",
        "  release_slot(k_empty(k_stage), self.lane);\n  scale_scores(s, rows, k_stage, self.lane);\n",
    ),
    _edit(
        "V slot released before the products are complete",
        FP8,
        _STEP_PRODUCTS,
        "  issue_pv(o, p, v.stage);\n  issue_qk(s, self.q, k.stage);\n  wgmma_commit_group();\n"
        "  release_slot(v_empty(v.stage), self.lane);\n  wgmma_wait_group<0>(o, s);\n",
    ),
    _drop(
        "slot released without the other lanes",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
    ),
    _edit(
        "slot released before the other lanes are done",
        FP8,
        "  warp_sync();\n  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
        "  if (lane == 0) mbarrier_arrive(empty_barrier);\n",
    ),
    _edit(
        "transposed V signalled before the other lanes are done",
        FP8,
        _FENCE,
        "    fence_proxy_async_shared();\n",
    ),
)

PHASES = (
    _edit(
        "producer starts at phase 0",
        FP8,
        "  PipelineState<kKStages> k{0, 1};",
        "  PipelineState<kKStages> k{0, 0};",
    ),
    _edit(
        "raw V producer starts at phase 0",
        FP8,
        "PipelineState<kVRawStages> v{0, 1};",
        "PipelineState<kVRawStages> v{0, 0};",
    ),
    _edit(
        "transpose starts at phase 0",
        FP8,
        "PipelineState<kVStages> v{0, 1};",
        "PipelineState<kVStages> v{0, 0};",
    ),
    _edit(
        "raw V consumer starts at phase 1",
        FP8,
        "PipelineState<kVRawStages> raw{0, 0};",
        "PipelineState<kVRawStages> raw{0, 1};",
    ),
    _edit(
        "consumer starts K at phase 1",
        FP8,
        "  PipelineState<kKStages> k{0, 0};",
        "  PipelineState<kKStages> k{0, 1};",
    ),
    _edit(
        "consumer starts V at phase 1",
        FP8,
        "  PipelineState<kVStages> v{0, 0};",
        "  PipelineState<kVStages> v{0, 1};",
    ),
    _edit("Q waited for with phase 1", FP8, "mbarrier_wait(q_full(), 0)", "mbarrier_wait(q_full(), 1)"),
    _drop("phase never flips", FP8, "      phase ^= 1;\n"),
    _edit(
        "raw V ring one slot too short in one role",
        FP8,
        "PipelineState<kVRawStages> raw{0, 0};",
        "PipelineState<kVRawStages - 1> raw{0, 0};",
    ),
    _edit(
        "consumer starts at slot 1",
        FP8,
        "  PipelineState<kKStages> k{0, 0};",
        "  PipelineState<kKStages> k{1, 0};",
    ),
    _edit("V slot not advanced", FP8, _RELEASE_V, "release_slot(v_empty(v.stage), self.lane);\n" + _FINISH),
    _edit(
        "scales of another slot",
        FP8,
        "  scale_scores(s, rows, k_stage, self.lane);",
        "  scale_scores(s, rows, 0, self.lane);",
    ),
)

COUNTS = (
    _edit("one consumer arrival too few", FP8, "kConsumerArrivals = 12;", "kConsumerArrivals = 11;"),
    _edit("one consumer arrival too many", FP8, "kConsumerArrivals = 12;", "kConsumerArrivals = 13;"),
    _edit("one load arrival too few", FP8, "kScaledLoadArrivals = 2;", "kScaledLoadArrivals = 1;"),
    _edit("one load arrival too many", FP8, "kScaledLoadArrivals = 2;", "kScaledLoadArrivals = 3;"),
    _edit("16 bytes too few announced for K", FP8, "kKTxBytes = 24576;", "kKTxBytes = 24560;"),
    _edit("16 bytes too many announced for K", FP8, "kKTxBytes = 24576;", "kKTxBytes = 24592;"),
    _edit("16 bytes too few announced for V", FP8, "kVTxBytes = 12288;", "kVTxBytes = 12272;"),
    _edit("16 bytes too many announced for Q", FP8, "kQTxBytes = 49152;", "kQTxBytes = 49168;"),
    _edit("half of Q announced", FP8, "kQTxBytes = 49152;", "kQTxBytes = 24576;"),
    _edit("one V block not loaded", FP8, "block >= -1; --block", "block >= 0; --block"),
)

FENCES = (
    _edit("no proxy fence after the transpose", FP8, _FENCE, "    warp_sync();\n"),
    _edit(
        "proxy fence after the barrier",
        FP8,
        _FENCE + _TRANSPOSE_ARRIVES,
        "    warp_sync();\n" + _TRANSPOSE_ARRIVES + "    fence_proxy_async_shared();\n",
    ),
    _drop(
        "no proxy fence after clearing the tail",
        BF16,
        "  fence_proxy_async_shared();  // the tensor cores read what ordinary stores wrote\n",
    ),
    _drop("no fence after mbarrier.init", FP8, "  fence_mbarrier_init();\n"),
    _edit(
        "no CTA barrier after mbarrier.init", FP8, "  cta_sync();\n\n  const Role role", "  const Role role"
    ),
)

PRODUCTS = (
    _edit(
        "no wgmma fence",
        FP8,
        "  wgmma_fence();\n  issue_pv(o, p, v.stage);\n  issue_qk",
        "  issue_pv(o, p, v.stage);\n  issue_qk",
    ),
    _edit("no commit", FP8, _STEP_PRODUCTS, _STEP_PRODUCTS.replace("  wgmma_commit_group();\n", "")),
    _edit(
        "no wait for the products",
        FP8,
        _STEP_PRODUCTS,
        _STEP_PRODUCTS.replace("  wgmma_wait_group<0>(o, s);\n", ""),
    ),
    _edit("wait leaves a group in flight", FP8, "wgmma_wait_group<0>(o, s)", "wgmma_wait_group<1>(o, s)"),
    _edit("wait does not name S", FP8, "wgmma_wait_group<0>(o, s)", "wgmma_wait_group<0>(o)"),
    _edit("no wait for the last P*V", FP8, _LAST_PV, _LAST_PV.replace("  wgmma_wait_group<0>(o);\n", "")),
    _edit(
        "first product accumulates",
        FP8,
        "wgmma_e4m3_ss<kBlockN>(s, a, b, chunk + step);",
        "wgmma_e4m3_ss<kBlockN>(s, a, b, 1);",
    ),
    _edit(
        "every product overwrites S",
        FP8,
        "wgmma_bf16_ss<kBlockN>(s, a, b, 1);",
        "wgmma_bf16_ss<kBlockN>(s, a, b, step);",
    ),
)

TURNS = (
    _drop("turn not passed on", FP8, _PASS_ON),
    _drop(
        "first turn not given",
        FP8,
        "  if (consumer + 1 == kNumConsumers && tile.num_blocks > 1) "
        "bar_arrive(turn_barrier(0), kTurnThreads);\n",
    ),
    _edit(
        "turn not passed on by a skipped block",
        FP8,
        "bar_sync(turn_barrier(self.index), kTurnThreads);\npass_turn(self.index, block);\n",
        "bar_sync(turn_barrier(self.index), kTurnThreads);\n",
    ),
    _edit("turn passed to itself", FP8, _PASS_ON, "    bar_arrive(turn_barrier(consumer), kTurnThreads);\n"),
    _edit("turn of the wrong width", FP8, "kTurnThreads = 256;", "kTurnThreads = 384;"),
    _edit(
        "turn passed to the one after the next",
        FP8,
        _PASS_ON,
        "    bar_arrive(turn_barrier((consumer + 2) % kNumConsumers), kTurnThreads);\n",
    ),
    _edit(
        "register pool overdrawn, 384 threads", BF16, "kProducerRegisters = 24;", "kProducerRegisters = 32;"
    ),
    _edit(
        "register pool overdrawn, 512 threads", FP8, "kConsumerRegisters = 160;", "kConsumerRegisters = 168;"
    ),
)

LAYOUTS = (
    _edit(
        "rope product reads K_nope",
        FP8,
        "advance_descriptor(k_rope, chunk",
        "advance_descriptor(k_nope, chunk",
    ),
    _edit(
        "rope product reads Q_nope",
        FP8,
        "advance_descriptor(q.rope, chunk",
        "advance_descriptor(q.nope, chunk",
    ),
    _edit("wrong swizzle mode of V", FP8, "kVChunk0SwizzleMode = 2;", "kVChunk0SwizzleMode = 1;"),
    _edit(
        "wrong swizzle mode of V, narrow chunk", FP8, "kVChunk1SwizzleMode = 3;", "kVChunk1SwizzleMode = 2;"
    ),
    Fault(name="K map without swizzle", kernel=FP8, swizzle_of="k_nope_map", swizzle_bytes=0),
    Fault(name="V map with the wrong swizzle", kernel=BF16, swizzle_of="v_map", swizzle_bytes=64),
    _edit(
        "P packed in the wrong order",
        FP8,
        "cvt_e4m3x4(s[8 * i], s[8 * i + 1], s[8 * i + 4], s[8 * i + 5])",
        "cvt_e4m3x4(s[8 * i], s[8 * i + 4], s[8 * i + 1], s[8 * i + 5])",
    ),
    _edit("columns of V swapped", FP8, "lane < 16 ? 0x6420u : 0x7531u", "lane < 16 ? 0x7531u : 0x6420u"),
    _edit(
        "raw V read without swizzle",
        FP8,
        "swizzle<kVWidth>(token * kVWidth + column_unit % kVChunkUnits * 16)",
        "token * kVWidth + column_unit % kVChunkUnits * 16",
    ),
    _edit("wrong step along K", FP8, "kKStepBytes = 32;", "kKStepBytes = 64;"),
    _edit(
        "wrong stride between row groups",
        FP8,
        "kKMajorLeadingBytes, 8 * width, swizzle_mode",
        "kKMajorLeadingBytes, 16 * width, swizzle_mode",
    ),
    _edit(
        "wrong leading offset of V",
        BF16,
        "matrix_descriptor(v_tile(stage), kVChunkBytes, 8 * kVWidth",
        "matrix_descriptor(v_tile(stage), 8 * kVWidth, kVChunkBytes",
    ),
    _edit("wrong offset of K_rope", FP8, "kKRopeOffset = 12288;", "kKRopeOffset = 0;"),
    _edit(
        "consumer reads another's queries", FP8, "kNopeConsumerBytes = 8192;", "kNopeConsumerBytes = 4096;"
    ),
)

MASKS = (
    _edit("tail and diagonal not masked", FP8, "  if (kMasked) mask_scores(s, self, block);\n", ""),
    _edit("mask one key too wide", BF16, "column < limit[i / 2 % 2]", "column <= limit[i / 2 % 2]"),
    _edit(
        "V beyond the sequence not cleared in the transpose",
        FP8,
        "> valid_tokens) {\n    r[0]",
        "> valid_tokens + 4096) {\n    r[0]",
    ),
    _edit(
        "V beyond the sequence not cleared",
        BF16,
        "      st_shared_v4_u32(v_tile(0) + chunk * kVChunkBytes + unit * 16, 0, 0, 0, 0);\n",
        "",
    ),
    _edit(
        "one row too few cleared",
        BF16,
        "unit = first_row * kVRowUnits + lane",
        "unit = (first_row + 1) * kVRowUnits + lane",
    ),
    _edit(
        "rows beyond the sequence written",
        BF16,
        "      if (row < tile.q_len) st_global_v4_u32(unit, word[0]",
        "      st_global_v4_u32(unit, word[0]",
    ),
    _edit(
        "row sums of a quad not combined",
        FP8,
        "    rows.row_sum[half] += shfl_xor_f32(rows.row_sum[half], 2);\n",
        "",
    ),
    _drop(
        "rescale of O forgotten",
        BF16,
        "  for (u32 i = 0; i < kOutputRegs; ++i) o[i] *= rescale[i / 2 % 2];\n",
    ),
    _edit(
        "master of O shared by neighbours",
        FP8,
        "    st_shared_v4_u32(o_master + i * kMasterVectorStride, word[0]",
        "    st_shared_v4_u32((o_master ^ 16) + i * kMasterVectorStride, word[0]",
    ),
    _drop(
        "master of O not cleared",
        FP8,
        "    st_shared_v4_u32(o_master + i * kMasterVectorStride, 0, 0, 0, 0);\n",
    ),
    _edit(
        "vote of the own lane only",
        FP8,
        "  if (vote_any(sum[0] > rows.sum_limit[0] || sum[1] > rows.sum_limit[1])) {",
        "  if (sum[0] > rows.sum_limit[0] || sum[1] > rows.sum_limit[1]) {",
    ),
)

FAULTS = WAITS + ARRIVES + PHASES + COUNTS + FENCES + PRODUCTS + TURNS + LAYOUTS + MASKS
