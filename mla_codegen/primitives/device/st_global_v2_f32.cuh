// 8 bytes at once; the address is a multiple of 8.
__device__ __forceinline__ void st_global_v2_f32(void* address, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(x), "f"(y) : "memory");
}
