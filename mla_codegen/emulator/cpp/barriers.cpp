// mbarriers and named barriers.
#include <algorithm>

#include "engine.hpp"

namespace mla::emulator {

constexpr u64 kBarrierCycles = 20;

// ---- mbarriers ----

static Mbarrier& find_mbarrier(u32 address, int line) {
  Engine& e = *engine;
  if (address < kSmemBase || address + 8 > e.smem_end || address % 8 != 0 ||
      e.mbarrier_at[address / 8] == 0xFFFF) {
    fatal(HazardKind::barrier, line, "@b%u is not an initialised mbarrier", address);
  }
  return e.mbarriers[e.mbarrier_at[address / 8]];
}

static u32 index_of(const Mbarrier& b) { return (u32)(&b - engine->mbarriers.data()); }

static void check_initialised(const Mbarrier& b, const Fiber& f, int line) {
  if (f.thread != b.init_thread && f.clock[b.init_thread] < b.init_clock) {
    report(HazardKind::barrier, line, (int)b.init_line,
           "use of @b%u is not ordered after its mbarrier.init at line %u", b.address, b.init_line);
  }
}

void mbarrier_init(u32 address, u32 arrivals, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  check_bounds(address, 8, 8, line, "mbarrier.init");
  if (arrivals == 0 || arrivals >= 1u << 20) {
    fatal(HazardKind::barrier, line, "mbarrier.init of @b%u with %u arrivals, 1 to 1048575 are possible",
          address, arrivals);
  }
  if (e.mbarrier_at[address / 8] != 0xFFFF) {
    fatal(HazardKind::barrier, line, "mbarrier.init of @b%u, which is initialised already", address);
  }
  if (e.mbarriers.size() >= kMaxMbarriers) {
    fatal(HazardKind::internal, line, "more than %u mbarriers, the emulator holds no more", kMaxMbarriers);
  }
  note_write(address, 8, line);
  Mbarrier b{};
  b.address = address;
  b.arrivals = arrivals;
  b.pending = arrivals;
  b.init_thread = f.thread;
  b.init_clock = clock_of(f);
  b.init_line = (u32)line;
  const u32 index = (u32)e.mbarriers.size();
  // The clocks lie behind those of the threads and the named barriers.
  b.arrived = e.fibers[0].clock + (size_t)(e.threads + kNamedBarriers + 2 * index) * e.components;
  b.completed = b.arrived + e.components;
  e.mbarriers.push_back(std::move(b));
  e.mbarrier_at[address / 8] = (u16)index;
  for (u32 a = address; a < address + 8; a += 4) {
    e.cells[a / 4] = Cell{0, -1, (u16)f.thread, (u16)line, Writer::mbarrier};
  }
}

void fence_mbarrier_init() {
  Fiber& f = current();
  tick(f);
  f.init_fences.push_back(clock_of(f));
}

void fence_proxy_async() {
  Fiber& f = current();
  tick(f);
  f.async_fences.push_back(clock_of(f));
}

static void report_timing(const Mbarrier& b, int line) {
  report(HazardKind::barrier, line, 0,
         "arrival at @b%u is not ordered after the completion of its phase %u: which phase it counts in "
         "depends on timing",
         b.address, b.phase - 1);
}

static void complete_phase_if_due(Mbarrier& b) {
  if (b.pending != 0 || b.tx_bytes != 0) return;
  Engine& e = *engine;
  if (e.checks && b.issued_bytes != b.expected_bytes) {
    report(
        HazardKind::transaction, (int)b.init_line, (int)b.address,
        "@b%u completes a phase for which %llu bytes were announced while copies of %llu bytes were issued",
        b.address, (unsigned long long)b.expected_bytes, (unsigned long long)b.issued_bytes);
  }
  ++b.phase;
  b.pending = b.arrivals;
  b.expected_bytes = b.issued_bytes = 0;
  join(b.completed, b.arrived);
  std::fill(b.arrived, b.arrived + e.components, 0u);
  b.completed[barrier_component(index_of(b))] = b.phase;
  b.time_completed = std::max(b.time_completed, b.time_arrived);
  b.time_arrived = 0;
  wake_all(b.waiters);
}

void mbarrier_arrive(u32 address, u32 arrivals, u32 tx_bytes, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  Mbarrier& b = find_mbarrier(address, line);
  ++e.counters.barrier_arrivals;
  if (e.checks) {
    check_initialised(b, f, line);
    if (f.clock[barrier_component(index_of(b))] < b.phase) report_timing(b, line);
    join(b.arrived, f.clock);
    tick(f);
  }
  b.tx_bytes += tx_bytes;
  b.expected_bytes += tx_bytes;
  if (b.tx_bytes >= 1 << 20) {
    fatal(HazardKind::transaction, line, "@b%u waits for %lld bytes, its counter ends at 1048575", address,
          (long long)b.tx_bytes);
  }
  if ((b.pending -= arrivals) < 0) {
    fatal(HazardKind::barrier, line, "@b%u gets more arrivals than its count of %u in phase %u", address,
          b.arrivals, b.phase);
  }
  b.time_arrived = std::max(b.time_arrived, now());
  if (e.tracing) record(EventKind::arrive, f.time, f.time, address, line, f.thread);
  complete_phase_if_due(b);
}

void mbarrier_wait(u32 address, u32 phase, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  Mbarrier& b = find_mbarrier(address, line);  // stays where it is: storage is reserved
  ++e.counters.mbarrier_waits;
  if (e.checks) check_initialised(b, f, line);
  if (phase > 1)
    fatal(HazardKind::barrier, line, "wait for @b%u with phase parity %u, 0 or 1 are possible", address,
          phase);
  const u64 begin = now();
  while ((b.phase & 1) == phase) {
    b.waiters.push_back(f.thread);
    block("mbarrier_wait", address, phase, line);
  }
  if (e.checks && f.clock[barrier_component(index_of(b))] < b.phase) join(f.clock, b.completed);
  f.time = std::max(f.time, b.time_completed) + kBarrierCycles;
  if (e.tracing) record(EventKind::wait_mbarrier, begin, f.time, address, line, f.thread);
}

// What signals a barrier from outside the thread needs its initialisation made visible.
static void check_init_fenced(const Mbarrier& b, const Fiber& f, int line, const char* what) {
  const Fiber& creator = engine->fibers[b.init_thread];
  const u32 seen = f.clock[b.init_thread];
  if (saw_fence(creator.init_fences, b.init_clock, seen) ||
      saw_fence(creator.async_fences, b.init_clock, seen))
    return;
  report(HazardKind::proxy_fence, line, (int)b.init_line,
         "%s signals @b%u, whose mbarrier.init at line %u has no fence_mbarrier_init after it", what,
         b.address, b.init_line);
}

// For the copy engine: checks, and counts a copy issued to the barrier's current phase.
u32 barrier_for_copy(u32 address, u32 bytes, int line) {
  Fiber& f = current();
  Mbarrier& b = find_mbarrier(address, line);
  if (engine->checks) {
    check_initialised(b, f, line);
    check_init_fenced(b, f, line, "a copy");
  }
  b.issued_bytes += bytes;
  return index_of(b);
}

void complete_copy_on(u32 index, u32 bytes, u64 time, Operation& op) {
  Mbarrier& b = engine->mbarriers[index];
  op.done = true;
  op.barrier = index;
  op.phase = b.phase + 1;
  b.tx_bytes -= bytes;
  b.time_arrived = std::max(b.time_arrived, time);
  complete_phase_if_due(b);
}

// For cp.async: checks, and the barrier that will get an arrival once the copies are complete. The arrival is
// the copy unit's own: it releases nothing else that the thread has done.
u32 barrier_for_word_copies(u32 address, int line) {
  Fiber& f = current();
  Mbarrier& b = find_mbarrier(address, line);
  if (engine->checks) {
    check_initialised(b, f, line);
    if (f.clock[barrier_component(index_of(b))] < b.phase) report_timing(b, line);
  }
  return index_of(b);
}

void complete_word_copies_on(u32 index, u64 time, Operation& op) {
  Mbarrier& b = engine->mbarriers[index];
  op.done = true;
  op.barrier = index;
  op.phase = b.phase + 1;
  b.time_arrived = std::max(b.time_arrived, time);
  if (--b.pending < 0) {
    b.pending = 0;
    report(HazardKind::barrier, (int)op.line, 0, "@b%u gets more arrivals than its count of %u in phase %u",
           b.address, b.arrivals, b.phase);
    engine->failed = true;
    return;
  }
  complete_phase_if_due(b);
}

// For tcgen05.commit: checks when it is issued, and its arrival once the products before it are complete. The
// clock is that of the thread at the commit, with the products in it.
u32 barrier_for_commit(u32 address, int line) {
  Fiber& f = current();
  Mbarrier& b = find_mbarrier(address, line);
  if (engine->checks) {
    check_initialised(b, f, line);
    check_init_fenced(b, f, line, "tcgen05.commit");
  }
  return index_of(b);
}

void complete_commit_on(u32 index, const u32* clock, u64 time, int line) {
  Engine& e = *engine;
  Mbarrier& b = e.mbarriers[index];
  ++e.counters.barrier_arrivals;
  if (e.checks) {
    if (clock[barrier_component(index)] < b.phase) report_timing(b, line);
    join(b.arrived, clock);
  }
  b.time_arrived = std::max(b.time_arrived, time);
  if (--b.pending < 0) {
    b.pending = 0;
    report(HazardKind::barrier, line, 0, "@b%u gets more arrivals than its count of %u in phase %u",
           b.address, b.arrivals, b.phase);
    e.failed = true;
    return;
  }
  complete_phase_if_due(b);
}

// ---- named barriers ----

void named_barrier(u32 id, u32 threads, bool wait, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  if (id >= kNamedBarriers) fatal(HazardKind::barrier, line, "named barrier %u, ids end at 15", id);
  if (threads == 0 || threads % 32 != 0 || threads > e.threads) {
    fatal(HazardKind::barrier, line, "@n%u with %u threads, possible are multiples of 32 up to the CTA's %u",
          id, threads, e.threads);
  }
  NamedBarrierState& b = e.named[id];
  ++e.counters.barrier_arrivals;
  if (b.arrived == 0) {
    b.threads = threads;
    b.line = (u32)line;
    std::fill(b.joined, b.joined + e.components, 0u);
  } else if (b.threads != threads) {
    fatal(HazardKind::barrier, line, "@n%u is used with %u threads here and with %u at line %u", id, threads,
          b.threads, b.line);
  }
  if (e.checks) {
    if (f.clock[named_component(id)] < b.generation) {
      report(HazardKind::barrier, line, 0,
             "arrival at @n%u is not ordered after the completion of its generation %u: which generation it "
             "counts in "
             "depends on timing",
             id, b.generation - 1);
    }
    join(b.joined, f.clock);
    tick(f);
  }
  if (++b.per_warp[f.thread / 32] > 32) {
    fatal(HazardKind::barrier, line, "warp %u arrives twice at @n%u in one generation", f.thread / 32, id);
  }
  b.time = std::max(b.time, now());
  const u64 begin = f.time;
  if (++b.arrived < b.threads) {
    if (!wait) return;
    b.waiters.push_back(f.thread);
    block(id == 0 ? "cta_sync" : "bar_sync", id, 0, line);
    if (e.tracing) record(EventKind::wait_named, begin, f.time, id, line, f.thread);
    return;
  }
  for (u32 w = 0; w < e.threads / 32; ++w) {
    if (b.per_warp[w] != 0 && b.per_warp[w] != 32) {
      report(HazardKind::divergence, line, 0, "only %u lanes of warp %u take part in @n%u", b.per_warp[w], w,
             id);
    }
  }
  b.arrived = 0;
  ++b.generation;
  b.per_warp.fill(0);
  b.joined[named_component(id)] = b.generation;
  const u64 time = b.time + kBarrierCycles;
  b.time = 0;
  auto release = [&](Fiber& other) {
    other.time = std::max(other.time, time);
    if (!e.checks) return;
    const u32 own = other.clock[other.thread];
    memcpy(other.clock, b.joined, (size_t)e.components * sizeof(u32));
    other.clock[other.thread] = own;
  };
  for (const u32 waiter : b.waiters) release(e.fibers[waiter]);
  if (wait) release(f);
  wake_all(b.waiters);
}

void cta_barrier(int line) { named_barrier(0, engine->threads, true, line); }

}  // namespace mla::emulator
