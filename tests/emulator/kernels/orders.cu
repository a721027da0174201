// One small misuse each of barriers, lanes, registers and memory.
#include "mla_host_model.hpp"
namespace mla::test {

constexpr u32 kCase = 0;

struct Params {
  u32* out;
};

extern "C" __global__ void kernel(Params params) {
  const u32 t = thread_index(), warp = t / 32, word = smem_base() + t * 4, barrier = smem_base() + 4096;
  if (kCase == 0) {  // nothing wrong
    st_shared_u32(word, t);
    bar_sync(1, 128);
    st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t ^ 64) * 4));
  }
  if (kCase == 1) {  // no barrier between write and read
    st_shared_u32(word, t);
    st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t ^ 64) * 4));
  }
  if (kCase == 2) {  // no barrier between read and write
    st_shared_u32(word, t);
    bar_sync(1, 128);
    st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t ^ 64) * 4));
    st_shared_u32(word, 0);
  }
  if (kCase == 3) ld_shared_u32(word);                // never written
  if (kCase == 4) bar_sync(1, warp == 0 ? 64 : 128);  // counts differ
  if (kCase == 5 && warp < 3) bar_sync(1, 128);       // one warp is missing
  if (kCase == 6) bar_sync(16, 128);                  // no such barrier
  if (kCase == 7 && t % 2 == 0) warp_sync();          // half a warp
  if (kCase == 8) {                                   // lanes at different collectives
    if (t % 2 == 0)
      warp_sync();
    else
      shfl_xor_u32(t, 1);
  }
  if (kCase == 9) st_shared_u32(t * 4, t);                                  // without smem_base()
  if (kCase == 10) st_shared_u32(smem_base() + 65536 + t * 4, t);           // beyond the CTA's memory
  if (kCase == 11) st_shared_v4_u32(smem_base() + 8 + t * 16, 0, 0, 0, 0);  // not aligned
  if (kCase == 12) st_global_u32(params.out + 128 + t, t);                  // beyond the array
  if (kCase == 13) mbarrier_arrive(barrier);                                // not initialised
  if (kCase == 14) {                                                        // one arrival too many
    if (t == 0) mbarrier_init(barrier, 127);
    cta_sync();
    mbarrier_arrive(barrier);
  }
  if (kCase == 15) setmaxnreg_dec<136>();              // up, by name of down
  if (kCase == 16) setmaxnreg_inc<136>();              // nobody gives any
  if (kCase == 17 && warp != 0) setmaxnreg_dec<64>();  // not the whole warpgroup
  if (kCase == 18) warp_uniform(t);                    // not uniform
  if (kCase == 19) {                                   // shuffles order no memory
    st_shared_u32(word, t);
    shfl_xor_u32(t, 1);
    st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t ^ 1) * 4));
  }
  if (kCase == 20) {  // warp_sync does
    st_shared_u32(word, t);
    warp_sync();
    st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t ^ 1) * 4));
  }
  if (kCase == 21) {  // the waiter is not the one who was meant
    bar_arrive(1, 256);
    bar_arrive(1, 256);
  }
  if (kCase == 22) {  // waits that pass order what came before
    if (t == 0) mbarrier_init(barrier, 64);
    cta_sync();
    if (t < 64) {
      st_shared_u32(word, t);
      mbarrier_arrive(barrier);
    } else {
      mbarrier_wait(barrier, 0);
      st_global_u32(params.out + t, ld_shared_u32(smem_base() + (t - 64) * 4));
    }
  }
  if (kCase == 23) {  // written over an mbarrier
    if (t == 0) mbarrier_init(barrier, 64);
    cta_sync();
    if (t == 5) st_shared_u32(barrier + 4, 0);
  }
  if (kCase == 24) {  // an arrival that may count in either phase
    if (t == 0) mbarrier_init(barrier, 64);
    cta_sync();
    mbarrier_arrive(barrier);
  }
}

}  // namespace mla::test
