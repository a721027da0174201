// Where a thread stands. PTX ISA, special registers.
__device__ __forceinline__ u32 thread_index() { return threadIdx.x; }
// The same, read anew: what is computed from it is not kept in a register over work that follows.
__device__ __forceinline__ u32 thread_index_anew() {
  u32 index; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index)); return index;
}
__device__ __forceinline__ u32 cta_index_x() { return blockIdx.x; }
__device__ __forceinline__ u32 cta_index_y() { return blockIdx.y; }
__device__ __forceinline__ u32 cta_index_z() { return blockIdx.z; }
// Tells the compiler that a value is the same in all 32 lanes, so that it may live in a uniform register.
__device__ __forceinline__ u32 warp_uniform(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }
// True in one lane of the (converged) warp. PTX ISA: elect.sync; sm_90 and later.
__device__ __forceinline__ bool elect_sync() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}
