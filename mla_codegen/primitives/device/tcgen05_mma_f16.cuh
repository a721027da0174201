// d = a * b, or d += a * b where accumulate is not 0, of 16-bit elements, K = 16; asynchronous, one thread.
// A is in shared memory (ss) or in tensor memory (ts: a row per lane, packed into 8 columns), B in shared
// memory. PTX ISA: tcgen05.mma, kind::f16; sm_100a.
__device__ __forceinline__ void tcgen05_mma_f16_ss(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, accumulate;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}
__device__ __forceinline__ void tcgen05_mma_f16_ts(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, accumulate;\n}" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}
