// The host twins of the device primitives: same names, same signatures plus the source line of the call. A
// generated file includes this header where no CUDA compiler is at work.
#pragma once
#include "engine_api.hpp"
#include "host_numbers.hpp"

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#ifndef __forceinline__
#define __forceinline__ inline
#endif
#ifndef __noinline__
#define __noinline__ __attribute__((noinline))
#endif
#define MLA_OFFSETOF(type, member) __builtin_offsetof(type, member)
#define MLA_LINE int line = __builtin_LINE()

namespace mla {

struct alignas(64) TensorMap {
  u64 opaque[16];
};

// ---- threads ----
inline u32 thread_index() { return emulator::self->thread; }
// The device reads it anew for the sake of its registers.
inline u32 thread_index_anew() { return thread_index(); }
inline u32 lane_index() { return emulator::self->thread % 32; }
inline u32 cta_index_x() { return emulator::self->cta[0]; }
inline u32 cta_index_y() { return emulator::self->cta[1]; }
inline u32 cta_index_z() { return emulator::self->cta[2]; }
inline u32 warp_uniform(u32 value, MLA_LINE) { return emulator::uniform(value, line); }
inline bool elect_sync(MLA_LINE) { return emulator::elected(line); }
template <int kRegisters>
inline void setmaxnreg_dec(MLA_LINE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "setmaxnreg takes 24..256 in steps of 8");
  emulator::set_registers(false, kRegisters, line);
}
template <int kRegisters>
inline void setmaxnreg_inc(MLA_LINE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "setmaxnreg takes 24..256 in steps of 8");
  emulator::set_registers(true, kRegisters, line);
}

// ---- exchange between lanes ----
inline u32 shfl_xor_u32(u32 value, u32 lane_mask, MLA_LINE) {
  return emulator::exchange(value, (emulator::self->thread % 32) ^ lane_mask, "shfl.sync", line);
}
inline float shfl_xor_f32(float value, u32 lane_mask, MLA_LINE) {
  return emulator::float_of(shfl_xor_u32(emulator::bits_of(value), lane_mask, line));
}
inline u32 shfl_idx_u32(u32 value, u32 lane, MLA_LINE) {
  return emulator::exchange(value, lane % 32, "shfl.sync", line);
}
inline float shfl_idx_f32(float value, u32 lane, MLA_LINE) {
  return emulator::float_of(shfl_idx_u32(emulator::bits_of(value), lane, line));
}
inline bool vote_any(bool condition, MLA_LINE) { return emulator::vote(condition ? 1 : 0, line) != 0; }
inline bool vote_all(bool condition, MLA_LINE) {
  return emulator::vote(condition ? 1 : 0, line) == 0xFFFFFFFFu;
}

// ---- barriers ----
inline void cta_sync(MLA_LINE) { emulator::cta_barrier(line); }
inline void warp_sync(MLA_LINE) { emulator::warp_barrier(line); }
inline void bar_sync(u32 id, u32 threads, MLA_LINE) { emulator::named_barrier(id, threads, true, line); }
inline void bar_arrive(u32 id, u32 threads, MLA_LINE) { emulator::named_barrier(id, threads, false, line); }
inline void mbarrier_init(u32 barrier, u32 arrivals, MLA_LINE) {
  emulator::mbarrier_init(barrier, arrivals, line);
}
inline void fence_mbarrier_init() { emulator::fence_mbarrier_init(); }
inline void mbarrier_arrive(u32 barrier, MLA_LINE) { emulator::mbarrier_arrive(barrier, 1, 0, line); }
inline void mbarrier_arrive_expect_tx(u32 barrier, u32 tx_bytes, MLA_LINE) {
  emulator::mbarrier_arrive(barrier, 1, tx_bytes, line);
}
inline void mbarrier_expect_tx(u32 barrier, u32 tx_bytes, MLA_LINE) {
  emulator::mbarrier_arrive(barrier, 0, tx_bytes, line);
}
inline void mbarrier_wait(u32 barrier, u32 phase, MLA_LINE) { emulator::mbarrier_wait(barrier, phase, line); }
inline void fence_proxy_async_shared() { emulator::fence_proxy_async(); }

