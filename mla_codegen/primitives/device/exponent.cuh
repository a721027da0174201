// A sum rounded down, for an exponential without the special-function unit.
// PTX ISA: add.rm.ftz.f32.
__device__ __forceinline__ float add_rm_f32(float a, float b) {
  float sum;
  asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
