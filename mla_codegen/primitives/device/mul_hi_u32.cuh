// The upper 32 bits of a product. PTX ISA: mul.hi.u32.
__device__ __forceinline__ u32 mul_hi_u32(u32 x, u32 y) { return __umulhi(x, y); }