// ---- shared memory ----
inline u32 smem_base() { return emulator::kSmemBase; }
inline float ld_shared_f32(u32 address, MLA_LINE) {
  float value;
  emulator::smem_read(address, &value, 4, line);
  return value;
}
inline u32 ld_shared_u32(u32 address, MLA_LINE) {
  u32 value;
  emulator::smem_read(address, &value, 4, line);
  return value;
}
inline void ld_shared_v2_f32(u32 address, float& x, float& y, MLA_LINE) {
  float value[2];
  emulator::smem_read(address, value, 8, line);
  x = value[0];
  y = value[1];
}
inline void ld_shared_v4_f32(u32 address, float (&x)[4], MLA_LINE) {
  emulator::smem_read(address, x, 16, line);
}
inline void ld_shared_v4_u32(u32 address, u32 (&word)[4], MLA_LINE) {
  emulator::smem_read(address, word, 16, line);
}
inline void st_shared_u32(u32 address, u32 x, MLA_LINE) { emulator::smem_write(address, &x, 4, line); }
inline void st_shared_f32(u32 address, float x, MLA_LINE) { emulator::smem_write(address, &x, 4, line); }
inline void st_shared_v2_u32(u32 address, u32 x, u32 y, MLA_LINE) {
  const u32 value[2] = {x, y};
  emulator::smem_write(address, value, 8, line);
}
inline void st_shared_v2_f32(u32 address, float x, float y, MLA_LINE) {
  const float value[2] = {x, y};
  emulator::smem_write(address, value, 8, line);
}
inline void st_shared_v4_u32(u32 address, u32 x, u32 y, u32 z, u32 w, MLA_LINE) {
  const u32 value[4] = {x, y, z, w};
  emulator::smem_write(address, value, 16, line);
}
inline void ldmatrix_x4_b16(u32 (&r)[4], u32 row_address, MLA_LINE) {
  emulator::load_matrices(r, 4, false, row_address, line);
}
inline void ldmatrix_x4_trans_b16(u32 (&r)[4], u32 row_address, MLA_LINE) {
  emulator::load_matrices(r, 4, true, row_address, line);
}
inline void stmatrix_x4_b16(u32 row_address, u32 r0, u32 r1, u32 r2, u32 r3, MLA_LINE) {
  const u32 r[4] = {r0, r1, r2, r3};
  emulator::store_matrices(r, 4, false, row_address, line);
}
inline void stmatrix_x4_trans_b16(u32 row_address, u32 r0, u32 r1, u32 r2, u32 r3, MLA_LINE) {
  const u32 r[4] = {r0, r1, r2, r3};
  emulator::store_matrices(r, 4, true, row_address, line);
}

// ---- global memory ----
inline i32 ld_global_i32(const i32* address, MLA_LINE) {
  i32 value;
  emulator::global_read(address, &value, 4, line);
  return value;
}
inline u32 ld_global_u32(const u32* address, MLA_LINE) {
  u32 value;
  emulator::global_read(address, &value, 4, line);
  return value;
}
inline float ld_global_f32(const float* address, MLA_LINE) {
  float value;
  emulator::global_read(address, &value, 4, line);
  return value;
}
inline void ld_global_v4_u32(const void* address, u32 (&word)[4], MLA_LINE) {
  emulator::global_read(address, word, 16, line);
}
inline void st_global_u16(void* address, u16 x, MLA_LINE) { emulator::global_write(address, &x, 2, line); }
inline void st_global_u32(void* address, u32 x, MLA_LINE) { emulator::global_write(address, &x, 4, line); }
inline void st_global_f32(void* address, float x, MLA_LINE) { emulator::global_write(address, &x, 4, line); }
inline void st_global_v2_u32(void* address, u32 x, u32 y, MLA_LINE) {
  const u32 value[2] = {x, y};
  emulator::global_write(address, value, 8, line);
}
inline void st_global_v2_f32(void* address, float x, float y, MLA_LINE) {
  const float value[2] = {x, y};
  emulator::global_write(address, value, 8, line);
}
inline void st_global_v4_u32(void* address, u32 x, u32 y, u32 z, u32 w, MLA_LINE) {
  const u32 value[4] = {x, y, z, w};
  emulator::global_write(address, value, 16, line);
}
inline u32 atomic_add_global_u32(u32* address, u32 value, MLA_LINE) {
  return emulator::global_add(address, value, line);
}
inline void atomic_max_global_u32(u32* address, u32 value, MLA_LINE) {
  emulator::global_max(address, value, line);
}

