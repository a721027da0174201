"""Faults of a kernel with tcgen05 and tensor memory: edits of `tensor_chain.cu`, and how each is found."""

from __future__ import annotations

from tests.emulator.tensor_fault import drop, edit, edits

_AFTER = "tcgen05_fence_after_thread_sync();\n"
_P_WAIT = "mbarrier_wait(p_ready(), block & 1);\n"
_S_WAIT = "mbarrier_wait(s_full(), block & 1);\n"
_HALVE_WAIT = "mbarrier_wait(o_full(), (block - 1) & 1);\n"
_LAST_WAIT = "mbarrier_wait(o_full(), (kBlocks - 1) & 1);\n"
_RELEASE_SCALES = "warp_sync();\nif (thread_index() % 32 == 0) mbarrier_arrive(k_scale_empty(stage));\n"
_DEALLOC = "if (warp == kMmaWarp) tcgen05_dealloc(tmem, kColumns);\n"
_ALLOC = "tcgen05_alloc(smem_base() + kTmemAddress, kColumns);\n"
_CLEAR = (
    "if (kKeys < (block + 1) * kBlockN) {\nmbarrier_wait(v_full(slot.stage), slot.phase);\n"
    "clear_tail(slot.stage, block * kBlockN);\n}\n"
)
_MMA_ROLE = "if (elect_sync()) mma_warp(tmem);\n"
_ISSUE_QK = "issue_qk(tmem, slot.stage);\n"
_FREE_K = "tcgen05_commit(k_empty(slot.stage));\n"
_SIGNAL_S = "tcgen05_commit(s_full());\n"
_ISSUE_PV = "issue_pv(tmem + kOColumn, tmem, slot.stage, block != 0);\n"
_FREE_V = "tcgen05_commit(v_empty(slot.stage));\n"
_SIGNAL_P = "mbarrier_arrive(p_ready());\n"

ORDER = (
    drop("no commit of S", "deadlock", "tcgen05_commit(s_full());\n"),
    drop("no commit of O", "deadlock", "tcgen05_commit(o_full());\n"),
    edit("commit of S on the wrong barrier", "deadlock", "commit(s_full())", "commit(o_full())"),
    edit(
        "commit of S ahead of its products",
        "race",
        _ISSUE_QK + _FREE_K + _SIGNAL_S,
        _SIGNAL_S + _ISSUE_QK + _FREE_K,
    ),
    edit(
        "plain arrive in place of a commit", "race", "tcgen05_commit(s_full());", "mbarrier_arrive(s_full());"
    ),
    edits(
        "commit by another thread than the products'",
        "race",
        [
            (_MMA_ROLE, "mma_warp(tmem);\n"),
            (
                _ISSUE_QK + _FREE_K + _SIGNAL_S,
                "if (thread_index() % 32 == 0) issue_qk(tmem, slot.stage);\nwarp_sync();\n"
                "if (thread_index() % 32 == 1) tcgen05_commit(k_empty(slot.stage));\n"
                "if (thread_index() % 32 == 1) tcgen05_commit(s_full());\n",
            ),
            (
                _ISSUE_PV,
                "if (thread_index() % 32 != 0) { slot.advance(); continue; }\n" + _ISSUE_PV,
            ),
        ],
    ),
    drop("no wait for S", "uninitialised or race", _S_WAIT),
    drop("no wait for P", "race", _P_WAIT),
    drop("no wait for O before it is halved", "barrier", _HALVE_WAIT),
    drop("no wait for the last O", "race", _LAST_WAIT),
    edit("every lane issues the products", "tcgen05", _MMA_ROLE, "mma_warp(tmem);\n"),
    edit(
        "two threads issue the products",
        "tcgen05",
        _MMA_ROLE,
        "if (elect_sync() || thread_index() % 32 == 13 || thread_index() % 32 == 29) mma_warp(tmem);\n",
    ),
)

