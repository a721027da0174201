"""Faults in what only forms have: transposed V, raw rope, scales of V, dense sides, factors read again."""

from __future__ import annotations

from tests.emulator.fault import Fault, drop, edit, edits

_TAIL_STORE = "    st_shared_v4_u32(address, word[0], word[1], word[2], word[3]);\n"
_COPY_1 = "cp_async_bulk_tensor_3d(v_tile(stage) + kVChunk1Offset,"

TRANSPOSED_V = (
    drop("tokens beyond the sequence not cleared", "transposed", _TAIL_STORE),
    edit(
        "one token too few cleared",
        "transposed",
        "const i32 valid_in_group = (i32)valid_tokens - (i32)group * 16;",
        "const i32 valid_in_group = (i32)valid_tokens + 1 - (i32)group * 16;",
    ),
    edit(
        "tokens cleared in the order of the sequence",
        "transposed",
        "const i32 token = 2 * word + i % 2 + i / 2 * 8;",
        "const i32 token = 4 * word + i;",
    ),
    drop(
        "no proxy fence after clearing tokens",
        "transposed",
        "  fence_proxy_async_shared();  // the tensor cores read what ordinary stores wrote\n",
    ),
    drop(
        "no wait for the cleared tokens",
        "transposed",
        "if (has_tail(tile) && (kKStages > 1 || block == 0)) mbarrier_wait(v_tail_cleared(), q_phase);",
    ),
    edit("chunk copied to the place of another", "transposed", _COPY_1, _COPY_1.replace("Chunk1", "Chunk0")),
    edit(
        "chunk copied from the tokens of another",
        "transposed",
        "token + kVChunk1FirstToken, 0, head",
        "token + kVChunk0FirstToken, 0, head",
    ),
    edit(
        "units of the sequences before not counted",
        "transposed",
        "16 * (tile.k_begin / 16 + tile.sequence)",
        "tile.k_begin / 16 * 16",
    ),
)

_FINISH_ROPE = "  wgmma_commit_group();\n  wgmma_wait_group<0>(s);\n}\n"
_RELEASE_K = "  release_keys(self, block, k_stage);\n"
_ADD_ROPE = "  add_rope(s, self.q, k_stage);\n"

RAW_ROPE = (
    edit("no wait for the rope product", "raw_k_token", _FINISH_ROPE, "  wgmma_commit_group();\n}\n"),
    edit("rope product not committed", "raw_k_token", _FINISH_ROPE, "  wgmma_wait_group<0>(s);\n}\n"),
    edit(
        "rope product without a wgmma fence",
        "raw_k_token",
        "  wgmma_fence();\n  const u64 k_rope",
        "  const u64 k_rope",
    ),
    edit(
        "K slot released before the rope product",
        "raw_k_token",
        _ADD_ROPE + _RELEASE_K,
        _RELEASE_K + _ADD_ROPE,
    ),
    edit(
        "rope takes the scales too",
        "raw_k_token",
        "  scale_scores(s, rows, k_stage, self.lane);\n" + _ADD_ROPE,
        _ADD_ROPE + "  scale_scores(s, rows, k_stage, self.lane);\n",
    ),
)

_FOLD = "  fold_v_scales(s, rows, k_stage, self.lane);\n"
_RELEASE_AT_END = "release_keys(self, block, k_stage);  // with the scales of V that softmax has read"
_STORE_V_SCALES = "      store_v_scales(v_scale_tile(k.stage), v_scale, lane);\n"
_HAND_OVER = "      hand_over_scales(k_full(k.stage), lane);\n"

