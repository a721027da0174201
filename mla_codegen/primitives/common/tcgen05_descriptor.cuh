// Descriptors of tcgen05.mma. PTX ISA, tcgen05: shared memory descriptor, instruction descriptor; sm_100a.
// A matrix in shared memory: start address / 16 in bits 0-13, leading offset / 16 in 16-29, stride offset
// / 16 in 32-45, the constant 1 in 46-48, layout in 61-63 (0: no swizzle, 2: 128B, 4: 64B, 6: 32B).
__device__ __forceinline__ constexpr u64 tcgen05_matrix_descriptor(u32 address, u32 leading_bytes,
                                                                   u32 stride_bytes, u32 layout) {
  const u32 low = ((address & 0x3FFFFu) >> 4) | ((leading_bytes >> 4) << 16);
  const u32 high = (stride_bytes >> 4) | (1u << 14) | (layout << 29);
  return (u64)high << 32 | low;
}
// The same matrix some bytes further on; only the low word changes.
__device__ __forceinline__ constexpr u64 advance_tcgen05_descriptor(u64 descriptor, u32 bytes) {
  return (descriptor & 0xFFFFFFFF00000000ull) | (u32)((u32)descriptor + (bytes >> 4));
}
// What a product is: fp32 accumulator (1 in bits 4-5), types of A and B in 7-9 and 10-12 (kind::f16: 0 f16,
// 1 bf16; kind::f8f6f4: 0 e4m3), M of A and N of B contiguous in 15 and 16, N / 8 in 17-22, M / 16 in 24-28.
__device__ __forceinline__ constexpr u32 tcgen05_instruction_descriptor(u32 type, u32 m, u32 n,
                                                                        bool a_mn_major, bool b_mn_major) {
  return 1u << 4 | type << 7 | type << 10 | (u32)a_mn_major << 15 | (u32)b_mn_major << 16 | (n >> 3) << 17 |
         (m >> 4) << 24;
}
