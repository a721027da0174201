// 2 consecutive columns of tensor memory from a thread's registers, into its lane; addresses as of
// tcgen05.ld. Completed by tcgen05_wait_st. PTX ISA: tcgen05.st; sm_100a.
__device__ __forceinline__ void tcgen05_st_32x32b_x2_f32(u32 tmem, const float (&r)[2]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x2.b32 [%0], {%1, %2};" ::"r"(tmem),
      "f"(r[0]), "f"(r[1])
      : "memory");
}
