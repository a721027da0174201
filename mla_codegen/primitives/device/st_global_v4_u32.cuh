// 16 bytes at once; the address is a multiple of 16.
__device__ __forceinline__ void st_global_v4_u32(void* address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
