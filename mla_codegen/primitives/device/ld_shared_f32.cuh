// One fp32; the address is a multiple of 4. PTX ISA: ld.shared.
__device__ __forceinline__ float ld_shared_f32(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
