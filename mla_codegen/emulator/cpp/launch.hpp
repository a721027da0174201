// Running a grid: what the small launcher of a kernel and Python share with the engine.
#pragma once
#include "engine_api.hpp"

namespace mla::emulator {

// What a run is asked to do; filled in by Python.
struct RunConfig {
  u32 threads;
  u32 smem_bytes;
  u32 launch_registers;
  u32 grid[3];
  u32 seed;
  u32 policy;
  u32 checks;            // 0: no clocks, no hazards beyond deadlock and bounds
  u32 exact_arithmetic;  // 1: fp8 products summed in fp32
  u32 workers;
  u32 trace;  // 1: record events of CTA `trace_cta`
  u32 trace_cta;
  u32 stack_bytes;
  u64* ctas_done;  // counts CTAs as they end, or null
};

// A global array that the kernel may touch. `marks` (one byte per 2 bytes of the array, or null) records
// writes.
struct GlobalRange {
  u64 address;
  u64 bytes;
  u64 marks;
  u32 writable;
  u32 index;
};

// Runs one CUDA thread of the kernel.
using KernelBody = void (*)(const void* arguments);

struct Results;
Results* run_grid(const RunConfig& config, const GlobalRange* ranges, u32 num_ranges, KernelBody body,
                  const void* arguments);

// A member of Params from the 64-bit slot that Python put it in.
template <class T>
T from_slot(u64 slot) {
  T value;
  __builtin_memcpy(&value, &slot, sizeof value);
  return value;
}

}  // namespace mla::emulator
