// Four fp32 to four e4m3 codes, the first in the low byte; round to nearest even, saturating.
// PTX ISA: cvt.rn.satfinite.e4m3x2.f32 (its first source goes to the high byte); sm_89 and later.
__device__ __forceinline__ u32 cvt_e4m3x4(float x0, float x1, float x2, float x3) {
  u32 codes;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}" : "=r"(codes) : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return codes;
}
