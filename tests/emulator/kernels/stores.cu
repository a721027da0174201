// Shared memory to global memory by a bulk store.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kBytes = 2048;
constexpr u32 kFault = 0;  // 1: no proxy fence, 2: overwritten before the wait, 3: no wait at all

struct Params {
  const u32* source;
  u32* out;  // what the map covers
  i32 x, y;
};

extern "C" __global__ void kernel(TensorMap map, Params params) {
  for (u32 i = thread_index(); i < kBytes / 4; i += 128)
    st_shared_u32(smem_base() + i * 4, ld_global_u32(params.source + i));
  if (kFault != 1) fence_proxy_async_shared();
  cta_sync();
  if (thread_index() == 0) {
    cp_async_bulk_tensor_store_2d(&map, smem_base(), params.x, params.y);
    cp_async_bulk_commit_group();
    if (kFault == 2) st_shared_u32(smem_base(), 0);
    if (kFault != 3) cp_async_bulk_wait_group<0>();
  }
}

}  // namespace mla::test
