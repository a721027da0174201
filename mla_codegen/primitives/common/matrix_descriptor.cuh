// Matrix descriptor in shared memory (PTX ISA, wgmma): start address / 16 in bits 0-13, leading offset / 16
// in 16-29, stride offset / 16 in 32-45, swizzle mode in 62-63 (1: 128B, 2: 64B, 3: 32B).
__device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes,
                                                 u32 swizzle_mode) {
  const u32 low = ((address & 0x3FFFFu) >> 4) | ((leading_bytes >> 4) << 16);
  const u32 high = (stride_bytes >> 4) | (swizzle_mode << 30);
  return (u64)high << 32 | low;
}
// The same matrix some bytes further on; only the low word changes.
__device__ __forceinline__ u64 advance_descriptor(u64 descriptor, u32 bytes) {
  return (descriptor & 0xFFFFFFFF00000000ull) | (u32)((u32)descriptor + (bytes >> 4));
}
