// 16 bytes that no kernel writes meanwhile; the address is a multiple of 16. PTX ISA: ld.global.nc.
__device__ __forceinline__ void ld_global_v4_u32(const void* address, u32 (&word)[4]) {
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(address));
}
