// Arrives once on an mbarrier when all products that this thread has issued are complete; has a
// fence::before_thread_sync in it. PTX ISA: tcgen05.commit; sm_100a.
__device__ __forceinline__ void tcgen05_commit(u32 barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
               : "memory");
}