WAITS_AND_FENCES = (
    drop("no wait::ld of S", "tcgen05-wait", "tcgen05_wait_ld(s);\n"),
    edit(
        "wait::ld names half of the registers",
        "tcgen05-wait",
        "tcgen05_wait_ld(s);",
        "tcgen05_wait_ld(s[0]);",
    ),
    edit(
        "S used ahead of its wait::ld",
        "tcgen05-wait",
        "tcgen05_wait_ld(s);\n",
        "s[0][5] *= 2.0f;\ntcgen05_wait_ld(s);\ns[0][5] *= 0.5f;\n",
    ),
    edit(
        "no wait::ld of O while it is halved",
        "tcgen05-wait",
        "tcgen05_wait_ld(o);\nfor (u32 i = 0; i < 16; ++i) o[i] *= 0.5f;\n",
        "for (u32 i = 0; i < 16; ++i) o[i] = 0.5f;\n",
    ),
    drop("no wait::st of P", "tcgen05-wait", "tcgen05_wait_st();\n"),
    edit(
        "wait::st behind the arrive",
        "tcgen05-wait or tcgen05-fence",
        "tcgen05_wait_st();\ntcgen05_fence_before_thread_sync();\nmbarrier_arrive(p_ready());\n",
        "tcgen05_fence_before_thread_sync();\nmbarrier_arrive(p_ready());\ntcgen05_wait_st();\n",
    ),
    drop("no fence::before ahead of p_ready", "tcgen05-fence", "tcgen05_fence_before_thread_sync();\n"),
    edit(
        "fence::before ahead of the wait::st",
        "tcgen05-fence",
        "tcgen05_wait_st();\ntcgen05_fence_before_thread_sync();\n",
        "tcgen05_fence_before_thread_sync();\ntcgen05_wait_st();\n",
    ),
    edit("no fence::after behind p_ready", "tcgen05-fence", _P_WAIT + _AFTER, _P_WAIT),
    edit("no fence::after behind s_full", "tcgen05-fence", _S_WAIT + _AFTER, _S_WAIT),
    edit("fence::after ahead of its barrier", "tcgen05-fence", _S_WAIT + _AFTER, _AFTER + _S_WAIT),
    edit("no fence::after ahead of the output", "tcgen05-fence", _LAST_WAIT + _AFTER, _LAST_WAIT),
)

PLACES = (
    edit("another warp's lanes", "tmem", "tmem + (warp << 21)", "tmem + ((warp ^ 1) << 21)"),
    edit("every warp reads the first lanes", "tmem", "tmem + (warp << 21)", "tmem"),
    edit(
        "lanes of the warp's index in the CTA",
        "tmem",
        _MMA_ROLE + "warp_sync();\n",
        _MMA_ROLE + "warp_sync();\nfloat s[2];\n"
        "tcgen05_ld_32x32b_x2_f32(s, tmem + (warp << 21));\ntcgen05_wait_ld(s);\n",
    ),
    edit(
        "S one column too far",
        "uninitialised",
        "tcgen05_ld_32x32b_x32_f32(s[1], lanes + 32);",
        "tcgen05_ld_32x32b_x32_f32(s[1], lanes + 33);",
    ),
    edit("the same half of S twice", "wrong result", "(s[1], lanes + 32)", "(s[1], lanes)"),
    edit(
        "P behind S where O is",
        "tcgen05-wait",
        "tcgen05_st_32x32b_x32_u32(lanes, p);",
        "tcgen05_st_32x32b_x32_u32(lanes + 64, p);",
    ),
    edit("O over the columns of S", "race", "constexpr u32 kOColumn = 64;", "constexpr u32 kOColumn = 32;"),
    edit("steps of P one column apart", "wrong result", "p + key / kStepKeys * 8", "p + key / kStepKeys"),
    edit("O beyond the allocation", "tmem", "constexpr u32 kOColumn = 64;", "constexpr u32 kOColumn = 96;"),
    edit(
        "address of the allocation ignored",
        "tmem",
        "tmem = ld_shared_u32(smem_base() + kTmemAddress);",
        "tmem = 512 - kColumns / 2;",
    ),
    edit(
        "address read without a barrier",
        "race or uninitialised",
        "cta_sync();\nconst u32 tmem = ld_shared_u32(smem_base() + kTmemAddress);\n",
        "const u32 tmem = ld_shared_u32(smem_base() + kTmemAddress);\ncta_sync();\n",
    ),
)

