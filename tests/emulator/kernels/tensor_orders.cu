// One small use or misuse each of tensor memory, by 8 warps; warps w and w + 4 reach the same lanes.
#include "mla_host_model.hpp"
namespace mla {
#include "tcgen05_descriptor.cuh"
}
namespace mla::test {

constexpr u32 kCase = 0;
constexpr u32 kBarrier = 32768;
constexpr u32 kAddress = kBarrier + 16;
constexpr u32 kOther = kAddress + 4;
constexpr u32 kA = 0;
constexpr u32 kB = 16384;

struct Params {
  float* out;
};

__device__ __forceinline__ u64 a_tile() { return tcgen05_matrix_descriptor(smem_base() + kA, 16, 1024, 2); }
__device__ __forceinline__ u64 b_tile() { return tcgen05_matrix_descriptor(smem_base() + kB, 16, 1024, 2); }
__device__ __forceinline__ u32 bf16_product(u32 n) {
  return tcgen05_instruction_descriptor(1, 128, n, false, false);
}
__device__ __forceinline__ u32 e4m3_product(u32 n) {
  return tcgen05_instruction_descriptor(0, 128, n, false, false);
}

__device__ __forceinline__ void store_columns(u32 tmem, float value) {
  float r[8];
  for (u32 i = 0; i < 8; ++i) r[i] = value;
  tcgen05_st_32x32b_x8_f32(tmem, r);
}

__device__ __forceinline__ void load_columns(u32 tmem) {
  float r[8];
  tcgen05_ld_32x32b_x8_f32(r, tmem);
  tcgen05_wait_ld(r);
}

__device__ __forceinline__ void wait_products(u32 phase) {
  mbarrier_wait(smem_base() + kBarrier, phase);
  tcgen05_fence_after_thread_sync();
}

// What one thread of warp 0 does with products, from zeroed operands.
__device__ __forceinline__ void issue(u32 tmem) {
  const u32 barrier = smem_base() + kBarrier;
  if (kCase == 0) {  // two kinds into one accumulator
    tcgen05_mma_f8f6f4_ss(tmem, a_tile(), b_tile(), e4m3_product(64), 0);
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 1);
  }
  if (kCase == 1) {  // accumulators that overlap without being the same
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(32), 0);
  }
  if (kCase == 2) {  // A is what a product computes that nobody has waited for
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_mma_f16_ts(tmem + 64, tmem, b_tile(), bf16_product(64), 0);
  }
  if (kCase == 3) {  // the same, waited for
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_commit(barrier);
    wait_products(0);
    tcgen05_mma_f16_ts(tmem + 64, tmem, b_tile(), bf16_product(64), 0);
  }
  if (kCase == 4) {  // an accumulator over an operand A of the product before
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_commit(barrier);
    wait_products(0);
    tcgen05_mma_f16_ts(tmem + 64, tmem, b_tile(), bf16_product(64), 0);
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
  }
  if (kCase == 5) {  // an operand in shared memory is overwritten at once
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    st_shared_v4_u32(smem_base() + kB, 0, 0, 0, 0);
  }
  if (kCase == 6) {  // once it has been read
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_commit(barrier);
    wait_products(0);
    st_shared_v4_u32(smem_base() + kB, 0, 0, 0, 0);
  }
  if (kCase == 7) {  // an operand that no fence makes visible
    st_shared_v4_u32(smem_base() + kB, 0, 0, 0, 0);
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
  }
  if (kCase == 8) {  // adds to what nobody has written
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 1);
  }
  if (kCase == 9) tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
  if (kCase != 9) tcgen05_commit(barrier);
}

__device__ __forceinline__ void product_case(u32 warp, u32 tmem) {
  if (warp == 0) {
    if (elect_sync()) issue(tmem);
    warp_sync();
  }
  if (kCase != 9) wait_products(kCase == 3 || kCase == 4 || kCase == 6);  // 9: nobody waits
}

