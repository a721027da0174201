// 2 consecutive columns of tensor memory: a thread gets those of its lane. The address holds the first lane
// of the warp, 32 * (warp % 4), in its high half. Completed by tcgen05_wait_ld. PTX ISA: tcgen05.ld; sm_100a.
__device__ __forceinline__ void tcgen05_ld_32x32b_x2_f32(float (&r)[2], u32 tmem) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%0, %1}, [%2];"
      : "=f"(r[0]), "=f"(r[1])
      : "r"(tmem)
      : "memory");
}
