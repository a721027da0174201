// Entry points for Python: run a grid, read the results.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "launch.hpp"

namespace mla::emulator {

struct Results {
  std::vector<Hazard> hazards;
  Counters counters{};
  std::vector<TraceEvent> trace;
  std::vector<u32> mbarriers;  // addresses, for the trace
};

static void add(Counters& into, const Counters& from) {
  const u64* source = reinterpret_cast<const u64*>(&from);
  u64* target = reinterpret_cast<u64*>(&into);
  for (size_t i = 0; i < sizeof(Counters) / sizeof(u64); ++i) target[i] += source[i];
}

// CTAs are independent: each worker takes the next one. A CTA's schedule depends on the seed and its index
// only.
Results* run_grid(const RunConfig& config, const GlobalRange* ranges, u32 num_ranges, KernelBody body,
                  const void* arguments) {
  auto* results = new Results;
  const u64 total = (u64)config.grid[0] * config.grid[1] * config.grid[2];
  std::atomic<u64> next{0};
  std::atomic<bool> stop{false};
  std::mutex lock;
  auto work = [&] {
    auto e = std::make_unique<Engine>();
    e->config = config;
    e->ranges = ranges;
    e->num_ranges = num_ranges;
    e->body = body;
    e->arguments = arguments;
    if (!e->stacks.reserve(config.threads, config.stack_bytes)) {
      stop = true;
      std::lock_guard guard(lock);
      results->hazards.push_back(
          {HazardKind::internal, {}, 0, 0, 0, 1, "no memory for the stacks of the threads"});
      return;
    }
    for (u64 index = next++; index < total && !stop; index = next++) {
      e->tracing = config.trace != 0 && index == config.trace_cta;
      run_cta(*e, (u32)(index % config.grid[0]), (u32)(index / config.grid[0] % config.grid[1]),
              (u32)(index / config.grid[0] / config.grid[1]));
      if (config.ctas_done != nullptr) __atomic_fetch_add(config.ctas_done, 1, __ATOMIC_RELAXED);
      if (e->failed || e->hazards.size() >= kMaxHazards) stop = true;
    }
    std::lock_guard guard(lock);
    for (Hazard& h : e->hazards) results->hazards.push_back(std::move(h));
    for (const TraceEvent& event : e->trace) results->trace.push_back(event);
    add(results->counters, e->counters);
    engine = nullptr;
    self = nullptr;
  };
  const u64 workers = std::clamp<u64>(config.workers, 1, std::max<u64>(total, 1));
  if (workers == 1) {
    work();
  } else {
    std::vector<std::thread> threads;
    for (u64 i = 0; i < workers; ++i) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
  }
  return results;
}

}  // namespace mla::emulator

using namespace mla::emulator;
using mla::u32;
using mla::u64;

extern "C" {

u64 mla_emulator_num_hazards(const Results* r) { return r->hazards.size(); }

struct HazardView {
  const char* kind;
  const char* text;
  u32 cta[3];
  u32 thread, line, other_line;
  u64 count;
};
void mla_emulator_hazard(const Results* r, u64 index, HazardView* view) {
  const Hazard& h = r->hazards[index];
  *view = {name_of(h.kind), h.text.c_str(), {h.cta[0], h.cta[1], h.cta[2]}, h.thread, h.line,
           h.other_line,    h.count};
}
void mla_emulator_counters(const Results* r, Counters* counters) { *counters = r->counters; }
u64 mla_emulator_num_events(const Results* r) { return r->trace.size(); }
const TraceEvent* mla_emulator_events(const Results* r) { return r->trace.data(); }
void mla_emulator_free(Results* r) { delete r; }

// For tests: d[64][n] = c + a * b as a tensor core computes it; rows of a and b are 32 bytes.
void mla_emulator_multiply_on(u32 core, u32 type, u32 exact, u32 n, const mla::u8* a, const mla::u8* b,
                              float* d) {
  auto operands = std::make_unique<MmaOperands>();
  const MmaType t = static_cast<MmaType>(type);
  operands->k = t == MmaType::e4m3 ? 32 : 16;
  operands->irregular = decode_rows(a, 64, t, &operands->a[0][0], 32, 1);
  operands->irregular |= decode_rows(b, (int)n, t, &operands->b[0][0], 1, kOperandPitch);
  multiply(d, (int)n, *operands, t, static_cast<TensorCore>(core), exact != 0);
}
void mla_emulator_multiply(u32 type, u32 exact, u32 n, const mla::u8* a, const mla::u8* b, float* d) {
  mla_emulator_multiply_on(0, type, exact, n, a, b, d);
}

}  // extern "C"
