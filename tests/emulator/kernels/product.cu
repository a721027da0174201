// One wgmma: A and B from images of shared memory (A optionally from registers), every accumulator to global
// memory.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kN = 64;
constexpr u32 kTileBytes = 16384;  // of A and of B, each
constexpr u32 kLeadingBytes = 16;
constexpr u32 kStrideBytes = 1024;
constexpr u32 kMode = 1;  // swizzle mode of the descriptor of A
constexpr u32 kBMode = 1;
constexpr u32 kBLeadingBytes = 16;
constexpr u32 kBStrideBytes = 1024;
constexpr u32 kABytes = 0;  // from the start of the tile to the wgmma step
constexpr u32 kBBytes = 0;
constexpr u32 kForm = 0;   // 0: A in shared memory, 1: A in registers
constexpr u32 kFault = 0;  // 1: no fence, 2: no commit, 3: no wait, 4: stores without a proxy fence

struct Params {
  const u32* a;  // images of the tiles, kTileBytes each
  const u32* b;
  const u32* a_registers;  // [128][4]
  float* out;              // [128][kN / 2]
};

inline u64 descriptor(u32 address, u32 leading, u32 stride, u32 mode) {
  return (u64)(stride >> 4 | mode << 30) << 32 | ((address & 0x3FFFFu) >> 4 | (leading >> 4) << 16);
}

extern "C" __global__ void kernel(Params params) {
  const u32 t = thread_index();
  for (u32 i = t; i < kTileBytes / 4; i += 128) {
    st_shared_u32(smem_base() + i * 4, ld_global_u32(params.a + i));
    st_shared_u32(smem_base() + kTileBytes + i * 4, ld_global_u32(params.b + i));
  }
  if (kFault != 4) fence_proxy_async_shared();
  bar_sync(1, 128);
  float d[kN / 2];
  const u64 b = descriptor(smem_base() + kTileBytes + kBBytes, kBLeadingBytes, kBStrideBytes, kBMode);
  if (kFault != 1) wgmma_fence();
  if (kForm == 0) {
    const u64 a = descriptor(smem_base() + kABytes, kLeadingBytes, kStrideBytes, kMode);
    wgmma_bf16_ss<kN>(d, a, b, 0);
  } else {
    u32 a[4];
    for (u32 i = 0; i < 4; ++i) a[i] = ld_global_u32(params.a_registers + t * 4 + i);
    wgmma_bf16_rs<kN>(d, a[0], a[1], a[2], a[3], b, 0);
  }
  if (kFault != 2) wgmma_commit_group();
  if (kFault != 3) wgmma_wait_group<0>(d);
  for (u32 i = 0; i < kN / 2; ++i) st_global_f32(params.out + t * (kN / 2) + i, d[i]);
}

}  // namespace mla::test
