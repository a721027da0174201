// Two fp32 to two bf16, the first in the low half; round to nearest even. PTX ISA: cvt.rn.bf16x2.f32.
__device__ __forceinline__ u32 cvt_bf16x2(float x0, float x1) {
  u32 halves;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(x1), "f"(x0));
  return halves;
}
