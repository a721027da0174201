// Exchange between lanes: lane l receives the value of lane l ^ lane_mask. PTX: shfl.sync.bfly.
__device__ __forceinline__ float shfl_xor_f32(float value, u32 lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
