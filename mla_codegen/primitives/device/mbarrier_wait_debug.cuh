// Debug build: the wait gives up after mla_debug_limit_ns, writes who waited for what, and traps.
// The record lies in host memory that the GPU can write, since nothing else survives a trap.
struct DebugRecord {
  u32 claimed;  // 0 until the first thread that gives up takes the record
  u32 thread;  // thread index in the CTA
  u32 barrier;  // shared-memory address of the barrier
  u32 phase;  // the parity waited for
  u32 cta[3];  // CTA index
  u32 written;  // 1 when all of the above is there
};
extern "C" __device__ DebugRecord* mla_debug_record;
extern "C" __device__ u64 mla_debug_limit_ns;
__device__ DebugRecord* mla_debug_record = nullptr;
__device__ u64 mla_debug_limit_ns = 2000000000ull;

__device__ __forceinline__ u64 global_timer_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __noinline__ void mbarrier_timeout(u32 barrier, u32 phase) {
  DebugRecord* record = mla_debug_record;
  // Only the first thread traps: the trap of another one would end the kernel before the record is there.
  if (record != nullptr && atomicCAS_system(&record->claimed, 0u, 1u) != 0u) return;
  if (record != nullptr) {
    volatile DebugRecord* out = record;
    out->thread = threadIdx.x;
    out->barrier = barrier;
    out->phase = phase;
    out->cta[0] = blockIdx.x;
    out->cta[1] = blockIdx.y;
    out->cta[2] = blockIdx.z;
    __threadfence_system();
    out->written = 1;
    __threadfence_system();
  }
  asm volatile("trap;");
}

__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 phase) {
  const u64 start = global_timer_ns();
  u32 complete = 0;
  while (complete == 0) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.b32 %0, 1, 0, complete;\n"
        "}" : "=r"(complete) : "r"(barrier), "r"(phase) : "memory");
    if (complete == 0 && global_timer_ns() - start > mla_debug_limit_ns) mbarrier_timeout(barrier, phase);
  }
}
