// The smaller of two unsigned 16-bit numbers, in both halves. PTX ISA: min.u16x2; sm_90 and later.
__device__ __forceinline__ u32 min_u16x2(u32 x, u32 y) {
  u32 halves;
  asm("min.u16x2 %0, %1, %2;" : "=r"(halves) : "r"(x), "r"(y));
  return halves;
}
