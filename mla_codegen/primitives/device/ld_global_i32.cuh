// One 32-bit integer that no kernel writes meanwhile; the address is a multiple of 4. PTX ISA: ld.global.nc.
__device__ __forceinline__ i32 ld_global_i32(const i32* address) { return __ldg(address); }
