// Running one CTA: fibers, the run queue, hazard reports and the deadlock report.
#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "engine.hpp"

namespace mla::emulator {

thread_local ThreadView* self MLA_EMULATOR_TLS = nullptr;
thread_local Engine* engine MLA_EMULATOR_TLS = nullptr;

const char* name_of(HazardKind kind) {
  static const char* const names[] = {
      "race",          "uninitialised", "proxy-fence", "barrier", "transaction", "deadlock",
      "registers",     "bounds",        "alignment",   "wgmma",   "tcgen05",     "tcgen05-wait",
      "tcgen05-fence", "tmem",          "divergence",  "at-exit", "internal"};
  return names[static_cast<int>(kind)];
}

// ---- reports ----

// Counts a hazard; true when it is the first of its kind at these lines, and its text is wanted.
static bool count_hazard(HazardKind kind, int line, int other_line) {
  Engine& e = *engine;
  ++e.counters.hazards;
  for (Hazard& h : e.hazards) {
    if (h.kind == kind && h.line == (u32)line && h.other_line == (u32)other_line) {
      ++h.count;
      return false;
    }
  }
  return e.hazards.size() < kMaxHazards;
}

static void add_hazard(HazardKind kind, u32 thread, int line, int other_line, const char* text) {
  Engine& e = *engine;
  e.hazards.push_back({kind, {e.cta[0], e.cta[1], e.cta[2]}, thread, (u32)line, (u32)other_line, 1, text});
}

void report(HazardKind kind, int line, int other_line, const char* format, ...) {
  if (!count_hazard(kind, line, other_line)) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  add_hazard(kind, engine->running != nullptr ? current().thread : kNever, line, other_line, text);
}

// Without a running thread there is nothing to leave: the scheduler sees `failed`.
void fatal(HazardKind kind, int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Engine& e = *engine;
  if (count_hazard(kind, line, 0)) add_hazard(kind, current().thread, line, 0, text);
  e.failed = true;
  for (;;) fiber_switch(current().context, e.scheduler);
}

void poison_used(const char* what, int line) {
  if (engine->running != nullptr && !current().tensor.loads.empty()) {
    report(
        HazardKind::tcgen05_wait, line, current().tensor.loads.front().line,
        "%s uses a register of a tcgen05.ld, at line %d at the earliest, before a tcgen05.wait::ld names it",
        what, current().tensor.loads.front().line);
    return;
  }
  report(HazardKind::wgmma, line, 0,
         "%s uses a value that is not there yet: an accumulator before its wait_group names it, or shared "
         "memory before its "
         "copy is complete",
         what);
}

void record(EventKind kind, u64 begin, u64 end, u32 argument, int line, u32 thread) {
  Engine& e = *engine;
  if (!e.tracing ||
      (thread != kNever && thread % 32 != 0 && kind != EventKind::arrive && kind != EventKind::wait_mbarrier))
    return;
  e.trace.push_back({begin, end, thread, kind, argument, (u32)line});
}

// ---- run queue ----

void wake(u32 thread) {
  Engine& e = *engine;
  e.fibers[thread].state = ThreadState::ready;
  Warp& w = e.warps[thread / 32];
  w.ready |= 1u << (thread % 32);
  if (!w.queued) {
    w.queued = true;
    e.ready_warps.push_back(thread / 32);
  }
}

void wake_all(std::vector<u32>& threads) {
  for (const u32 thread : threads) wake(thread);
  threads.clear();
}

void block(const char* waits_for, u32 argument, u32 phase, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  f.state = ThreadState::blocked;
  f.waits_for = waits_for;
  f.wait_argument = argument;
  f.wait_phase = phase;
  f.wait_line = line;
  ++e.counters.switches;
  fiber_switch(f.context, e.scheduler);
}

static void fiber_entry() {
  Engine& e = *engine;
  e.body(e.arguments);
  Fiber& f = current();
  f.state = ThreadState::finished;
  --e.live;
  if (e.checks && !f.accumulators.empty()) {
    report(HazardKind::at_exit, f.accumulators[0].line, 0,
           "a thread ends while the accumulators of a wgmma are in flight, no wait_group names them");
  }
  if (!f.bulk_open.empty() || !f.bulk_groups.empty()) {
    report(HazardKind::at_exit, 0, 0, "a thread ends while its bulk stores may still read shared memory");
  }
  if (e.checks && !f.open_words.empty()) {
    report(HazardKind::at_exit, (int)e.operations[f.word_operation].line, 0,
           "a thread ends while its cp.async is in flight, and neither a wait nor an mbarrier covers it");
  }
  if (!f.tensor.loads.empty() || !f.tensor.stores.empty()) {
    const bool store = f.tensor.loads.empty();
    report(HazardKind::at_exit, store ? f.tensor.stores[0].line : f.tensor.loads[0].line, 0,
           "a thread ends while its tcgen05.%s is in flight, no tcgen05.wait::%s %s", store ? "st" : "ld",
           store ? "st" : "ld", store ? "follows" : "names its registers");
  }
  for (;;) fiber_switch(f.context, e.scheduler);
}

// ---- what is in flight: bulk copies, and products in the order of their pipe ----

bool in_flight() { return !engine->copies.empty() || busy_pipes() != 0; }

bool complete_one_operation() {
  Engine& e = *engine;
  const u32 copies = (u32)e.copies.size(), total = copies + busy_pipes();
  if (total == 0) return false;
  const u32 pick = e.policy == Policy::early ? 0 : e.random.below(total);
  if (pick < copies) {
    complete_copy(pick);
  } else {
    run_pipe(pick - copies);
  }
  return true;
}

// ---- deadlock ----

static void describe_waits(std::string& text) {
  Engine& e = *engine;
  u32 first = 0;
  auto same = [&](u32 a, u32 b) {
    const Fiber &x = e.fibers[a], &y = e.fibers[b];
    return x.state == y.state && (x.state != ThreadState::blocked ||
                                  (x.waits_for == y.waits_for && x.wait_argument == y.wait_argument &&
                                   x.wait_phase == y.wait_phase && x.wait_line == y.wait_line));
  };
  for (u32 i = 1; i <= e.threads; ++i) {
    if (i < e.threads && same(first, i)) continue;
    const Fiber& f = e.fibers[first];
    if (f.state == ThreadState::blocked) {
      char line[256];
      if (strcmp(f.waits_for, "mbarrier_wait") == 0) {
        snprintf(line, sizeof line, "; @r%u_%u wait for @b%u, phase parity %u (line %d)", first, i - 1,
                 f.wait_argument, f.wait_phase, f.wait_line);
      } else if (strcmp(f.waits_for, "bar_sync") == 0) {
        snprintf(line, sizeof line, "; @r%u_%u wait for @n%u (line %d)", first, i - 1, f.wait_argument,
                 f.wait_line);
      } else {
        snprintf(line, sizeof line, "; @r%u_%u wait in %s %u (line %d)", first, i - 1, f.waits_for,
                 f.wait_argument, f.wait_line);
      }
      if (text.size() < 3000) text += line;
    }
    first = i;
  }
}

static void report_deadlock() {
  Engine& e = *engine;
  std::string text = std::to_string(e.live) + " threads wait and nothing is in flight";
  describe_waits(text);
  for (const Mbarrier& b : e.mbarriers) {
    if (b.waiters.empty()) continue;
    char line[320];
    snprintf(line, sizeof line,
             "; @b%u has completed %u phases, misses %lld of %u arrivals and %lld bytes (%llu announced, "
             "%llu in copies)",
             b.address, b.phase, (long long)b.pending, b.arrivals, (long long)b.tx_bytes,
             (unsigned long long)b.expected_bytes, (unsigned long long)b.issued_bytes);
    text += line;
  }
  for (u32 id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrierState& n = e.named[id];
    if (n.waiters.empty()) continue;
    char line[160];
    snprintf(line, sizeof line, "; @n%u has %u of %u threads", id, n.arrived, n.threads);
    text += line;
  }
  if (!e.register_waiters.empty()) {
    text += "; of the launch allocation, " + std::to_string(e.threads) + " threads x " +
            std::to_string(e.config.launch_registers) + " registers, " + std::to_string(e.register_pool) +
            " are free";
  }
  u32 thread = 0;
  while (thread + 1 < e.threads && e.fibers[thread].state != ThreadState::blocked) ++thread;
  const int line = e.fibers[thread].wait_line;
  if (count_hazard(HazardKind::deadlock, line, 0))
    add_hazard(HazardKind::deadlock, thread, line, 0, text.c_str());
  e.failed = true;
}

// ---- one CTA ----

static void reset(Engine& e) {
  const RunConfig& c = e.config;
  e.threads = e.live = c.threads;
  e.components = (e.threads + kMaxMbarriers + kNamedBarriers + kTensorPipes + 15) / 16 * 16;
  e.failed = false;
  e.policy = (Policy)c.policy;
  e.checks = c.checks != 0;
  e.random.state =
      0x9E3779B97F4A7C15ull * (c.seed + 1) ^ ((u64)e.cta[0] << 40 ^ (u64)e.cta[1] << 20 ^ e.cta[2]);
  if (e.random.state == 0) e.random.state = 1;
  for (int i = 0; i < 8; ++i) e.random.next();

  e.smem_end = kSmemBase + (c.smem_bytes + 15) / 16 * 16;
  e.smem_store.resize(e.smem_end + 1024);
  e.smem = e.smem_store.data() + (-(std::uintptr_t)e.smem_store.data() & 1023);
  for (u32 a = 0; a + 4 <= e.smem_end; a += 4) memcpy(e.smem + a, &kPoison, 4);
  const u32 num_cells = e.smem_end / 4;
  e.cells.assign(num_cells, Cell{0, -1, 0, 0, Writer::nobody});
  e.readers.clear();
  e.free_readers = -1;
  e.operations.clear();
  e.operations.push_back({});  // index 0 means none

  e.mbarriers.clear();
  e.mbarriers.reserve(kMaxMbarriers);
  e.mbarrier_at.assign(e.smem_end / 8, 0xFFFF);
  const u32 rows = e.threads + 2 * kMaxMbarriers + kNamedBarriers;
  e.clock_store.assign((size_t)rows * e.components + 16, 0);
  u32* store = e.clock_store.data() + ((-(std::uintptr_t)e.clock_store.data() & 63) / 4);
  e.warps.assign(e.threads / 32, Warp{});
  e.ready_warps.clear();
  e.copies.clear();
  e.register_waiters.clear();
  e.tensor_time = e.copy_time = 0;
  e.warpgroups.resize((e.threads + kWarpgroupThreads - 1) / kWarpgroupThreads);
  for (Warpgroup& g : e.warpgroups) {
    for (auto& pending : g.queue) g.spare.push_back(std::move(pending));
    g.queue.clear();
    g.executed = 0;
    g.group_waits.clear();
    g.group_time.assign(1, 0);
    g.free_shadows.clear();
    for (u32 i = 0; i < g.shadows.size(); ++i) g.free_shadows.push_back(i);
    g.waiters.clear();
    g.last_read.assign(e.smem_end / 16, 0);
    g.register_warps = 0;
  }
  reset_tensor_memory();
  const u32 registers = c.launch_registers;
  e.register_pool = 0;  // all of the launch allocation belongs to the warps
  e.fibers.resize(e.threads);
  for (u32 i = 0; i < e.threads; ++i) {
    Fiber& f = e.fibers[i];
    f.thread = i;
    for (int d = 0; d < 3; ++d) f.cta[d] = e.cta[d];
    f.cost = 0;
    f.time = 0;
    f.clock = store + (size_t)i * e.components;
    f.clock[i] = 1;
    f.async_fences.clear();
    f.init_fences.clear();
    f.accumulators.clear();
    f.group_end.assign(1, 0);
    f.mma_issued = f.groups = f.groups_waited = 0;
    f.mma_fenced = false;
    f.mma_fences = 0;
    f.bulk_open.clear();
    f.bulk_groups.clear();
    f.word_operation = 0;
    f.open_words.clear();
    f.registers = registers;
    f.tensor = {};
    fiber_prepare(f.context, e.stacks.stack(i), e.stacks.bytes(i), fiber_entry);
    wake(i);
  }
  store += (size_t)e.threads * e.components;
  for (NamedBarrierState& n : e.named) {
    n.threads = n.arrived = n.generation = n.line = 0;
    n.time = 0;
    n.waiters.clear();
    n.per_warp.fill(0);
    n.joined = store;
    store += e.components;
  }
}

static void check_exit(Engine& e) {
  e.running = nullptr;
  check_tensor_memory_at_exit();
  for (u32 i = 0; i < e.threads; ++i) {
    if (e.fibers[i].registers == e.fibers[i / kWarpgroupThreads * kWarpgroupThreads].registers) continue;
    report(HazardKind::registers, 0, 0,
           "the warps of one warpgroup end with %u and %u registers, setmaxnreg is for all",
           e.fibers[i / kWarpgroupThreads * kWarpgroupThreads].registers, e.fibers[i].registers);
    break;
  }
  if (!e.copies.empty()) {
    const Operation& op = e.operations[e.copies.front().operation];
    report(HazardKind::at_exit, (int)op.line, 0,
           "the CTA ends while a %s is in flight, and nobody waits for it", describe(op));
  }
  for (const Mbarrier& b : e.mbarriers) {
    if (b.tx_bytes != 0 && e.copies.empty()) {
      report(HazardKind::at_exit, 0, (int)b.address, "the CTA ends while @b%u misses %lld bytes", b.address,
             (long long)b.tx_bytes);
    }
  }
}

void run_cta(Engine& e, u32 x, u32 y, u32 z) {
  engine = &e;
  e.cta[0] = x;
  e.cta[1] = y;
  e.cta[2] = z;
  reset(e);
  ++e.counters.ctas;
  const u32 switch_odds = e.policy == Policy::random ? 2 : 8;
  while (e.live > 0 && !e.failed) {
    if (e.policy == Policy::random && in_flight() && e.random.below(8) == 0) complete_one_operation();
    if (e.ready_warps.empty()) {
      if (complete_one_operation()) continue;
      e.running = nullptr;
      report_deadlock();
      break;
    }
    const u32 pick = e.random.below((u32)e.ready_warps.size());
    const u32 warp = e.ready_warps[pick];
    e.ready_warps[pick] = e.ready_warps.back();
    e.ready_warps.pop_back();
    Warp& w = e.warps[warp];
    // The lanes of a warp run in turn until each waits for another warp; now and then the warp has to queue
    // again.
    do {
      u32 lanes = w.ready;
      w.ready = 0;
      while (lanes != 0 && !e.failed) {
        const u32 lane = (u32)__builtin_ctz(lanes);
        lanes &= lanes - 1;
        Fiber& f = e.fibers[warp * 32 + lane];
        e.running = &f;
        self = &f;
        fiber_switch(e.scheduler, f.context);
      }
    } while (w.ready != 0 && !e.failed && e.random.below(switch_odds) != 0);
    w.queued = false;
    if (w.ready != 0) {
      w.queued = true;
      e.ready_warps.push_back(warp);
    }
  }
  if (!e.failed && e.checks) check_exit(e);
  e.running = nullptr;
}

}  // namespace mla::emulator
