// Position in a ring of kStages slots: the slot and the parity of its current phase.
template <u32 kStages>
struct PipelineState {
  u32 stage;
  u32 phase;
  __device__ __forceinline__ void advance() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (stage == 0) phase ^= 1;
  }
};