// Columns are read and then written by a product (10 to 12), or read by a product and then stored to (13,
// 14).
__device__ __forceinline__ void reuse_case(u32 warp, u32 tmem, u32 lanes) {
  const u32 barrier = smem_base() + kBarrier;
  float r[8];
  if (warp < 4) store_columns(lanes, 1.0f);
  if (warp < 4) tcgen05_wait_st();
  if (warp < 4 && kCase <= 12) {
    tcgen05_ld_32x32b_x8_f32(r, lanes);
    if (kCase == 11) tcgen05_wait_ld(r);
  }
  tcgen05_fence_before_thread_sync();
  cta_sync();
  tcgen05_fence_after_thread_sync();
  if (warp < 4 && kCase == 12) {  // once more, which no barrier orders
    tcgen05_wait_ld(r);
    tcgen05_ld_32x32b_x8_f32(r, lanes);
    tcgen05_wait_ld(r);
  }
  if (warp == 7 && elect_sync()) {
    if (kCase <= 12)
      tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(32), 0);
    else
      tcgen05_mma_f16_ts(tmem + 64, tmem, b_tile(), bf16_product(32), 0);
    tcgen05_commit(barrier);
  }
  if (kCase == 14) wait_products(0);  // 13: stored to at once
  if (warp < 4 && kCase >= 13) store_columns(lanes, 2.0f);
  if (warp < 4 && kCase == 10) tcgen05_wait_ld(r);
  if (warp < 4) tcgen05_wait_st();
  wait_products(0);
}

// Two warps issue into one accumulator, the second one at once (20) or after the first one's products (21).
__device__ __forceinline__ void two_issuers(u32 warp, u32 tmem) {
  const u32 barrier = smem_base() + kBarrier;
  if (warp == 0 && elect_sync()) {
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 0);
    tcgen05_commit(barrier);
  }
  if (warp == 1 && elect_sync()) {
    if (kCase == 21) wait_products(0);
    tcgen05_mma_f16_ss(tmem, a_tile(), b_tile(), bf16_product(64), 1);
    tcgen05_commit(barrier + 8);
  }
  wait_products(0);
  mbarrier_wait(barrier + 8, 0);
}

__device__ __forceinline__ void transfer_case(u32 warp, u32 lanes) {
  if (kCase >= 30 && kCase < 40) {  // within a warp
    store_columns(lanes, 1.0f);
    if (kCase != 30) tcgen05_wait_st();  // 30: read ahead of the wait::st
    if (kCase == 30 || kCase == 31) load_columns(lanes);
    if (kCase == 32) store_columns(lanes, 2.0f);  // after the wait
    if (kCase == 33) {                            // over what is being read
      float r[8];
      tcgen05_ld_32x32b_x8_f32(r, lanes);
      store_columns(lanes, 2.0f);
      tcgen05_wait_ld(r);
    }
    if (kCase == 34) {  // registers of a load that is in flight
      float r[8];
      tcgen05_ld_32x32b_x8_f32(r, lanes);
      tcgen05_st_32x32b_x8_f32(lanes + 8, r);
      tcgen05_wait_ld(r);
    }
    if (kCase == 35) {  // no wait names them
      float r[8];
      tcgen05_ld_32x32b_x8_f32(r, lanes);
    }
    if (kCase == 36) {  // two stores with a wait for the first only
      store_columns(lanes, 2.0f);
      store_columns(lanes, 3.0f);
    }
    if (kCase == 37) {  // a row of 32 lanes where 16 are asked for
      float r[4];
      tcgen05_ld_16x256b_x1_f32(r, lanes + (8u << 16));
      tcgen05_wait_ld(r);
    }
    if (kCase == 38 && thread_index() % 2 == 0) load_columns(lanes);            // half a warp
    if (kCase == 39) load_columns(lanes + (thread_index() % 32 == 3 ? 1 : 0));  // two addresses
    if (kCase != 35) tcgen05_wait_st();
  }
  if (kCase == 40) load_columns(lanes);         // never written
  if (kCase == 41) store_columns(lanes, 1.0f);  // no wait::st at all
}

