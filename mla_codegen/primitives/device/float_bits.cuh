// The 32 bits of a float as an integer; those of numbers that are not negative are in the numbers' order.
__device__ __forceinline__ u32 bits_from_float(float x) { return __float_as_uint(x); }
