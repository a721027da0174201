// 16 consecutive columns of packed elements from a thread's registers, into its lane; addresses as of
// tcgen05.ld. Completed by tcgen05_wait_st. PTX ISA: tcgen05.st; sm_100a.
__device__ __forceinline__ void tcgen05_st_32x32b_x16_u32(u32 tmem, const u32 (&r)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16};" ::"r"(tmem),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]),
      "r"(r[8]), "r"(r[9]), "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15])
      : "memory");
}
