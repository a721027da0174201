// A chain of tcgen05.mma into one accumulator: A and B from images of shared memory, A optionally from tensor
// memory, the accumulator optionally from global memory; every accumulator to global memory.
#include "mla_host_model.hpp"
namespace mla {
#include "tcgen05_descriptor.cuh"
}
namespace mla::test {

constexpr u32 kKind = 0;  // 0: kind::f16, 1: kind::f8f6f4
constexpr u32 kType = 1;  // of A and B, within the kind
constexpr u32 kM = 128;
constexpr u32 kN = 64;
constexpr u32 kSteps = 1;
constexpr bool kFromTmem = false;  // A
constexpr bool kAMnMajor = false;
constexpr bool kBMnMajor = false;
constexpr u32 kLayout = 2;  // of the matrix descriptors
constexpr u32 kALeadingBytes = 16;
constexpr u32 kAStrideBytes = 1024;
constexpr u32 kAStepBytes = 32;
constexpr u32 kBLeadingBytes = 16;
constexpr u32 kBStrideBytes = 1024;
constexpr u32 kBStepBytes = 32;
constexpr u32 kAccumulate = 0;       // of the first step
constexpr u32 kLane = 0;             // where rows of M = 64 start: 0 or 16
constexpr u32 kInstructionBits = 0;  // flipped
constexpr u64 kMatrixBits = 0;       // flipped
constexpr u32 kTileBytes = 32768;    // of A and of B, each
constexpr u32 kColumns = 512;
constexpr u32 kOperandColumn = 256;  // of A
constexpr u32 kBarrier = 2 * kTileBytes;
constexpr u32 kAddress = kBarrier + 8;

struct Params {
  const i32* a;  // images of the tiles
  const i32* b;
  const i32* a_lanes;  // [128][kSteps * 8]
  const float* c;      // [128][kN], by lane
  float* out;          // [kM][kN]
};

__device__ __forceinline__ void copy_tile(u32 destination, const i32* source) {
  for (u32 i = thread_index() * 4; i < kTileBytes / 4; i += 512) {
    st_shared_v4_u32(destination + i * 4, (u32)ld_global_i32(source + i), (u32)ld_global_i32(source + i + 1),
                     (u32)ld_global_i32(source + i + 2), (u32)ld_global_i32(source + i + 3));
  }
}

__device__ __forceinline__ void fill_tmem(u32 lanes, const Params& params) {
  const u32 t = thread_index();
  for (u32 step = 0; kFromTmem && step < kSteps; ++step) {
    u32 words[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) words[i] = (u32)ld_global_i32(params.a_lanes + (t * kSteps + step) * 8 + i);
    tcgen05_st_32x32b_x8_u32(lanes + kOperandColumn + step * 8, words);
  }
  for (u32 n = 0; kAccumulate != 0 && n < kN; n += 8) {
    float values[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) values[i] = ld_global_f32(params.c + t * kN + n + i);
    tcgen05_st_32x32b_x8_f32(lanes + n, values);
  }
  tcgen05_wait_st();
}

__device__ __forceinline__ void issue_products(u32 tmem) {
  constexpr u32 kInstruction =
      tcgen05_instruction_descriptor(kType, kM, kN, kAMnMajor, kBMnMajor) ^ kInstructionBits;
  const u32 d = tmem + (kLane << 16), a_tmem = d + kOperandColumn;
  const u64 a = tcgen05_matrix_descriptor(smem_base(), kALeadingBytes, kAStrideBytes, kLayout) ^ kMatrixBits;
  const u64 b = tcgen05_matrix_descriptor(smem_base() + kTileBytes, kBLeadingBytes, kBStrideBytes, kLayout);
  for (u32 step = 0; step < kSteps; ++step) {
    const u32 accumulate = step != 0 || kAccumulate != 0;
    const u64 a_step = advance_tcgen05_descriptor(a, step * kAStepBytes);
    const u64 b_step = advance_tcgen05_descriptor(b, step * kBStepBytes);
    if (kKind == 0 && !kFromTmem) tcgen05_mma_f16_ss(d, a_step, b_step, kInstruction, accumulate);
    if (kKind == 0 && kFromTmem) tcgen05_mma_f16_ts(d, a_tmem + step * 8, b_step, kInstruction, accumulate);
    if (kKind == 1 && !kFromTmem) tcgen05_mma_f8f6f4_ss(d, a_step, b_step, kInstruction, accumulate);
    if (kKind == 1 && kFromTmem)
      tcgen05_mma_f8f6f4_ts(d, a_tmem + step * 8, b_step, kInstruction, accumulate);
  }
  tcgen05_commit(smem_base() + kBarrier);
}

__device__ __forceinline__ void store_rows(u32 lanes, float* out) {
  const u32 t = thread_index(), lane = t % 32;
  for (u32 n = 0; n < kN; n += 8) {
    if (kM == 128) {
      float d[8];
      tcgen05_ld_32x32b_x8_f32(d, lanes + n);
      tcgen05_wait_ld(d);
#pragma unroll
      for (u32 i = 0; i < 8; ++i) st_global_f32(out + t * kN + n + i, d[i]);
    } else {
      float d[4];
      tcgen05_ld_16x256b_x1_f32(d, lanes + (kLane << 16) + n);
      tcgen05_wait_ld(d);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 row = t / 32 * 16 + lane / 4 + i / 2 * 8;
        st_global_f32(out + row * kN + n + lane % 4 * 2 + i % 2, d[i]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) kernel(Params params) {
  const u32 warp = warp_uniform(thread_index() / 32), barrier = smem_base() + kBarrier;
  copy_tile(smem_base(), params.a);
  copy_tile(smem_base() + kTileBytes, params.b);
  fence_proxy_async_shared();
  if (thread_index() == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  if (warp == 0) {
    tcgen05_alloc(smem_base() + kAddress, kColumns);
    tcgen05_relinquish_alloc_permit();
  }
  cta_sync();
  const u32 tmem = ld_shared_u32(smem_base() + kAddress), lanes = tmem + (warp << 21);
  fill_tmem(lanes, params);
  tcgen05_fence_before_thread_sync();
  cta_sync();
  tcgen05_fence_after_thread_sync();
  if (warp == 0) {
    if (elect_sync()) issue_products(tmem);
    warp_sync();
  }
  mbarrier_wait(barrier, 0);
  tcgen05_fence_after_thread_sync();
  store_rows(lanes, params.out);
  cta_sync();
  if (warp == 0) tcgen05_dealloc(tmem, kColumns);
}

}  // namespace mla::test