ALLOCATION = (
    drop("no dealloc", "tmem", _DEALLOC),
    edits(
        "early return behind the alloc",
        "tmem",
        [
            ("if (params.rows == 0) return;\n", ""),
            ("cta_sync();\nconst u32 tmem", "if (params.rows == 0) return;\ncta_sync();\nconst u32 tmem"),
        ],
        rows=0,
    ),
    edit("dealloc ahead of the last use", "race", "cta_sync();\n" + _DEALLOC, _DEALLOC + "cta_sync();\n"),
    edit(
        "dealloc of half of the columns",
        "tmem",
        "tcgen05_dealloc(tmem, kColumns)",
        "tcgen05_dealloc(tmem, 64)",
    ),
    edit("96 columns", "tmem", "constexpr u32 kColumns = 128;", "constexpr u32 kColumns = 96;"),
    edit("64 columns", "tmem", "constexpr u32 kColumns = 128;", "constexpr u32 kColumns = 64;"),
    edits(
        "two allocs that do not fit",
        "deadlock",
        [
            ("constexpr u32 kColumns = 128;", "constexpr u32 kColumns = 512;"),
            (_ALLOC, _ALLOC + "tcgen05_alloc(smem_base() + kTmemAddress + 4, kColumns);\n"),
        ],
    ),
    edit(
        "alloc by every warp",
        "race or tmem",
        "if (warp == kMmaWarp) {\ntcgen05_alloc",
        "if (true) {\ntcgen05_alloc",
    ),
    edits(
        "alloc by one lane",
        "deadlock",
        [
            (_ALLOC, "if (elect_sync()) tcgen05_alloc(smem_base() + kTmemAddress, kColumns);\n"),
            ("tcgen05_relinquish_alloc_permit();\n", ""),
        ],
    ),
    edit(
        "alloc after the permit is gone",
        "tmem",
        _ALLOC + "tcgen05_relinquish_alloc_permit();\n",
        "tcgen05_relinquish_alloc_permit();\n" + _ALLOC,
    ),
    edit(
        "use after the dealloc",
        "tmem",
        _DEALLOC,
        _DEALLOC + "cta_sync();\nfloat late[2];\nif (warp < 4) {\n"
        "tcgen05_ld_32x32b_x2_f32(late, tmem + (warp << 21));\ntcgen05_wait_ld(late);\n}\n",
    ),
)

SHARED_MEMORY = (
    edit(
        "V released ahead of its products",
        "race",
        _ISSUE_PV + _FREE_V,
        _FREE_V + _ISSUE_PV,
    ),
    edit(
        "V released by a plain arrive",
        "race",
        "tcgen05_commit(v_empty(slot.stage));",
        "mbarrier_arrive(v_empty(slot.stage));",
    ),
    drop("no wait for a free K slot", "race or barrier", "mbarrier_wait(k_empty(slot.stage), slot.phase);\n"),
    drop("no wait for a free V slot", "race or barrier", "mbarrier_wait(v_empty(slot.stage), slot.phase);\n"),
    drop("no wait for K", "race or uninitialised", "mbarrier_wait(k_full(slot.stage), slot.phase);\n"),
    edit(
        "no wait for V",
        "race or uninitialised",
        "mbarrier_wait(v_full(slot.stage), slot.phase);\nmbarrier_wait(p_ready",
        "mbarrier_wait(p_ready",
    ),
    edits(
        "key scales released by the commit of K",
        "race",
        [
            ("mbarrier_wait(k_scale_empty(slot.stage), slot.phase);\n", ""),
            ("if (thread_index() % 32 == 0) mbarrier_arrive(k_scale_empty(stage));\n", ""),
        ],
    ),
    edit(
        "key scales released ahead of the other lanes",
        "race",
        _RELEASE_SCALES,
        "if (thread_index() % 32 == 0) mbarrier_arrive(k_scale_empty(stage));\n",
    ),
    edit(
        "expected bytes of K without its scales",
        "deadlock or transaction or race",
        "kKTxBytes = kBlockBytes + kScaleBytes",
        "kKTxBytes = kBlockBytes",
    ),
    edit(
        "expected bytes of a V twice as wide",
        "deadlock",
        "kVTxBytes = kBlockBytes",
        "kVTxBytes = 2 * kBlockBytes",
    ),
    edit(
        "expected bytes of a V half as wide",
        "deadlock or transaction",
        "kVTxBytes = kBlockBytes",
        "kVTxBytes = kBlockBytes / 2",
    ),
    edits(
        "output staged over K and V of the next block",
        "race",
        [
            (
                "smem_base() + kQ + thread_index() * kDepth * 2",
                "smem_base() + kK + thread_index() * kDepth * 2",
            ),
            (
                "if (block != 0) {\nmbarrier_wait(o_full()",
                "if (block == 1) store_output(out, lanes);\nif (block != 0) {\nmbarrier_wait(o_full()",
            ),
        ],
    ),
    edits(
        "output staged over Q ahead of the last products",
        "race",
        [
            (_LAST_WAIT + _AFTER + "store_output(out, lanes);\n", ""),
            (
                "mbarrier_arrive(p_ready());\nslot.advance();\n",
                "mbarrier_arrive(p_ready());\n"
                "if (block == 1) st_shared_v4_u32(smem_base() + kQ + thread_index() * 128, 0, 0, 0, 0);\n"
                "slot.advance();\n",
            ),
        ],
    ),
    drop("stale rows of V times 0", "wrong result", _CLEAR),
    edit(
        "cleared rows of V without a proxy fence",
        "proxy-fence",
        "0, 0, 0, 0);\n}\nfence_proxy_async_shared();\n}\n",
        "0, 0, 0, 0);\n}\n}\n",
    ),
    edits(
        "rows of V cleared behind p_ready",
        "race",
        [(_CLEAR, ""), ("mbarrier_arrive(p_ready());\n", "mbarrier_arrive(p_ready());\n" + _CLEAR)],
    ),
    edit(
        "rows of V cleared before they are there",
        "race or uninitialised",
        "mbarrier_wait(v_full(slot.stage), slot.phase);\nclear_tail",
        "clear_tail",
    ),
    edit(
        "output stored without a proxy fence",
        "proxy-fence",
        "fence_proxy_async_shared();\nbar_sync(1, kSoftmaxThreads);\n",
        "bar_sync(1, kSoftmaxThreads);\n",
    ),
    drop("barriers not fenced for the tensor core", "proxy-fence", "fence_mbarrier_init();\n"),
)

