// Four 8x8 matrices of 16-bit elements between shared memory and registers; lane l names the row (16 bytes)
// l % 8 of matrix l / 8. PTX ISA: ldmatrix (transposed on the way), stmatrix (sm_90 and later), prmt.
__device__ __forceinline__ void ldmatrix_x4_trans_b16(u32 (&r)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row_address) : "memory");
}
__device__ __forceinline__ void stmatrix_x4_b16(u32 row_address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3) : "memory");
}
__device__ __forceinline__ u32 prmt(u32 low, u32 high, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}
