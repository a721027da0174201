"""Faults of the Blackwell kernels: a line left out or changed, in the 2Q or in the 1Q body."""

from __future__ import annotations

from tests.emulator.fault import Fault, drop, edit

_BUFFER_FREE = "mbarrier_wait(k_scale_empty(scales.stage), scales.phase);"
_SLOT_FREE = "mbarrier_wait(kv_empty(at.k.stage), at.k.phase);"
MAIN, SEED = "dsv3_fp8_sm100", "dsv3_fp8_seed_sm100"

PRODUCTS = (
    drop("2q: products do not wait for K", MAIN, "mbarrier_wait(k_full(at.k.stage), at.k.phase);"),
    drop("1q: products do not wait for K", MAIN, "mbarrier_wait(kv_full(at.k.stage), at.k.phase);", nth=1),
    drop("2q: products do not wait for the second Q", MAIN, "mbarrier_wait(q1_full(), 0);"),
    drop("2q: products do not wait for V", MAIN, "mbarrier_wait(v_full(at.v.stage), at.v.phase);"),
    drop("2q: K is never given back", MAIN, "tcgen05_commit(k_empty(at.k.stage));"),
    drop("2q: V is never given back", MAIN, "tcgen05_commit(v_empty(v_before));"),
    edit(
        "2q: K is given back before its second product",
        MAIN,
        "issue_qk(tmem, 1, at.k.stage, at.k.stage);\ntcgen05_commit(s_full(1));\n}\n"
        "tcgen05_commit(k_empty(at.k.stage));",
        "tcgen05_commit(k_empty(at.k.stage));\nissue_qk(tmem, 1, at.k.stage, at.k.stage);\n"
        "tcgen05_commit(s_full(1));\n}\n",
    ),
    edit(
        "1q: V of side 1 is given back before its product",
        MAIN,
        "issue_pv(tmem, 1, v_before, phase ^ 1, pair == 1);\ntcgen05_commit(kv_empty(v_before));",
        "tcgen05_commit(kv_empty(v_before));\nissue_pv(tmem, 1, v_before, phase ^ 1, pair == 1);",
    ),
)

LOADS = (
    drop("2q: K is loaded over one in use", MAIN, "mbarrier_wait(k_empty(at.k.stage), at.k.phase);"),
    drop("2q: V is loaded over one in use", MAIN, "mbarrier_wait(v_empty(at.v.stage), at.v.phase);"),
    drop("1q: K is loaded over a slot in use", MAIN, _SLOT_FREE, nth=1),
    drop("1q: V is loaded over a slot in use", MAIN, _SLOT_FREE, nth=2),
    edit("2q: more bytes are expected than come", MAIN, "kVTxBytes = 16384;", "kVTxBytes = 16512;", nth=1),
    edit(
        "1q: scales of the other side's blocks",
        MAIN,
        "if (side == 1) scales.advance();",
        "if (side == 0) scales.advance();",
    ),
    drop("seed: key scales are written over ones in use", SEED, _BUFFER_FREE),
    drop("seed: a slot of the one ring is loaded while in use", SEED, _SLOT_FREE, nth=2),
)

MERGE = (
    drop(
        "1q: sums are exchanged without a barrier",
        MAIN,
        "bar_sync((u32)NamedBarrier::state_written, kStateWrittenThreads);",
    ),
    edit(
        "1q: the sides are merged without weights",
        MAIN,
        "const float weight = ex2(merged.offset - mine[0]), other_weight = ex2(merged.offset - other[0]);",
        "const float weight = 1.0f, other_weight = 1.0f;",
    ),
)

