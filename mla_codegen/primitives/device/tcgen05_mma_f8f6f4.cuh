// d = a * b, or d += a * b where accumulate is not 0, of 8-bit elements, K = 32; asynchronous, one thread.
// A is in shared memory (ss) or in tensor memory (ts: a row per lane, packed into 8 columns), B in shared
// memory. PTX ISA: tcgen05.mma, kind::f8f6f4; sm_100a.
__device__ __forceinline__ void tcgen05_mma_f8f6f4_ss(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, accumulate;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}
__device__ __forceinline__ void tcgen05_mma_f8f6f4_ts(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], [%1], %2, %3, accumulate;\n}" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}
