// Completion of this thread's loads and stores of tensor memory. PTX ISA: tcgen05.wait; sm_100a.
// The registers of a load are named, so that no use of them moves above the wait; a second wait is cheap.
template <int kCount>
__device__ __forceinline__ void tcgen05_wait_ld(float (&r)[kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kRows, int kCount>
__device__ __forceinline__ void tcgen05_wait_ld(float (&r)[kRows][kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kRows * kCount; ++i) asm volatile("" : "+f"(r[i / kCount][i % kCount])::"memory");
}
__device__ __forceinline__ void tcgen05_wait_st() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}
