// Two fp32 to two f16, the first in the low half; round to nearest even, saturating at 65504.
// PTX ISA: cvt.rn.satfinite.f16x2.f32.
__device__ __forceinline__ u32 cvt_satfinite_f16x2(float x0, float x1) {
  u32 halves;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(x1), "f"(x0));
  return halves;
}
