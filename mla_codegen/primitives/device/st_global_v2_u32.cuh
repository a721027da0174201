// 8 bytes at once; the address is a multiple of 8. PTX ISA: st.global.
__device__ __forceinline__ void st_global_v2_u32(void* address, u32 x, u32 y) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
}
