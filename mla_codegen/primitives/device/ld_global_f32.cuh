// One fp32 that no kernel writes meanwhile; the address is a multiple of 4. PTX ISA: ld.global.nc.
__device__ __forceinline__ float ld_global_f32(const float* address) { return __ldg(address); }
