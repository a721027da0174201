// The host twins of the tcgen05 primitives; included by mla_host_model.hpp, whose names it uses.
#pragma once

namespace mla {

// ---- allocation ----
inline void tcgen05_alloc(u32 destination, u32 columns, MLA_LINE) {
  emulator::tmem_allocate(destination, columns, line);
}
inline void tcgen05_relinquish_alloc_permit(MLA_LINE) { emulator::tmem_relinquish(line); }
inline void tcgen05_dealloc(u32 tmem, u32 columns, MLA_LINE) { emulator::tmem_free(tmem, columns, line); }

// ---- order ----
inline void tcgen05_fence_before_thread_sync() { emulator::tmem_fence_before(); }
inline void tcgen05_fence_after_thread_sync() { emulator::tmem_fence_after(); }
template <int kCount>
inline void tcgen05_wait_ld(float (&r)[kCount], MLA_LINE) {
  emulator::tmem_wait_loads(line);
  emulator::tmem_release(r, kCount, line);
}
template <int kRows, int kCount>
inline void tcgen05_wait_ld(float (&r)[kRows][kCount], MLA_LINE) {
  emulator::tmem_wait_loads(line);
  emulator::tmem_release(r[0], kRows * kCount, line);
}
inline void tcgen05_wait_st(MLA_LINE) { emulator::tmem_wait_stores(line); }
inline void tcgen05_commit(u32 barrier, MLA_LINE) { emulator::tensor_commit(barrier, line); }

// ---- loads and stores ----
inline void tcgen05_ld_32x32b_x2_f32(float (&r)[2], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 2, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_32x32b_x8_f32(float (&r)[8], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 8, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_32x32b_x16_f32(float (&r)[16], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 16, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_32x32b_x32_f32(float (&r)[32], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 32, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_32x32b_x64_f32(float (&r)[64], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 64, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_32x32b_x128_f32(float (&r)[128], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 128, emulator::TmemShape::lanes_32, tmem, line);
}
inline void tcgen05_ld_16x256b_x1_f32(float (&r)[4], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 4, emulator::TmemShape::lanes_16, tmem, line);
}
inline void tcgen05_ld_16x256b_x4_f32(float (&r)[16], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 16, emulator::TmemShape::lanes_16, tmem, line);
}
inline void tcgen05_ld_16x256b_x8_f32(float (&r)[32], u32 tmem, MLA_LINE) {
  emulator::tmem_load(r, 32, emulator::TmemShape::lanes_16, tmem, line);
}
inline void tcgen05_st_32x32b_x2_f32(u32 tmem, const float (&r)[2], MLA_LINE) {
  emulator::tmem_store(tmem, r, 2, line);
}
inline void tcgen05_st_32x32b_x8_f32(u32 tmem, const float (&r)[8], MLA_LINE) {
  emulator::tmem_store(tmem, r, 8, line);
}
inline void tcgen05_st_32x32b_x16_f32(u32 tmem, const float (&r)[16], MLA_LINE) {
  emulator::tmem_store(tmem, r, 16, line);
}
inline void tcgen05_st_32x32b_x32_f32(u32 tmem, const float (&r)[32], MLA_LINE) {
  emulator::tmem_store(tmem, r, 32, line);
}
inline void tcgen05_st_32x32b_x64_f32(u32 tmem, const float (&r)[64], MLA_LINE) {
  emulator::tmem_store(tmem, r, 64, line);
}
inline void tcgen05_st_32x32b_x128_f32(u32 tmem, const float (&r)[128], MLA_LINE) {
  emulator::tmem_store(tmem, r, 128, line);
}
inline void tcgen05_st_32x32b_x8_u32(u32 tmem, const u32 (&r)[8], MLA_LINE) {
  emulator::tmem_store(tmem, r, 8, line);
}
inline void tcgen05_st_32x32b_x16_u32(u32 tmem, const u32 (&r)[16], MLA_LINE) {
  emulator::tmem_store(tmem, r, 16, line);
}
inline void tcgen05_st_32x32b_x32_u32(u32 tmem, const u32 (&r)[32], MLA_LINE) {
  emulator::tmem_store(tmem, r, 32, line);
}
inline void tcgen05_st_32x32b_x64_u32(u32 tmem, const u32 (&r)[64], MLA_LINE) {
  emulator::tmem_store(tmem, r, 64, line);
}

// ---- products ----
inline void tcgen05_mma_f16_ss(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate, MLA_LINE) {
  emulator::tensor_mma({emulator::MmaKind::f16, false, d, a, b, instruction, accumulate}, line);
}
inline void tcgen05_mma_f16_ts(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate, MLA_LINE) {
  emulator::tensor_mma({emulator::MmaKind::f16, true, d, a, b, instruction, accumulate}, line);
}
inline void tcgen05_mma_f8f6f4_ss(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate, MLA_LINE) {
  emulator::tensor_mma({emulator::MmaKind::f8f6f4, false, d, a, b, instruction, accumulate}, line);
}
inline void tcgen05_mma_f8f6f4_ts(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate, MLA_LINE) {
  emulator::tensor_mma({emulator::MmaKind::f8f6f4, true, d, a, b, instruction, accumulate}, line);
}

}  // namespace mla
