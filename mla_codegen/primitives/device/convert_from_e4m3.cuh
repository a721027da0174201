// Four e4m3 codes, the first in the low byte, to fp32; exact. PTX ISA: cvt.rn.f16x2.e4m3x2 (its low result is
// of the low byte), cvt.f32.f16; sm_89 and later.
__device__ __forceinline__ void cvt_f32x4_e4m3(float (&x)[4], u32 codes) {
  asm("{\n.reg .b16 low, high, h0, h1, h2, h3;\n.reg .b32 pair0, pair1;\nmov.b32 {low, high}, %4;\n"
      "cvt.rn.f16x2.e4m3x2 pair0, low;\ncvt.rn.f16x2.e4m3x2 pair1, high;\n"
      "mov.b32 {h0, h1}, pair0;\nmov.b32 {h2, h3}, pair1;\n"
      "cvt.f32.f16 %0, h0;\ncvt.f32.f16 %1, h1;\ncvt.f32.f16 %2, h2;\ncvt.f32.f16 %3, h3;\n}"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
      : "r"(codes));
}