// Warps 0 to 3 write, warps 4 to 7 read the same lanes.
__device__ __forceinline__ void handover_case(u32 warp, u32 lanes) {
  if (warp < 4) {
    store_columns(lanes, 1.0f);
    if (kCase != 54) tcgen05_wait_st();
    if (kCase != 52) tcgen05_fence_before_thread_sync();
  }
  if (kCase != 51) bar_sync(1, 256);  // 51: nothing orders them
  if (warp >= 4) {
    if (kCase != 53) tcgen05_fence_after_thread_sync();
    load_columns(lanes);
  }
  if (kCase == 54 && warp < 4) tcgen05_wait_st();
}

__device__ __forceinline__ void allocation_case(u32 warp, u32 tmem) {
  const u32 lanes = warp % 4 << 21;
  if (kCase == 60 && warp == 0) tcgen05_alloc(smem_base() + kOther, 256);  // larger than the one before
  if (kCase == 61 || kCase == 62) {  // two that are freed; 62: an access from one into the other
    if (warp == 0) tcgen05_alloc(smem_base() + kOther, 128);
    cta_sync();
    const u32 other = ld_shared_u32(smem_base() + kOther);
    if (warp < 4) store_columns((kCase == 62 ? tmem + 124 : other) + lanes, 1.0f);
    if (warp < 4) tcgen05_wait_st();
    cta_sync();
    if (warp == 0) tcgen05_dealloc(other, 128);
  }
  if (kCase == 63) {  // an alloc that waits for the dealloc of another warp
    if (warp == 1) tcgen05_alloc(smem_base() + kOther, 128);
    if (warp == 1) tcgen05_alloc(smem_base() + kOther + 4, 128);
    if (warp == 2) tcgen05_alloc(smem_base() + kOther + 8, 128);
    cta_sync();
    if (warp == 3) tcgen05_alloc(smem_base() + kOther + 12, 128);
    if (warp == 1) tcgen05_dealloc(ld_shared_u32(smem_base() + kOther), 128);
    cta_sync();
    if (warp < 3) tcgen05_dealloc(ld_shared_u32(smem_base() + kOther + 4 + warp * 4), 128);
  }
  if (kCase == 64) {  // freed and got again, the only place that is left, while others use it
    if (warp == 0) {
      for (u32 i = 0; i < 3; ++i) tcgen05_alloc(smem_base() + kOther + i * 4, 128);
      tcgen05_dealloc(tmem, 128);
      tcgen05_alloc(smem_base() + kOther + 12, 128);
      warp_sync();
      for (u32 i = 0; i < 3; ++i) tcgen05_dealloc(ld_shared_u32(smem_base() + kOther + i * 4), 128);
    }
    if (warp >= 4) store_columns(tmem + lanes, 1.0f);
    if (warp >= 4) tcgen05_wait_st();
  }
}

extern "C" __global__ void __launch_bounds__(256) kernel(Params params) {
  const u32 warp = warp_uniform(thread_index() / 32), barrier = smem_base() + kBarrier;
  for (u32 i = thread_index() * 16; i < kBarrier; i += 4096) st_shared_v4_u32(smem_base() + i, 0, 0, 0, 0);
  fence_proxy_async_shared();
  if (thread_index() == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init(barrier + 8, 1);
    fence_mbarrier_init();
  }
  if (warp == 0) tcgen05_alloc(smem_base() + kAddress, 128);
  cta_sync();
  const u32 tmem = ld_shared_u32(smem_base() + kAddress), lanes = tmem + (warp % 4 << 21);
  if (kCase < 10) product_case(warp, tmem);
  if (kCase >= 10 && kCase < 20) reuse_case(warp, tmem, lanes);
  if (kCase >= 20 && kCase < 30) two_issuers(warp, tmem);
  if (kCase >= 30 && kCase < 50 && warp < 4) transfer_case(warp, lanes);
  if (kCase >= 50 && kCase < 60) handover_case(warp, lanes);
  if (kCase >= 60) allocation_case(warp, tmem);
  cta_sync();
  if (warp == 0) tcgen05_dealloc(tmem, 128);
  st_global_f32(params.out + thread_index(), 1.0f);
}

}  // namespace mla::test