// ---- copy engine ----
inline void prefetch_tensormap(const TensorMap* map, MLA_LINE) { emulator::tma_prefetch(map, line); }
inline void cp_async_bulk_tensor_1d(u32 destination, const TensorMap* map, u32 barrier, i32 x, MLA_LINE) {
  const i32 at[5] = {x, 0, 0, 0, 0};
  emulator::tma_load(destination, map, barrier, at, 1, line);
}
inline void cp_async_bulk_tensor_2d(u32 destination, const TensorMap* map, u32 barrier, i32 x, i32 y,
                                    MLA_LINE) {
  const i32 at[5] = {x, y, 0, 0, 0};
  emulator::tma_load(destination, map, barrier, at, 2, line);
}
inline void cp_async_bulk_tensor_3d(u32 destination, const TensorMap* map, u32 barrier, i32 x, i32 y, i32 z,
                                    MLA_LINE) {
  const i32 at[5] = {x, y, z, 0, 0};
  emulator::tma_load(destination, map, barrier, at, 3, line);
}
inline void cp_async_bulk_tensor_4d(u32 destination, const TensorMap* map, u32 barrier, i32 x, i32 y, i32 z,
                                    i32 w, MLA_LINE) {
  const i32 at[5] = {x, y, z, w, 0};
  emulator::tma_load(destination, map, barrier, at, 4, line);
}
inline void cp_async_bulk_tensor_5d(u32 destination, const TensorMap* map, u32 barrier, i32 x, i32 y, i32 z,
                                    i32 w, i32 v, MLA_LINE) {
  const i32 at[5] = {x, y, z, w, v};
  emulator::tma_load(destination, map, barrier, at, 5, line);
}
inline void cp_async_bulk_tensor_store_2d(const TensorMap* map, u32 source, i32 x, i32 y, MLA_LINE) {
  const i32 at[5] = {x, y, 0, 0, 0};
  emulator::tma_store(map, source, at, 2, line);
}
inline void cp_async_bulk_tensor_store_3d(const TensorMap* map, u32 source, i32 x, i32 y, i32 z, MLA_LINE) {
  const i32 at[5] = {x, y, z, 0, 0};
  emulator::tma_store(map, source, at, 3, line);
}
inline void cp_async_bulk_tensor_store_4d(const TensorMap* map, u32 source, i32 x, i32 y, i32 z, i32 w,
                                          MLA_LINE) {
  const i32 at[5] = {x, y, z, w, 0};
  emulator::tma_store(map, source, at, 4, line);
}
inline void cp_async_bulk_commit_group() { emulator::tma_store_commit(); }
template <int kPending>
inline void cp_async_bulk_wait_group(MLA_LINE) {
  emulator::tma_store_wait(kPending, false, line);
}
template <int kPending>
inline void cp_async_bulk_wait_group_read(MLA_LINE) {
  emulator::tma_store_wait(kPending, true, line);
}

