// One 32-bit word; the address is a multiple of 4. PTX ISA: ld.shared.
__device__ __forceinline__ u32 ld_shared_u32(u32 address) {
  u32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
