// Blocks until the phase with this parity is complete. PTX ISA: mbarrier.try_wait.parity.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 phase) {
  asm volatile(
      "{\n.reg .pred complete;\nMLA_WAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra MLA_WAIT_%=;\n}" ::"r"(barrier), "r"(phase) : "memory");
}
