// The same 32 bits as another type.
__device__ __forceinline__ float float_from_bits(u32 bits) { return __uint_as_float(bits); }
