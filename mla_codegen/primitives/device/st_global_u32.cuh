// One 32-bit word; the address is a multiple of 4. PTX ISA: st.global.
__device__ __forceinline__ void st_global_u32(void* address, u32 x) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}
