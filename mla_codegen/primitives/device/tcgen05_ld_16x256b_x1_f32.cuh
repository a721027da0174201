// 16 lanes of 8 columns, as M = 64 has them: of every 8 columns lane l gets 2 of row l / 4 and 2 of row
// l / 4 + 8, from column 2 * (l % 4) on. Completed by tcgen05_wait_ld. PTX ISA: tcgen05.ld; sm_100a.
__device__ __forceinline__ void tcgen05_ld_16x256b_x1_f32(float (&r)[4], u32 tmem) {
  asm volatile(
      "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%0, %1, %2, %3}, [%4];"
      : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
      : "r"(tmem)
      : "memory");
}
