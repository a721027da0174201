// Words copied by cp.async, handed over on an mbarrier.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kFault = 0;  // 1: ordinary arrive, 2: no arrive and no wait, 3: reads without waiting

struct Params {
  const u32* source;
  u32* out;
  i32 valid;
};

extern "C" __global__ void kernel(Params params) {
  const u32 barrier = smem_base() + 1024, t = thread_index();
  if (t == 0) {
    mbarrier_init(barrier, 32);
    fence_mbarrier_init();
  }
  cta_sync();
  if (t < 32) {
    for (u32 i = t; i < 96; i += 32) {
      const bool valid = (i32)i < params.valid;
      cp_async_ca_4(smem_base() + i * 4, params.source + (valid ? i : 0), valid ? 4 : 0);
    }
    if (kFault == 1) mbarrier_arrive(barrier);
    if (kFault == 0 || kFault == 3) cp_async_mbarrier_arrive_noinc(barrier);
    if (kFault != 2) cp_async_wait_all();
  } else if (t < 64) {
    if (kFault != 3 && kFault != 2) mbarrier_wait(barrier, 0);
    for (u32 i = t - 32; i < 96; i += 32) st_global_u32(params.out + i, ld_shared_u32(smem_base() + i * 4));
  }
}

}  // namespace mla::test
