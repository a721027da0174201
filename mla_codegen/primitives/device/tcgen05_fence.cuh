// Order of tensor-memory accesses across threads: `before` in the thread that signals, once its accesses are
// complete; `after` in the thread that waited, ahead of its own. PTX ISA: tcgen05.fence; sm_100a.
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
