// Two bf16 as fp32, the low half first; exact.
__device__ __forceinline__ void unpack_bf16x2(u32 halves, float& low, float& high) {
  low = __uint_as_float(halves << 16);
  high = __uint_as_float(halves & 0xffff0000u);
}
