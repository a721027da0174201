// Two consecutive fp32; the address is a multiple of 8. Volatile keeps it between the barrier operations
// around it; without "memory" the compiler need not treat it as a fence.
__device__ __forceinline__ void ld_shared_v2_f32(u32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address));
}
