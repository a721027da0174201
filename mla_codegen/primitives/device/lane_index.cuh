// A thread's place in its warp. Volatile: read again where it is used, not kept in a register meanwhile. PTX
// ISA: %laneid.
__device__ __forceinline__ u32 lane_index() {
  u32 lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
