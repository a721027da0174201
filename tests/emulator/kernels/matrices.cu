// ldmatrix, stmatrix and prmt of one warp.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kTransposedLoad = 0;
constexpr u32 kTransposedStore = 0;

struct Params {
  const u32* source;  // four 8x8 matrices of 16-bit elements, row by row
  u32* registers;     // [32][4]
  u32* out;           // the matrices after stmatrix
  u32* permuted;      // [32]
  i32 selector;
};

extern "C" __global__ void kernel(Params params) {
  const u32 lane = thread_index();
  for (u32 i = lane; i < 128; i += 32) st_shared_u32(smem_base() + i * 4, ld_global_u32(params.source + i));
  warp_sync();
  u32 r[4];
  if (kTransposedLoad != 0) {
    ldmatrix_x4_trans_b16(r, smem_base() + lane * 16);
  } else {
    ldmatrix_x4_b16(r, smem_base() + lane * 16);
  }
  for (u32 i = 0; i < 4; ++i) st_global_u32(params.registers + lane * 4 + i, r[i]);
  st_global_u32(params.permuted + lane, prmt(r[0], r[1], (u32)params.selector));
  if (kTransposedStore != 0) {
    stmatrix_x4_trans_b16(smem_base() + 1024 + lane * 16, r[0], r[1], r[2], r[3]);
  } else {
    stmatrix_x4_b16(smem_base() + 1024 + lane * 16, r[0], r[1], r[2], r[3]);
  }
  warp_sync();
  for (u32 i = lane; i < 128; i += 32)
    st_global_u32(params.out + i, ld_shared_u32(smem_base() + 1024 + i * 4));
}

}  // namespace mla::test
