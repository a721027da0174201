// Every width of tcgen05.st and tcgen05.ld: rows go to tensor memory with one and come back with another.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kStore = 8;  // columns of a store
constexpr u32 kLoad = 8;   // columns of a load; with kHalves of 16 lanes, each half by itself
constexpr bool kWords = false;
constexpr bool kHalves = false;
constexpr u32 kColumns = 128;

struct Params {
  const float* source;  // [128][kColumns], by lane
  float* out;           // as source, or with kHalves by register: [128][2][kColumns / 2]
};

template <u32 kCount>
__device__ __forceinline__ void read_row(float (&r)[kCount], const float* source) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) r[i] = ld_global_f32(source + i);
}
template <u32 kCount>
__device__ __forceinline__ void read_words(u32 (&r)[kCount], const float* source) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) r[i] = (u32)ld_global_i32((const i32*)source + i);
}
template <u32 kCount>
__device__ __forceinline__ void write_row(const float (&r)[kCount], float* out) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) st_global_f32(out + i, r[i]);
}

__device__ __forceinline__ void store(u32 tmem, const float* source) {
  if (kStore == 2 && !kWords) {
    float r[2];
    read_row(r, source);
    tcgen05_st_32x32b_x2_f32(tmem, r);
  }
  if (kStore == 8 && !kWords) {
    float r[8];
    read_row(r, source);
    tcgen05_st_32x32b_x8_f32(tmem, r);
  }
  if (kStore == 16 && !kWords) {
    float r[16];
    read_row(r, source);
    tcgen05_st_32x32b_x16_f32(tmem, r);
  }
  if (kStore == 32 && !kWords) {
    float r[32];
    read_row(r, source);
    tcgen05_st_32x32b_x32_f32(tmem, r);
  }
  if (kStore == 64 && !kWords) {
    float r[64];
    read_row(r, source);
    tcgen05_st_32x32b_x64_f32(tmem, r);
  }
  if (kStore == 128 && !kWords) {
    float r[128];
    read_row(r, source);
    tcgen05_st_32x32b_x128_f32(tmem, r);
  }
  if (kStore == 8 && kWords) {
    u32 r[8];
    read_words(r, source);
    tcgen05_st_32x32b_x8_u32(tmem, r);
  }
  if (kStore == 16 && kWords) {
    u32 r[16];
    read_words(r, source);
    tcgen05_st_32x32b_x16_u32(tmem, r);
  }
  if (kStore == 32 && kWords) {
    u32 r[32];
    read_words(r, source);
    tcgen05_st_32x32b_x32_u32(tmem, r);
  }
  if (kStore == 64 && kWords) {
    u32 r[64];
    read_words(r, source);
    tcgen05_st_32x32b_x64_u32(tmem, r);
  }
}

__device__ __forceinline__ void load(u32 tmem, float* out) {
  if (kLoad == 2 && !kHalves) {
    float r[2];
    tcgen05_ld_32x32b_x2_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 8 && !kHalves) {
    float r[8];
    tcgen05_ld_32x32b_x8_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 16 && !kHalves) {
    float r[16];
    tcgen05_ld_32x32b_x16_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 32 && !kHalves) {
    float r[32];
    tcgen05_ld_32x32b_x32_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 64 && !kHalves) {
    float r[64];
    tcgen05_ld_32x32b_x64_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 128 && !kHalves) {
    float r[128];
    tcgen05_ld_32x32b_x128_f32(r, tmem);
    tcgen05_wait_ld(r);
    write_row(r, out);
  }
  if (kLoad == 8 && kHalves) {
    float r[2][4];
    tcgen05_ld_16x256b_x1_f32(r[0], tmem);
    tcgen05_ld_16x256b_x1_f32(r[1], tmem + (16u << 16));
    tcgen05_wait_ld(r);
    write_row(r[0], out);
    write_row(r[1], out + kColumns / 2);
  }
  if (kLoad == 32 && kHalves) {
    float r[2][16];
    tcgen05_ld_16x256b_x4_f32(r[0], tmem);
    tcgen05_ld_16x256b_x4_f32(r[1], tmem + (16u << 16));
    tcgen05_wait_ld(r);
    write_row(r[0], out);
    write_row(r[1], out + kColumns / 2);
  }
  if (kLoad == 64 && kHalves) {
    float r[2][32];
    tcgen05_ld_16x256b_x8_f32(r[0], tmem);
    tcgen05_ld_16x256b_x8_f32(r[1], tmem + (16u << 16));
    tcgen05_wait_ld(r);
    write_row(r[0], out);
    write_row(r[1], out + kColumns / 2);
  }
}

extern "C" __global__ void __launch_bounds__(128) kernel(Params params) {
  const u32 t = thread_index(), warp = warp_uniform(t / 32);
  if (warp == 0) tcgen05_alloc(smem_base(), kColumns);
  cta_sync();
  const u32 tmem = ld_shared_u32(smem_base()), lanes = tmem + (warp << 21);
  for (u32 column = 0; column < kColumns; column += kStore)
    store(lanes + column, params.source + t * kColumns + column);
  tcgen05_wait_st();
  for (u32 column = 0; column < kColumns; column += kLoad)
    load(lanes + column, params.out + t * kColumns + (kHalves ? column / 2 : column));
  cta_sync();
  if (warp == 0) tcgen05_dealloc(tmem, kColumns);
}

}  // namespace mla::test
