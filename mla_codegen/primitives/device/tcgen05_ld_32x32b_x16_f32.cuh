// 16 consecutive columns of tensor memory: a thread gets those of its lane. The address holds the first lane
// of the warp, 32 * (warp % 4), in its high half. Completed by tcgen05_wait_ld. PTX ISA: tcgen05.ld; sm_100a.
__device__ __forceinline__ void tcgen05_ld_32x32b_x16_f32(float (&r)[16], u32 tmem) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
      : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]),
        "=f"(r[7]), "=f"(r[8]), "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]),
        "=f"(r[14]), "=f"(r[15])
      : "r"(tmem)
      : "memory");
}
