// A bulk copy of 1 to 5 dimensions into shared memory, read back word by word; then optionally a bulk store.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kRank = 3;
constexpr u32 kBytes = 4096;  // of the box
constexpr u32 kTxBytes = 4096;
constexpr u32 kFault = 0;  // 1: no wait, 2: no fence after mbarrier.init, 3: destination not aligned, 4: wait
                           // for the other parity

struct Params {
  u32* out;
  i32 x, y, z, w, v;
};

extern "C" __global__ void kernel(TensorMap map, Params params) {
  const u32 barrier = smem_base() + 32768;
  if (thread_index() == 0) {
    mbarrier_init(barrier, 1);
    if (kFault != 2) fence_mbarrier_init();
  }
  cta_sync();
  const u32 tile = smem_base() + (kFault == 3 ? 64 : 0);
  if (thread_index() == 0) {
    mbarrier_arrive_expect_tx(barrier, kTxBytes);
    if (kRank == 1) cp_async_bulk_tensor_1d(tile, &map, barrier, params.x);
    if (kRank == 2) cp_async_bulk_tensor_2d(tile, &map, barrier, params.x, params.y);
    if (kRank == 3) cp_async_bulk_tensor_3d(tile, &map, barrier, params.x, params.y, params.z);
    if (kRank == 4) cp_async_bulk_tensor_4d(tile, &map, barrier, params.x, params.y, params.z, params.w);
    if (kRank == 5)
      cp_async_bulk_tensor_5d(tile, &map, barrier, params.x, params.y, params.z, params.w, params.v);
  }
  if (kFault != 1) mbarrier_wait(barrier, kFault == 4 ? 1 : 0);
  for (u32 i = thread_index(); i < kBytes / 4; i += 128)
    st_global_u32(params.out + i, ld_shared_u32(tile + i * 4));
}

}  // namespace mla::test
