// 16 lanes of 32 columns, as M = 64 has them: of every 8 columns lane l gets 2 of row l / 4 and 2 of row
// l / 4 + 8, from column 2 * (l % 4) on. Completed by tcgen05_wait_ld. PTX ISA: tcgen05.ld; sm_100a.
__device__ __forceinline__ void tcgen05_ld_16x256b_x4_f32(float (&r)[16], u32 tmem) {
  asm volatile(
      "tcgen05.ld.sync.aligned.16x256b.x4.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
      : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]),
        "=f"(r[7]), "=f"(r[8]), "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]),
        "=f"(r[14]), "=f"(r[15])
      : "r"(tmem)
      : "memory");
}
