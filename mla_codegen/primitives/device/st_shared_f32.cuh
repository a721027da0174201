// One fp32; the address is a multiple of 4. PTX ISA: st.shared.
__device__ __forceinline__ void st_shared_f32(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
