// Who wrote and who read each word of shared memory, and whether the next access is ordered after them.
#include "engine.hpp"

namespace mla::emulator {

const char* describe(const Operation& op) {
  switch (op.kind) {
    case OperationKind::tma_load:
      return "bulk tensor load";
    case OperationKind::tma_store:
      return "bulk tensor store";
    case OperationKind::word_copies:
      return "cp.async";
    case OperationKind::wgmma:
      return "wgmma";
    case OperationKind::tensor_mma:
      return "tcgen05.mma";
  }
  return "?";
}

// A copy is complete for whoever saw the phase it counts in; a wgmma for whoever is ordered after a
// wait_group of any thread of its warpgroup (a wgmma-group belongs to the warpgroup); a tcgen05.mma for
// whoever saw the phase that a later commit of its thread arrived in.
bool operation_before(const Operation& op, const u32* clock) {
  const Engine& e = *engine;
  if (op.kind == OperationKind::tensor_mma) return clock[pipe_component(op.warpgroup)] >= op.group;
  if (op.kind != OperationKind::wgmma) {
    if (op.done && op.barrier != kNever && clock[barrier_component(op.barrier)] >= op.phase) return true;
    return op.group != kNever && clock[op.thread] >= op.group;
  }
  const Warpgroup& g = e.warpgroups[op.warpgroup];
  if (op.group >= g.group_waits.size() || !g.group_waits[op.group]) return false;
  const auto& waits = *g.group_waits[op.group];
  const u32* base = clock + op.warpgroup * kWarpgroupThreads;
  for (u32 i = 0; i < kWarpgroupThreads; ++i) {
    if (base[i] >= waits[i]) return true;
  }
  return false;
}

bool saw_fence(const std::vector<u32>& fences, u32 write_clock, u32 seen) {
  // The first fence after the write decides; fences are ascending, so any fence in (write, seen] will do.
  for (size_t i = fences.size(); i-- > 0;) {
    if (fences[i] <= write_clock) return false;
    if (fences[i] <= seen) return true;
  }
  return false;
}

void check_bounds(u32 address, u32 bytes, u32 alignment, int line, const char* what) {
  const Engine& e = *engine;
  if (address < kSmemBase || address + bytes > e.smem_end || address + bytes < address) {
    fatal(HazardKind::bounds, line, "%s of %u bytes at shared-memory offset %d, the CTA has %u bytes", what,
          bytes, (int)(address - kSmemBase), e.config.smem_bytes);
  }
  if (address % alignment != 0) {
    fatal(HazardKind::alignment, line, "%s at @s%u, its address is no multiple of %u", what, address,
          alignment);
  }
}

// ---- one word against its last writer and its readers ----

using PassedReaders = std::array<u32, kMaxWarpgroups + kTensorPipes>;

static void check_after_write(const Cell& c, u32 address, const u32* clock, u32 thread, bool reads, int line,
                              const char* what, u32& passed) {
  if (c.writer == Writer::thread) {
    if (c.thread != thread && clock[c.thread] < c.stamp) {
      report(HazardKind::race, line, c.line, "%s of @s%u is not ordered after the write by @t%u at line %u",
             what, address, c.thread, c.line);
    }
  } else if (c.writer == Writer::operation) {
    if (c.stamp == passed) return;
    const Operation& op = engine->operations[c.stamp];
    if (!operation_before(op, clock)) {
      report(HazardKind::race, line, (int)op.line,
             "%s of @s%u is not ordered after the %s at line %u that writes it (%s)", what, address,
             describe(op), op.line,
             op.done ? "complete, but its barrier phase was not waited for" : "still in flight");
    }
    passed = c.stamp;
  } else if (c.writer == Writer::mbarrier) {
    report(HazardKind::barrier, line, c.line, "%s of @s%u, which is an mbarrier", what, address);
  } else if (reads) {
    report(HazardKind::uninitialised, line, 0, "%s of @s%u, which nobody has written", what, address);
  }
}

static void check_after_reads(const Cell& c, u32 address, const u32* clock, u32 thread, int line,
                              const char* what) {
  const Engine& e = *engine;
  for (i32 i = c.readers; i >= 0; i = e.readers[i].next) {
    const Reader& r = e.readers[i];
    for (u32 lanes = r.lanes; lanes != 0; lanes &= lanes - 1) {
      const u32 reader = r.warp * 32u + (u32)__builtin_ctz(lanes);
      if (reader == thread || clock[reader] >= r.clock) continue;
      report(HazardKind::race, line, r.line, "%s of @s%u is not ordered after the read by @t%u at line %u",
             what, address, reader, r.line);
      break;
    }
  }
}

static void check_after_operation(u32 index, u32 address, const u32* clock, int line, const char* what,
                                  u32& passed) {
  if (index == 0 || index == passed) return;
  const Operation& op = engine->operations[index];
  if (!operation_before(op, clock)) {
    report(HazardKind::race, line, (int)op.line,
           "%s of @s%u while the %s at line %u may still read it: its %s is not ordered before", what,
           address, describe(op), op.line, op.kind == OperationKind::tensor_mma ? "commit" : "wait_group");
  }
  passed = index;
}

// The last operation of each warpgroup and of each pipe that reads these 16 bytes.
static void check_after_operations(u32 address, const u32* clock, int line, const char* what,
                                   PassedReaders& passed) {
  const Engine& e = *engine;
  for (u32 g = 0; g < e.warpgroups.size(); ++g)
    check_after_operation(e.warpgroups[g].last_read[address / 16], address, clock, line, what, passed[g]);
  for (u32 p = 0; p < e.tensor.pipes.size(); ++p)
    check_after_operation(e.tensor.pipes[p].last_read[address / 16], address, clock, line, what,
                          passed[kMaxWarpgroups + p]);
}

static void forget_readers(Cell& c) {
  Engine& e = *engine;
  for (i32 i = c.readers; i >= 0;) {
    const i32 next = e.readers[i].next;
    e.readers[i].next = e.free_readers;
    e.free_readers = i;
    i = next;
  }
  c.readers = -1;
}

static void add_reader(Cell& c, const Fiber& f, int line) {
  Engine& e = *engine;
  const u16 warp = (u16)(f.thread / 32);
  const u32 lane = 1u << (f.thread % 32), clock = f.clock[f.thread];
  i32* link = &c.readers;
  while (*link >= 0) {
    Reader& r = e.readers[*link];
    if (r.warp == warp) {
      if (r.clock == clock) {
        r.lanes |= lane;
        r.line = (u16)line;
        return;
      }
      r.lanes &= ~lane;  // this thread's later read stands for its earlier one
    }
    bool drop = r.lanes == 0;
    if (!drop && r.warp != warp) {
      drop = true;  // a reader ordered before this one is covered by it
      for (u32 lanes = r.lanes; lanes != 0 && drop; lanes &= lanes - 1) {
        drop = f.clock[r.warp * 32u + (u32)__builtin_ctz(lanes)] >= r.clock;
      }
    }
    if (drop) {
      const i32 index = *link;
      *link = r.next;
      r.next = e.free_readers;
      e.free_readers = index;
    } else {
      link = &r.next;
    }
  }
  i32 index = e.free_readers;
  if (index >= 0) {
    e.free_readers = e.readers[index].next;
  } else {
    index = (i32)e.readers.size();
    e.readers.push_back({});
  }
  e.readers[index] = {clock, lane, c.readers, warp, (u16)line};
  c.readers = index;
}

// ---- ordinary accesses of the running thread ----

void note_read(u32 address, u32 bytes, int line) {
  Engine& e = *engine;
  if (!e.checks) return;
  const Fiber& f = current();
  u32 passed = 0;
  for (u32 a = address & ~3u; a < address + bytes; a += 4) {
    Cell& c = e.cells[a / 4];
    check_after_write(c, a, f.clock, f.thread, true, line, "read", passed);
    add_reader(c, f, line);
  }
}

void note_write(u32 address, u32 bytes, int line) {
  Engine& e = *engine;
  if (!e.checks) return;
  const Fiber& f = current();
  u32 passed = 0;
  PassedReaders passed_reads{};
  for (u32 a = address & ~3u; a < address + bytes; a += 4) {
    Cell& c = e.cells[a / 4];
    check_after_write(c, a, f.clock, f.thread, false, line, "write", passed);
    check_after_reads(c, a, f.clock, f.thread, line, "write");
    check_after_operations(a, f.clock, line, "write", passed_reads);
    forget_readers(c);
    c.stamp = f.clock[f.thread];
    c.thread = (u16)f.thread;
    c.line = (u16)line;
    c.writer = Writer::thread;
  }
}

// ---- asynchronous copies, on behalf of the running thread ----

void note_copy_write(u32 address, u32 bytes, u32 operation, int line) {
  Engine& e = *engine;
  if (!e.checks) return;
  const Fiber& f = current();
  const char* what = describe(e.operations[operation]);
  u32 passed = 0;
  PassedReaders passed_reads{};
  for (u32 a = address; a < address + bytes; a += 4) {
    Cell& c = e.cells[a / 4];
    if (c.writer != Writer::nobody) check_after_write(c, a, f.clock, f.thread, false, line, what, passed);
    if (c.readers >= 0) {
      check_after_reads(c, a, f.clock, f.thread, line, what);
      forget_readers(c);
    }
    if (a % 16 == 0 || bytes < 16) check_after_operations(a, f.clock, line, what, passed_reads);
    c.stamp = operation;
    c.line = (u16)line;
    c.writer = Writer::operation;
  }
}

void note_copy_read(u32 address, u32 bytes, u32 operation, int line) {
  Engine& e = *engine;
  if (!e.checks) return;
  const Fiber& f = current();
  OperandWriters writers;
  for (u32 a = address; a < address + bytes; a += 16) gather_unit(a, writers);
  check_operand(writers, f.clock, f.thread, line, "bulk tensor store");
  for (u32 a = address; a < address + bytes; a += 16) mark_read(a, f.thread / kWarpgroupThreads, operation);
}

// ---- operands of asynchronous operations, 16 bytes at a time ----

void gather_unit(u32 address, OperandWriters& w) {
  const Engine& e = *engine;
  for (u32 a = address; a < address + 16; a += 4) {
    const Cell& c = e.cells[a / 4];
    if (c.writer == Writer::operation) {
      if (!w.operations.empty() && w.operations.back() == c.stamp) continue;
      bool known = false;
      for (const u32 op : w.operations) known |= op == c.stamp;
      if (known) continue;
      w.operations.push_back(c.stamp);
      w.operation_address.push_back(a);
    } else if (c.writer == Writer::thread) {
      if (!w.threads.empty() && w.threads.back().thread == c.thread && w.threads.back().clock >= c.stamp)
        continue;
      bool known = false;
      for (auto& t : w.threads) {
        if (t.thread != c.thread) continue;
        known = true;
        if (c.stamp > t.clock) t = {c.thread, c.stamp, a, c.line};
      }
      if (!known) w.threads.push_back({c.thread, c.stamp, a, c.line});
    } else if (c.writer == Writer::mbarrier) {
      w.mbarrier = a;
    } else {
      w.uninitialised = a;
    }
  }
}

void check_operand(const OperandWriters& w, const u32* clock, u32 thread, int line, const char* operand) {
  const Engine& e = *engine;
  if (w.uninitialised != kNever) {
    report(HazardKind::uninitialised, line, 0, "%s reads @s%u, which nobody has written", operand,
           w.uninitialised);
  }
  if (w.mbarrier != kNever) {
    report(HazardKind::barrier, line, 0, "%s reads @s%u, which is an mbarrier", operand, w.mbarrier);
  }
  for (size_t i = 0; i < w.operations.size(); ++i) {
    const Operation& op = e.operations[w.operations[i]];
    if (operation_before(op, clock)) continue;
    report(HazardKind::race, line, (int)op.line,
           "%s reads @s%u, not ordered after the %s at line %u that writes it (%s)", operand,
           w.operation_address[i], describe(op), op.line,
           op.done ? "complete, but its barrier phase was not waited for" : "still in flight");
  }
  for (const auto& t : w.threads) {
    if (t.thread != thread && clock[t.thread] < t.clock) {
      report(HazardKind::race, line, t.line, "%s reads @s%u, not ordered after the write by @t%u at line %u",
             operand, t.address, t.thread, t.line);
    } else if (!saw_fence(e.fibers[t.thread].async_fences, t.clock, clock[t.thread])) {
      report(HazardKind::proxy_fence, line, t.line,
             "%s reads @s%u, written by @t%u at line %u with no fence.proxy.async by that thread before the "
             "barrier",
             operand, t.address, t.thread, t.line);
    }
  }
}

void mark_read(u32 address, u32 warpgroup, u32 operation) {
  engine->warpgroups[warpgroup].last_read[address / 16] = operation;
}

}  // namespace mla::emulator
