// One 32-bit word; the address is a multiple of 4. PTX ISA: st.shared.
__device__ __forceinline__ void st_shared_u32(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
