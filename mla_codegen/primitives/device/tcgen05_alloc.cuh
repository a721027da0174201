// Columns of tensor memory, all 128 lanes of them; a whole warp executes each. Their number is a power of two
// from 32 to 512. alloc writes the address to shared memory and waits while too few are free; all have to be
// freed before the kernel ends. PTX ISA: tcgen05.alloc, relinquish_alloc_permit, dealloc; sm_100a.
__device__ __forceinline__ void tcgen05_alloc(u32 destination, u32 columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(destination),
               "r"(columns)
               : "memory");
}
// Lets other CTAs of the multiprocessor allocate; this one never does again.
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
__device__ __forceinline__ void tcgen05_dealloc(u32 tmem, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns) : "memory");
}