V_SCALES = (
    *(
        edits(
            f"slot released before the reciprocals are read, {softmax} softmax",
            name,
            [(_RELEASE_AT_END, ""), (_FOLD, _FOLD + _RELEASE_K)],
        )
        for name, softmax in (("v_token", "lazy"), ("v_token_online", "online"))
    ),
    edit(
        "reciprocals of another slot",
        "v_token",
        "rows.reciprocals = logarithms + kVScaleReciprocals;",
        "rows.reciprocals = v_scale_tile(0) + (lane % 4) * 16 + kVScaleReciprocals;",
    ),
    edit(
        "logarithms of another slot",
        "v_token",
        "const u32 logarithms = v_scale_tile(stage) + (lane % 4) * 16;",
        "const u32 logarithms = v_scale_tile(0) + (lane % 4) * 16;",
    ),
    edit(
        "scales of V stored after they were handed over",
        "v_token",
        _STORE_V_SCALES + _HAND_OVER,
        _HAND_OVER + _STORE_V_SCALES,
    ),
    drop("scales of V not stored", "v_token", _STORE_V_SCALES),
    edit(
        "row sums with the scales of V, online softmax",
        "v_token_online",
        "  sum_without_v_scales(s, rows, sum);\n",
        "",
    ),
    edit(
        "row sums with the scales of V, lazy softmax",
        "v_token",
        "rows.row_sum[0] += unscaled_sum[0];\nrows.row_sum[1] += unscaled_sum[1];",
        "rows.row_sum[0] += sum[0];\nrows.row_sum[1] += sum[1];",
    ),
    edit(
        "scales of keys in the order of the keys",
        "raw_k_token",
        "const u32 place = lane / 16 * 16 + lane / 2 % 4 * 4 + lane / 8 % 2 * 2 + lane % 2;",
        "const u32 place = lane;",
    ),
)

FACTORS = (
    edit(
        "factors read before they are written",
        "fp8_q_only",
        "rows.factor[half]);\n  }\n  warp_sync();\n",
        "rows.factor[half]);\n  }\n",
    ),
    drop("factors not written", "fp8_q_only", "  write_factors(rows, self);\n"),
    edit(
        "factors of the row below",
        "fp8_q_only",
        "self.factor[1] = factor_word(first_row_of_thread() + 8);",
        "self.factor[1] = factor_word(first_row_of_thread());",
    ),
)

DENSE = (
    *(
        edit(
            f"batch coordinate of {tensor} left out",
            "bf16_dense",
            f"tile.sequence * (i32)params.{tensor}_batch_step",
            "0",
        )
        for tensor in ("q_nope", "q_rope", "k_nope", "k_rope", "v")
    ),
    edit(
        "batch coordinate of transposed V left out",
        "transposed_dense",
        "tile.sequence * (i32)params.v_batch_step",
        "0",
    ),
    *(
        drop(
            f"batch stride of {side}_scale left out",
            "fp8_dense",
            f"  scales += tile.sequence * params.{side}_scale_batch_stride;\n",
        )
        for side in ("q", "k")
    ),
    drop(
        "batch stride of the output left out",
        "bf16_dense",
        "  element += tile.sequence * params.out_batch_stride;\n",
    ),
)

_ROPE_PRODUCT = "wgmma_e4m3_ss<kBlockN>(s, a, b, chunk + step);"
_NOPE_PRODUCT = "wgmma_bf16_ss<kBlockN>(s, a, b, 1);"

ROPE_FIRST = (
    edits(
        "accumulate flags of nope and rope swapped",
        "bf16_e4m3_rope",
        [
            (_ROPE_PRODUCT, _ROPE_PRODUCT.replace("chunk + step", "1")),
            (_NOPE_PRODUCT, _NOPE_PRODUCT.replace(", 1)", ", chunk + step)")),
        ],
    ),
    edit(
        "first rope product accumulates",
        "bf16_e4m3_rope",
        _ROPE_PRODUCT,
        _ROPE_PRODUCT.replace("chunk + step", "1"),
    ),
)

FORM_FAULTS: tuple[Fault, ...] = TRANSPOSED_V + RAW_ROPE + V_SCALES + FACTORS + DENSE + ROPE_FIRST
