// True in all lanes where the condition holds in any of the warp. PTX ISA: vote.sync.any.
__device__ __forceinline__ bool vote_any(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }
