__device__ __forceinline__ u32 shfl_xor_u32(u32 value, u32 lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
