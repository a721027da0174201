// Tensor maps of bulk copies. PTX ISA: prefetch.tensormap; sm_90 and later.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
