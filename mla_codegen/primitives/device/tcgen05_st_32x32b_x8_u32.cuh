// 8 consecutive columns of packed elements from a thread's registers, into its lane; addresses as of
// tcgen05.ld. Completed by tcgen05_wait_st. PTX ISA: tcgen05.st; sm_100a.
__device__ __forceinline__ void tcgen05_st_32x32b_x8_u32(u32 tmem, const u32 (&r)[8]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(tmem),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7])
      : "memory");
}
