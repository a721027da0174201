// The larger of two numbers, NaN where one is. PTX ISA: max.NaN.f32; sm_80 and later.
__device__ __forceinline__ float max_nan_f32(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}
