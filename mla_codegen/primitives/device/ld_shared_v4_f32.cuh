// Four consecutive fp32; the address is a multiple of 16. Volatile keeps it between the barrier operations
// around it; without "memory" the compiler need not treat it as a fence.
__device__ __forceinline__ void ld_shared_v4_f32(u32 address, float (&x)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(address));
}
