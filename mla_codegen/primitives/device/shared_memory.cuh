// Ordinary accesses to shared memory by 32-bit address. PTX ISA: ld.shared, st.shared.
extern __shared__ __align__(1024) u8 dynamic_smem[];
__device__ __forceinline__ u32 smem_base() { return (u32)__cvta_generic_to_shared(dynamic_smem); }