# Text of both bodies, once in each, and what takes its place.
_IN_BOTH = {
    "V is multiplied before its tail is cleared": ("mbarrier_wait(v_tail_cleared(), 0);", "{}"),
    "products do not wait for the first part of P": ("mbarrier_wait(p_first(side), phase);", ""),
    "products do not wait for the rest of P": ("mbarrier_wait(p_rest(side), phase);", ""),
    "S is not handed over": ("tcgen05_commit(s_full(0));", ""),
    "O is not handed over": ("tcgen05_commit(o_full(side));", ""),
    "the first P * V adds to what lies there": ("step > 0 || !overwrites", "1"),
    "key scales are written over ones in use": (_BUFFER_FREE, ""),
    "key scales are not handed over": ("hand_over_scales(k_scale_full(scales.stage), lane);", ""),
    "a lane hands over the scales of all lanes": (
        "warp_sync();\nif (lane == 0) mbarrier_arrive(barrier);",
        "if (lane == 0) mbarrier_arrive(barrier);",
    ),
    "cleared rows of V are not fenced": ("fence_proxy_async_shared();", ""),
    "V is cleared before it has come": ("tail_warp(tile, warp - kTailWarpBegin, lane_index());", ""),
    "softmax does not wait for S": ("mbarrier_wait(s_full(side), phase);", ""),
    "S is read without a fence": (
        "mbarrier_wait(s_full(side), phase);\ntcgen05_fence_after_thread_sync();",
        "mbarrier_wait(s_full(side), phase);",
    ),
    "S is used before it is there": ("tcgen05_wait_ld(s);", ""),
    "softmax does not wait for key scales": (
        "mbarrier_wait(k_scale_full(scales.stage), scales.phase);\nscale_scores",
        "scale_scores",
    ),
    "softmax does not wait for query scales": ("mbarrier_wait(q_scale_full(), 0);", ""),
    "key scales are given back before they are read": (
        "scale_scores(s, k_scale_tile(scales.stage));\nrelease_scales(scales.stage);",
        "release_scales(scales.stage);\nscale_scores(s, k_scale_tile(scales.stage));",
    ),
    "P is handed over before it is written": (
        "tcgen05_wait_st();\ntcgen05_fence_before_thread_sync();\nmbarrier_arrive(group",
        "tcgen05_fence_before_thread_sync();\nmbarrier_arrive(group",
    ),
    "P is handed over without a fence": (
        "tcgen05_fence_before_thread_sync();\nmbarrier_arrive(group",
        "mbarrier_arrive(group",
    ),
    "factors are written over ones in use": (
        "if (!first) mbarrier_wait(alpha_empty(side), alpha_phase);",
        "",
    ),
    "softmax does not wait for the last O": ("mbarrier_wait(o_full(side), phase ^ 1);", ""),
    "hidden keys are seen": ("if (kMasked) mask_scores(s, row.visible - block * kBlockN);", ""),
    "correction does not wait for factors": ("mbarrier_wait(alpha_full(side), phase);", ""),
    "correction does not wait for O": ("mbarrier_wait(o_full(before), phase_before);", ""),
    "O is handed on before it is rescaled": (
        "tcgen05_wait_st();\n}\n\n// One step of a side",
        "}\n\n// One step of a side",
    ),
    "O is not rescaled": ("rescale_output(tmem + o_cols(side) + warp_lanes(warp_in_group), factor);", ";"),
    "side 1 waits for ever for its first O": ("if (sides.blocks[1] > 0) mbarrier_arrive(p_first(1));", ""),
    "rows are stored before all of them are staged": (
        "warp_sync();\n#pragma unroll 1\nfor (u32 i = lane;",
        "for (u32 i = lane;",
    ),
    "tensor memory is freed while it is read": (
        "bar_sync((u32)NamedBarrier::output_read, kOutputReadThreads);",
        "",
    ),
    "tensor memory is not freed": ("tcgen05_dealloc(tmem, kTmemCols);", ""),
    "roles start before their barriers are there": (
        "tcgen05_fence_before_thread_sync();\ncta_sync();",
        "tcgen05_fence_before_thread_sync();",
    ),
}
BOTH = tuple(
    edit(f"{body}: {name}", MAIN, old, new, nth=nth)
    for name, (old, new) in _IN_BOTH.items()
    for body, nth in (("2q", 1), ("1q", 2))
)

CONVERTED = "dsv3_blockscale_sm100"
_HANDED_OVER = "warp_sync();\nif (lane == 0) mbarrier_arrive(barrier);"
_FENCED = f"fence_proxy_async_shared();  // the tensor core reads what ordinary stores wrote\n{_HANDED_OVER}"
_ROPE_IN_BOTH = {
    "Q is converted before it has come": ("mbarrier_wait(q_rope_raw_full(side), 0);", ""),
    "rows are written over ones that are not read": (
        "bar_sync((u32)NamedBarrier::rope_read, kRopeReadThreads);",
        "",
    ),
    "what is converted is not fenced": (_FENCED, _HANDED_OVER),
}
CONVERTER = (
    drop(
        "2q rope: K is converted before it has come",
        CONVERTED,
        "mbarrier_wait(rope_raw_full(buffer), at.rope.phase);",
    ),
    drop(
        "1q rope: K is converted before it has come",
        CONVERTED,
        "mbarrier_wait(rope_raw_full(buffer), at.k.phase);",
    ),
    drop(
        "2q rope: products do not wait for K",
        CONVERTED,
        "mbarrier_wait(rope_full(at.rope.stage), at.rope.phase);",
    ),
    drop(
        "1q rope: products do not wait for K",
        CONVERTED,
        "mbarrier_wait(rope_full(at.k.stage), at.k.phase);",
        nth=1,
    ),
    *(
        edit(f"{body} rope: {name}", CONVERTED, old, new, nth=nth)
        for name, (old, new) in _ROPE_IN_BOTH.items()
        for body, nth in (("2q", 1), ("1q", 2))
    ),
)

SM100_FAULTS: tuple[Fault, ...] = (*PRODUCTS, *LOADS, *MERGE, *BOTH, *CONVERTER)
