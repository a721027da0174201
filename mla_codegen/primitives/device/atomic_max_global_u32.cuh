// Raises a word to `value` where that is larger, whole grids at a time; the address is a multiple of 4.
// PTX ISA: red.global.max.
__device__ __forceinline__ void atomic_max_global_u32(u32* address, u32 value) {
  asm volatile("red.global.max.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
