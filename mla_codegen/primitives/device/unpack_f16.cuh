// Two f16 as fp32, the low half first; exact. PTX ISA: cvt.f32.f16.
__device__ __forceinline__ void unpack_f16x2(u32 halves, float& low, float& high) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
}
