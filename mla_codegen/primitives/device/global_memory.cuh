// Ordinary accesses to global memory.
__device__ __forceinline__ i32 ld_global_i32(const i32* address) { return __ldg(address); }
