// Copies the first rows of V of each head and sequence to the output, by the Params and maps of a call.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kRows = 32;
constexpr u32 kColumns = 128;
constexpr u32 kBarrier = 4096;  // behind the box
constexpr u32 kGroup = 2;
constexpr bool kTransposed = false;  // the box has kColumns rows of kRows tokens

PARAMS

extern "C" __global__ void tiny(MAPS Params params) {
  const u32 head = cta_index_x(), sequence = cta_index_y();
  const u32 tile = smem_base(), barrier = tile + kBarrier;
  if (thread_index() == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  cta_sync();
  if (thread_index() == 0) {
    mbarrier_arrive_expect_tx(barrier, kRows * kColumns);
    cp_async_bulk_tensor_4d(tile, &v_map, barrier, 0, 0, head / kGroup * params.v_head_step,
                            sequence * params.v_batch_step);
  }
  mbarrier_wait(barrier, 0);
  for (u32 i = thread_index(); i < kRows * kColumns / 2; i += 384) {
    const u32 row = 2 * i / kColumns, column = 2 * i % kColumns;
    u32 pair = 0;
    for (u32 j = 0; j < 2; ++j) {
      const u32 byte = kTransposed ? (column + j) * kRows + row : row * kColumns + column + j;
      pair |= (ld_shared_u32(tile + byte / 4 * 4) >> byte % 4 * 8 & 0xff) << 16 * j;
    }
    const i64 element = sequence * params.out_batch_stride + row * params.out_token_stride +
                        head * params.out_head_stride + column;
    st_global_u32(params.out + 2 * element, pair);
  }
}

}  // namespace mla::test
