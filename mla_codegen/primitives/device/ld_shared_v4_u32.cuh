// 16 bytes at once; the address is a multiple of 16. PTX ISA: ld.shared.
__device__ __forceinline__ void ld_shared_v4_u32(u32 address, u32 (&word)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "r"(address) : "memory");
}
