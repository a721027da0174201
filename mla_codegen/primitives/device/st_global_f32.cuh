// One fp32; the address is a multiple of 4. PTX ISA: st.global.
__device__ __forceinline__ void st_global_f32(float* address, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