// ---- copies of single words ----
inline void cp_async_ca_4(u32 destination, const void* source, u32 source_bytes, MLA_LINE) {
  emulator::word_copy(destination, source, 4, source_bytes, line);
}
inline void cp_async_ca_8(u32 destination, const void* source, u32 source_bytes, MLA_LINE) {
  emulator::word_copy(destination, source, 8, source_bytes, line);
}
inline void cp_async_cg_16(u32 destination, const void* source, u32 source_bytes, MLA_LINE) {
  emulator::word_copy(destination, source, 16, source_bytes, line);
}
inline void cp_async_mbarrier_arrive_noinc(u32 barrier, MLA_LINE) {
  emulator::word_copies_arrive(barrier, line);
}
inline void cp_async_wait_all(MLA_LINE) { emulator::word_copies_wait(line); }

// ---- warpgroup matrix products ----
inline void wgmma_fence() { emulator::wgmma_fence(); }
inline void wgmma_commit_group() { emulator::wgmma_commit(); }
template <int kCount>
inline void pin_registers(float (&d)[kCount], MLA_LINE) {
  emulator::wgmma_release(d, kCount, line);
}
template <int kPending, int kCount>
inline void wgmma_wait_group(float (&d)[kCount], MLA_LINE) {
  emulator::wgmma_wait(kPending, line);
  emulator::wgmma_release(d, kCount, line);
}
template <int kPending, int kCountA, int kCountB>
inline void wgmma_wait_group(float (&a)[kCountA], float (&b)[kCountB], MLA_LINE) {
  emulator::wgmma_wait(kPending, line);
  emulator::wgmma_release(a, kCountA, line);
  emulator::wgmma_release(b, kCountB, line);
}

// The four operand forms of one element type: A from shared memory or registers, B with the reduction
// contiguous or (16-bit types only) the columns contiguous.
#define MLA_WGMMA_SS(name, type, mn_major)                                                      \
  template <int kN>                                                                             \
  inline void name(float (&d)[kN / 2], u64 a, u64 b, u32 accumulate, MLA_LINE) {                \
    static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256, "wgmma takes N = 8..256 in steps of 8"); \
    emulator::wgmma_issue(d, {type, false, mn_major, kN}, nullptr, a, b, accumulate, line);     \
  }
#define MLA_WGMMA_RS(name, type, mn_major)                                                                \
  template <int kN>                                                                                       \
  inline void name(float (&d)[kN / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, u32 accumulate, MLA_LINE) { \
    static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256, "wgmma takes N = 8..256 in steps of 8");           \
    const u32 a[4] = {a0, a1, a2, a3};                                                                    \
    emulator::wgmma_issue(d, {type, true, mn_major, kN}, a, 0, b, accumulate, line);                      \
  }
MLA_WGMMA_SS(wgmma_e4m3_ss, emulator::MmaType::e4m3, false)
MLA_WGMMA_RS(wgmma_e4m3_rs, emulator::MmaType::e4m3, false)
MLA_WGMMA_SS(wgmma_bf16_ss, emulator::MmaType::bf16, false)
MLA_WGMMA_RS(wgmma_bf16_rs, emulator::MmaType::bf16, false)
MLA_WGMMA_SS(wgmma_bf16_ss_mn, emulator::MmaType::bf16, true)
MLA_WGMMA_RS(wgmma_bf16_rs_mn, emulator::MmaType::bf16, true)
MLA_WGMMA_SS(wgmma_f16_ss, emulator::MmaType::f16, false)
MLA_WGMMA_RS(wgmma_f16_rs, emulator::MmaType::f16, false)
MLA_WGMMA_SS(wgmma_f16_ss_mn, emulator::MmaType::f16, true)
MLA_WGMMA_RS(wgmma_f16_rs_mn, emulator::MmaType::f16, true)
#undef MLA_WGMMA_SS
#undef MLA_WGMMA_RS

}  // namespace mla
#include "host_tensor_memory.hpp"
#undef MLA_LINE