VALUES = (
    edit(
        "S accumulates over the block before",
        "uninitialised",
        "tcgen05_mma_f16_ss(s, q_step, k_step, kQkInstruction, byte != 0);",
        "tcgen05_mma_f16_ss(s, q_step, k_step, kQkInstruction, 1);",
    ),
    edit("O starts over with every block", "wrong result", "slot.stage, block != 0);\n", "slot.stage, 0);\n"),
    edit("O accumulates from the start", "uninitialised", "slot.stage, block != 0);\n", "slot.stage, 1);\n"),
    edit(
        "V taken as K-major",
        "race or uninitialised",
        "(kType, kRows, kDepth, false, true)",
        "(kType, kRows, kDepth, false, false)",
    ),
    edit("f16 in place of bf16", "wrong result", "kType = kFp8 ? 0 : 1;", "kType = 0;"),
    edit(
        "M of 64",
        "uninitialised",
        "(kType, kRows, kBlockN, false, false)",
        "(kType, 64, kBlockN, false, false)",
    ),
    edit(
        "N of half a block",
        "uninitialised",
        "(kType, kRows, kBlockN, false, false)",
        "(kType, kRows, kBlockN / 2, false, false)",
    ),
    edit(
        "steps of K one row apart",
        "tcgen05",
        "advance_tcgen05_descriptor(k, byte)",
        "advance_tcgen05_descriptor(k, byte * 4)",
    ),
    edit("P in the wrong half of its columns", "wrong result", "p[i] = kFp8 ? ", "p[i ^ 1] = kFp8 ? "),
)

FP8 = (
    edit(
        "e4m3: P written over S that is still read",
        "tcgen05-wait",
        "read_scores(s, lanes, slot.stage, block * kBlockN);\nwrite_p(lanes, s);\n",
        "read_scores(s, lanes, slot.stage, block * kBlockN);\nfloat again[8];\n"
        "tcgen05_ld_32x32b_x8_f32(again, lanes);\nwrite_p(lanes, s);\ntcgen05_wait_ld(again);\n",
        fp8=True,
    ),
    edit(
        "e4m3: swizzle of 128 bytes in the descriptor",
        "race or uninitialised",
        "kLayout = kFp8 ? 4 : 2;",
        "kLayout = 2;",
        fp8=True,
    ),
    edit("e4m3: kind::f16", "wrong result", "tcgen05_mma_f8f6f4_ts(o,", "tcgen05_mma_f16_ts(o,", fp8=True),
    edit(
        "e4m3: P read as 16-bit columns",
        "wrong result",
        "p + key / kStepKeys * 8",
        "p + key / kStepKeys * 16",
        fp8=True,
    ),
)

TENSOR_FAULTS = (*ORDER, *WAITS_AND_FENCES, *PLACES, *ALLOCATION, *SHARED_MEMORY, *VALUES, *FP8)
