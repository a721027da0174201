// CTA, warp and named barriers. PTX: bar.sync, bar.arrive (id 0 belongs to cta_sync).
// "memory" keeps the compiler from moving loads and stores across them.
__device__ __forceinline__ void cta_sync() { __syncthreads(); }
__device__ __forceinline__ void warp_sync() { __syncwarp(); }
__device__ __forceinline__ void bar_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
