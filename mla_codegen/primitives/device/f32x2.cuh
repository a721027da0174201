// Two fp32 operations in one instruction, round to nearest even: x = x * y, x = x * y + z, x = x + y.
// PTX ISA: mul, fma, add with .f32x2; sm_100 and later.
__device__ __forceinline__ void mul_f32x2(float& x0, float& x1, float y0, float y1) {
  asm("{\n.reg .b64 x, y;\nmov.b64 x, {%0, %1};\nmov.b64 y, {%2, %3};\n"
      "mul.rn.f32x2 x, x, y;\nmov.b64 {%0, %1}, x;\n}"
      : "+f"(x0), "+f"(x1)
      : "f"(y0), "f"(y1));
}
__device__ __forceinline__ void fma_f32x2(float& x0, float& x1, float y0, float y1, float z0, float z1) {
  asm("{\n.reg .b64 x, y, z;\nmov.b64 x, {%0, %1};\nmov.b64 y, {%2, %3};\nmov.b64 z, {%4, %5};\n"
      "fma.rn.f32x2 x, x, y, z;\nmov.b64 {%0, %1}, x;\n}"
      : "+f"(x0), "+f"(x1)
      : "f"(y0), "f"(y1), "f"(z0), "f"(z1));
}
__device__ __forceinline__ void add_f32x2(float& x0, float& x1, float y0, float y1) {
  asm("{\n.reg .b64 x, y;\nmov.b64 x, {%0, %1};\nmov.b64 y, {%2, %3};\n"
      "add.rn.f32x2 x, x, y;\nmov.b64 {%0, %1}, x;\n}"
      : "+f"(x0), "+f"(x1)
      : "f"(y0), "f"(y1));
}
