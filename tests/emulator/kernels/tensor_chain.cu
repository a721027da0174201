// Two products in a chain, as attention has them: S = Q K, P = S * k_scale, O = O / 2 + P V, over blocks of
// keys.
//
//   load (warp 5)               mma (warp 4)                  softmax (warps 0 to 3, a thread per row)
//   Q, K, scales -> k_full      S = Q K -> k_empty, s_full    S -> P, over the columns of S
//   V -> v_full                                               scales are read -> k_scale_empty
//   K refills after k_empty                                   O /= 2; V rows beyond the keys become 0
//   and k_scale_empty           O += P V -> v_empty, o_full   -> p_ready
//   V refills after v_empty                                   last o_full: O -> bf16 over Q -> bulk store
#include "mla_host_model.hpp"
namespace mla {
#include "pipeline_state.cuh"
#include "tcgen05_descriptor.cuh"
}  // namespace mla
namespace mla::test {

constexpr bool kFp8 = false;  // e4m3 of kind::f8f6f4, else bf16 of kind::f16
constexpr u32 kBlocks = 5;
constexpr u32 kKeys = 300;  // of kBlocks * kBlockN; what lies behind them is NaN
constexpr u32 kRows = 128;
constexpr u32 kBlockN = 64;
constexpr u32 kDepth = 64;  // of Q, K and V
constexpr u32 kStages = 2;
constexpr u32 kElementBytes = kFp8 ? 1 : 2;
constexpr u32 kRowBytes = kDepth * kElementBytes;  // one swizzle row
constexpr u32 kLayout = kFp8 ? 4 : 2;
constexpr u32 kStepBytes = 32;                         // along the depth of Q and K
constexpr u32 kStepKeys = kStepBytes / kElementBytes;  // of P and V
constexpr u32 kPColumns = kBlockN * kElementBytes / 4;
constexpr u32 kQBytes = kRows * kRowBytes;
constexpr u32 kBlockBytes = kBlockN * kRowBytes;  // of K or V
constexpr u32 kScaleBytes = kBlockN * 4;
constexpr u32 kKTxBytes = kBlockBytes + kScaleBytes;
constexpr u32 kFirstTxBytes = kKTxBytes + kQBytes;
constexpr u32 kVTxBytes = kBlockBytes;
constexpr u32 kColumns = 128;
constexpr u32 kOColumn = 64;
constexpr u32 kSoftmaxThreads = 128;
constexpr u32 kThreads = 192;
constexpr u32 kSoftmaxWarps = 4;
constexpr u32 kMmaWarp = 4;
constexpr u32 kType = kFp8 ? 0 : 1;
constexpr u32 kQkInstruction = tcgen05_instruction_descriptor(kType, kRows, kBlockN, false, false);
constexpr u32 kPvInstruction = tcgen05_instruction_descriptor(kType, kRows, kDepth, false, true);

constexpr u32 kQ = 0;
constexpr u32 kK = 16384;
constexpr u32 kV = kK + kStages * 8192;
constexpr u32 kScale = kV + kStages * 8192;
constexpr u32 kBarriers = kScale + kStages * 256;
constexpr u32 kTmemAddress = kBarriers + 128;

struct Params {
  i32 rows;  // 0: nothing to do
};

__device__ __forceinline__ u32 k_full(u32 stage) { return smem_base() + kBarriers + stage * 8; }
__device__ __forceinline__ u32 k_empty(u32 stage) { return smem_base() + kBarriers + 16 + stage * 8; }
__device__ __forceinline__ u32 v_full(u32 stage) { return smem_base() + kBarriers + 32 + stage * 8; }
__device__ __forceinline__ u32 v_empty(u32 stage) { return smem_base() + kBarriers + 48 + stage * 8; }
__device__ __forceinline__ u32 k_scale_empty(u32 stage) { return smem_base() + kBarriers + 64 + stage * 8; }
__device__ __forceinline__ u32 s_full() { return smem_base() + kBarriers + 80; }
__device__ __forceinline__ u32 p_ready() { return smem_base() + kBarriers + 88; }
__device__ __forceinline__ u32 o_full() { return smem_base() + kBarriers + 96; }
__device__ __forceinline__ u32 k_tile(u32 stage) { return smem_base() + kK + stage * 8192; }
__device__ __forceinline__ u32 v_tile(u32 stage) { return smem_base() + kV + stage * 8192; }
__device__ __forceinline__ u32 k_scale(u32 stage) { return smem_base() + kScale + stage * 256; }

__device__ __forceinline__ void init_barriers() {
  for (u32 stage = 0; stage < kStages; ++stage) {
    mbarrier_init(k_full(stage), 1);
    mbarrier_init(k_empty(stage), 1);
    mbarrier_init(v_full(stage), 1);
    mbarrier_init(v_empty(stage), 1);
    mbarrier_init(k_scale_empty(stage), kSoftmaxWarps);
  }
  mbarrier_init(s_full(), 1);
  mbarrier_init(p_ready(), kSoftmaxThreads);
  mbarrier_init(o_full(), 1);
  fence_mbarrier_init();
}

__device__ __forceinline__ void load_warp(const TensorMap* q, const TensorMap* k, const TensorMap* v,
                                          const TensorMap* scales) {
  PipelineState<kStages> slot{0, 1};  // the first pass over the ring does not wait
  for (u32 block = 0; block < kBlocks; ++block) {
    const i32 key = (i32)(block * kBlockN);
    mbarrier_wait(k_empty(slot.stage), slot.phase);
    mbarrier_wait(k_scale_empty(slot.stage), slot.phase);
    mbarrier_arrive_expect_tx(k_full(slot.stage), block == 0 ? kFirstTxBytes : kKTxBytes);
    if (block == 0) cp_async_bulk_tensor_2d(smem_base() + kQ, q, k_full(slot.stage), 0, 0);
    cp_async_bulk_tensor_2d(k_tile(slot.stage), k, k_full(slot.stage), 0, key);
    cp_async_bulk_tensor_1d(k_scale(slot.stage), scales, k_full(slot.stage), key);
    mbarrier_wait(v_empty(slot.stage), slot.phase);
    mbarrier_arrive_expect_tx(v_full(slot.stage), kVTxBytes);
    cp_async_bulk_tensor_2d(v_tile(slot.stage), v, v_full(slot.stage), 0, key);
    slot.advance();
  }
}

__device__ __forceinline__ void issue_qk(u32 s, u32 stage) {
  const u64 q = tcgen05_matrix_descriptor(smem_base() + kQ, 16, 8 * kRowBytes, kLayout);
  const u64 k = tcgen05_matrix_descriptor(k_tile(stage), 16, 8 * kRowBytes, kLayout);
  for (u32 byte = 0; byte < kRowBytes; byte += kStepBytes) {
    const u64 q_step = advance_tcgen05_descriptor(q, byte), k_step = advance_tcgen05_descriptor(k, byte);
    if (kFp8)
      tcgen05_mma_f8f6f4_ss(s, q_step, k_step, kQkInstruction, byte != 0);
    else
      tcgen05_mma_f16_ss(s, q_step, k_step, kQkInstruction, byte != 0);
  }
}

__device__ __forceinline__ void issue_pv(u32 o, u32 p, u32 stage, u32 accumulate) {
  const u64 v = tcgen05_matrix_descriptor(v_tile(stage), 16, 8 * kRowBytes, kLayout);
  for (u32 key = 0; key < kBlockN; key += kStepKeys) {
    const u64 v_step = advance_tcgen05_descriptor(v, key * kRowBytes);
    const u32 p_step = p + key / kStepKeys * 8;
    if (kFp8)
      tcgen05_mma_f8f6f4_ts(o, p_step, v_step, kPvInstruction, accumulate | (u32)(key != 0));
    else
      tcgen05_mma_f16_ts(o, p_step, v_step, kPvInstruction, accumulate | (u32)(key != 0));
  }
}

__device__ __forceinline__ void mma_warp(u32 tmem) {
  PipelineState<kStages> slot{0, 0};
  for (u32 block = 0; block < kBlocks; ++block) {
    mbarrier_wait(k_full(slot.stage), slot.phase);
    issue_qk(tmem, slot.stage);
    tcgen05_commit(k_empty(slot.stage));
    tcgen05_commit(s_full());
    mbarrier_wait(v_full(slot.stage), slot.phase);
    mbarrier_wait(p_ready(), block & 1);
    tcgen05_fence_after_thread_sync();
    issue_pv(tmem + kOColumn, tmem, slot.stage, block != 0);
    tcgen05_commit(v_empty(slot.stage));
    tcgen05_commit(o_full());
    slot.advance();
  }
}

// Scores of a row, times the scales of their keys; 0 for keys that are not there.
__device__ __forceinline__ void read_scores(float (&s)[2][32], u32 lanes, u32 stage, u32 first_key) {
  tcgen05_ld_32x32b_x32_f32(s[0], lanes);
  tcgen05_ld_32x32b_x32_f32(s[1], lanes + 32);
  tcgen05_wait_ld(s);
  for (u32 key = 0; key < kBlockN; ++key) {
    const float scaled = s[key / 32][key % 32] * ld_shared_f32(k_scale(stage) + key * 4);
    s[key / 32][key % 32] = first_key + key < kKeys ? scaled : 0.0f;
  }
  warp_sync();
  if (thread_index() % 32 == 0) mbarrier_arrive(k_scale_empty(stage));
}

__device__ __forceinline__ void write_p(u32 lanes, const float (&s)[2][32]) {
  u32 p[32];
  for (u32 i = 0; i < kPColumns; ++i) {
    const u32 key = i * 4 / kElementBytes;
    p[i] = kFp8 ? cvt_e4m3x4(s[key / 32][key % 32], s[key / 32][key % 32 + 1], s[key / 32][key % 32 + 2],
                             s[key / 32][key % 32 + 3])
                : cvt_bf16x2(s[key / 32][key % 32], s[key / 32][key % 32 + 1]);
  }
  if (kFp8) {
    u32 packed[16];
    for (u32 i = 0; i < 16; ++i) packed[i] = p[i];
    tcgen05_st_32x32b_x16_u32(lanes, packed);
  } else {
    tcgen05_st_32x32b_x32_u32(lanes, p);
  }
}

__device__ __forceinline__ void halve_output(u32 lanes) {
  for (u32 column = 0; column < kDepth; column += 16) {
    float o[16];
    tcgen05_ld_32x32b_x16_f32(o, lanes + kOColumn + column);
    tcgen05_wait_ld(o);
    for (u32 i = 0; i < 16; ++i) o[i] *= 0.5f;
    tcgen05_st_32x32b_x16_f32(lanes + kOColumn + column, o);
  }
}

// Rows of V beyond the keys, which P = 0 would not hide where they are NaN.
__device__ __forceinline__ void clear_tail(u32 stage, u32 first_key) {
  for (u32 row = kKeys - first_key + thread_index() / 8; row < kBlockN; row += kSoftmaxThreads / 8) {
    for (u32 byte = thread_index() % 8 * 16; byte < kRowBytes; byte += 128)
      st_shared_v4_u32(v_tile(stage) + row * kRowBytes + byte, 0, 0, 0, 0);
  }
  fence_proxy_async_shared();
}

__device__ __forceinline__ void store_output(const TensorMap* out, u32 lanes) {
  for (u32 column = 0; column < kDepth; column += 8) {
    float o[8];
    tcgen05_ld_32x32b_x8_f32(o, lanes + kOColumn + column);
    tcgen05_wait_ld(o);
    st_shared_v4_u32(smem_base() + kQ + thread_index() * kDepth * 2 + column * 2, cvt_bf16x2(o[0], o[1]),
                     cvt_bf16x2(o[2], o[3]), cvt_bf16x2(o[4], o[5]), cvt_bf16x2(o[6], o[7]));
  }
  fence_proxy_async_shared();
  bar_sync(1, kSoftmaxThreads);
  if (thread_index() == 0) {
    cp_async_bulk_tensor_store_3d(out, smem_base() + kQ, 0, 0, 0);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group<0>();
  }
}

__device__ __forceinline__ void softmax_warpgroup(const TensorMap* out, u32 lanes) {
  PipelineState<kStages> slot{0, 0};
  for (u32 block = 0; block < kBlocks; ++block) {
    float s[2][32];
    mbarrier_wait(s_full(), block & 1);
    tcgen05_fence_after_thread_sync();
    read_scores(s, lanes, slot.stage, block * kBlockN);
    write_p(lanes, s);
    if (block != 0) {
      mbarrier_wait(o_full(), (block - 1) & 1);
      tcgen05_fence_after_thread_sync();
      halve_output(lanes);
    }
    if (kKeys < (block + 1) * kBlockN) {
      mbarrier_wait(v_full(slot.stage), slot.phase);
      clear_tail(slot.stage, block * kBlockN);
    }
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
    mbarrier_arrive(p_ready());
    slot.advance();
  }
  mbarrier_wait(o_full(), (kBlocks - 1) & 1);
  tcgen05_fence_after_thread_sync();
  store_output(out, lanes);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
           const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap scales,
           const __grid_constant__ TensorMap out, Params params) {
  const u32 warp = warp_uniform(thread_index() / 32);
  if (params.rows == 0) return;
  if (thread_index() == 0) init_barriers();
  if (warp == kMmaWarp) {
    tcgen05_alloc(smem_base() + kTmemAddress, kColumns);
    tcgen05_relinquish_alloc_permit();
  }
  cta_sync();
  const u32 tmem = ld_shared_u32(smem_base() + kTmemAddress);
  if (warp < kSoftmaxWarps) {
    softmax_warpgroup(&out, tmem + (warp << 21));
  } else if (warp == kMmaWarp) {
    if (elect_sync()) mma_warp(tmem);
    warp_sync();
  } else {
    if (elect_sync()) load_warp(&q, &k, &v, &scales);
    warp_sync();
  }
  cta_sync();
  if (warp == kMmaWarp) tcgen05_dealloc(tmem, kColumns);
}

}  // namespace mla::test
