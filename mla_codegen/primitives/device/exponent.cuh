// Parts of an exponential without the special-function unit: a sum rounded down, and the bits of a number.
// PTX ISA: add.rm.ftz.f32.
__device__ __forceinline__ float add_rm_f32(float a, float b) {
  float sum;
  asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
__device__ __forceinline__ u32 bits_from_float(float x) { return __float_as_uint(x); }
