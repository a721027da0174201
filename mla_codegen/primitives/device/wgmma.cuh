// Order of asynchronous warpgroup matrix products. PTX ISA: wgmma.fence, commit_group, wait_group; sm_90a.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Ties registers to this point of the program, so that no use of them moves above it.
template <int kCount> __device__ __forceinline__ void pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Waits until at most kPending groups are in flight; releases the accumulators named.
template <int kPending, int kCount> __device__ __forceinline__ void wgmma_wait_group(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  pin_registers(d);
}
template <int kPending, int kCountA, int kCountB>
__device__ __forceinline__ void wgmma_wait_group(float (&a)[kCountA], float (&b)[kCountB]) {
  wgmma_wait_group<kPending>(a);
  pin_registers(b);
}
