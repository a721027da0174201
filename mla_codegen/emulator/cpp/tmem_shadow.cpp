// Whether an access to tensor memory is ordered after those that it must not overtake.
#include "engine.hpp"

namespace mla::emulator {

// What lies in the cells of an instruction: each access and operation once, with one place where it was met.
struct TmemHistory {
  struct Item {
    u32 index;
    bool operation, wrote;
    u32 slab, column;
  };
  std::vector<Item> items;
  bool unwritten = false;
  u32 unwritten_slab = 0, unwritten_column = 0;

  void add(u32 index, bool operation, bool wrote, u32 slab, u32 column) {
    if (index == 0) return;
    for (size_t i = items.size(); i-- > 0;) {
      if (items[i].index == index && items[i].operation == operation && items[i].wrote == wrote) return;
    }
    items.push_back({index, operation, wrote, slab, column});
  }
};

static TmemHistory gather(const TmemRegion& region, bool with_readers) {
  TensorMemory& t = engine->tensor;
  TmemHistory h;
  for (u32 slab = 0; slab < kSlabs; ++slab) {
    if ((region.slabs >> slab & 1) == 0) continue;
    for (u32 column = region.column; column < region.column + region.columns; ++column) {
      const TmemCell& c = t.cell(slab, column);
      h.add(c.stored, false, true, slab, column);
      h.add(c.product, true, true, slab, column);
      if (c.stored == 0 && c.product == 0 && !h.unwritten) {
        h.unwritten = true;
        h.unwritten_slab = slab;
        h.unwritten_column = column;
      }
      if (!with_readers) continue;
      for (const u32 access : c.loaded) h.add(access, false, false, slab, column);
      for (const u32 operation : c.operand_of) h.add(operation, true, false, slab, column);
    }
  }
  return h;
}

// ---- one earlier access or product ----

// The first clock of an ascending list that is beyond `clock`; kNever for none.
static u32 first_beyond(const std::vector<u32>& clocks, u32 clock) {
  u32 found = kNever;
  for (size_t i = clocks.size(); i-- > 0 && clocks[i] > clock;) found = clocks[i];
  return found;
}

static u32 tensor_clock(const Fiber& f, u32 component) {
  return f.tensor.clock == nullptr ? 0 : f.tensor.clock[component];
}

// Counted from the start of its allocation, as the plan does.
static u32 column_in_allocation(u32 column) {
  for (const TmemAllocation& a : engine->tensor.allocations) {
    if (column >= a.column && column < a.column + a.columns) return column - a.column;
  }
  return column;
}

enum class Missing { nothing, order, wait, before, after };

// What is missing between a load or store by thread `other` at `clock` and the thread of `f`.
static Missing missing_after(const TmemAccess& a, u32 other, u32 clock, const Fiber& f, bool own,
                             bool fences) {
  const TensorThread& t = engine->fibers[other].tensor;
  const u32 wait = first_beyond(a.store ? t.store_waits : t.load_waits, clock);
  if (own) return wait == kNever ? Missing::wait : Missing::nothing;
  const u32 seen = f.clock[other];
  if (seen < clock) return Missing::order;
  if (wait > seen) return Missing::wait;
  if (!fences) return Missing::nothing;
  const u32 before = first_beyond(t.before_fences, wait);
  if (before > seen) return Missing::before;
  return tensor_clock(f, other) < before ? Missing::after : Missing::nothing;
}

static void report_missing(Missing missing, const TmemHistory::Item& at, const char* earlier, u32 thread,
                           u32 earlier_line, int line, const char* what) {
  static const char* const texts[] = {
      "", "is not ordered after", "is ordered after, but no tcgen05.wait makes complete,",
      "lacks a tcgen05.fence::before_thread_sync, between wait and barrier, of",
      "lacks a tcgen05.fence::after_thread_sync, behind its barrier, after"};
  const HazardKind kind = missing == Missing::order  ? HazardKind::race
                          : missing == Missing::wait ? HazardKind::tcgen05_wait
                                                     : HazardKind::tcgen05_fence;
  report(kind, line, (int)earlier_line, "%s at @c%u, lanes %u to %u, %s the %s by @t%u at line %u that %s it",
         what, column_in_allocation(at.column), at.slab * kSlabLanes, at.slab * kSlabLanes + kSlabLanes - 1,
         texts[static_cast<int>(missing)], earlier, thread, earlier_line, at.wrote ? "writes" : "reads");
}

static void check_after_access(const TmemHistory::Item& item, const Fiber& f, bool whole_warp, bool fences,
                               int line, const char* what) {
  const TmemAccess& a = engine->tensor.accesses[item.index];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 other = a.warp * 32 + lane;
    const bool own = other == f.thread || (whole_warp && a.warp == f.thread / 32);
    const Missing missing = missing_after(a, other, a.clock[lane], f, own, fences);
    if (missing == Missing::nothing) continue;
    report_missing(missing, item, a.store ? "tcgen05.st" : "tcgen05.ld", other, (u32)a.line, line, what);
    return;
  }
}

static void check_after_product(const TmemHistory::Item& item, const Fiber& f, bool fences, int line,
                                const char* what) {
  const Operation& op = engine->operations[item.index];
  const u32 component = pipe_component(op.warpgroup);
  if (f.clock[component] < op.group) {
    report_missing(Missing::order, item, "tcgen05.mma", op.thread, op.line, line, what);
  } else if (fences && tensor_clock(f, component) < op.group) {
    report_missing(Missing::after, item, "tcgen05.mma", op.thread, op.line, line, what);
  }
}

// Products of one thread execute in order, but for one that reads as A what another one computes, and for
// accumulators that overlap without being the same. True where the order is given.
static bool ordered_in_pipe(const TmemHistory::Item& item, u32 operation, bool accumulator) {
  const Engine& e = *engine;
  const Operation &earlier = e.operations[item.index], &now = e.operations[operation];
  if (earlier.warpgroup != now.warpgroup) return false;
  if (!item.wrote) return true;
  const auto& accumulators = e.tensor.pipes[now.warpgroup].accumulators;
  return accumulator && accumulators[earlier.group - 1] == accumulators[now.group - 1];
}

static void report_unwritten(const TmemHistory& h, int line, const char* what) {
  report(HazardKind::uninitialised, line, 0, "%s reads @c%u, lanes %u to %u, which nobody has written", what,
         column_in_allocation(h.unwritten_column), h.unwritten_slab * kSlabLanes,
         h.unwritten_slab * kSlabLanes + kSlabLanes - 1);
}

// ---- instructions ----

// A load or store of the warp; each lane has to be ordered.
void check_tmem_transfer(const TmemRegion& region, bool store, u32 warp, int line, const char* what) {
  const Engine& e = *engine;
  const TmemHistory h = gather(region, store);
  if (!store && h.unwritten) report_unwritten(h, line, what);
  for (u32 lane = 0; lane < 32; ++lane) {
    const Fiber& f = e.fibers[warp * 32 + lane];
    for (const TmemHistory::Item& item : h.items) {
      if (item.operation) {
        check_after_product(item, f, true, line, what);
      } else {
        check_after_access(item, f, true, true, line, what);
      }
    }
  }
}

// The accumulator of a product, or its operand A.
void check_tmem_product(const TmemRegion& region, bool reads, bool writes, u32 operation, int line,
                        const char* what) {
  const TmemHistory h = gather(region, writes);
  if (reads && h.unwritten) report_unwritten(h, line, what);
  for (const TmemHistory::Item& item : h.items) {
    if (!item.operation) {
      check_after_access(item, current(), false, true, line, what);
    } else if (!ordered_in_pipe(item, operation, writes)) {
      check_after_product(item, current(), true, line, what);
    }
  }
}

// Nothing is in flight here as far as the running thread knows; an allocation ends without fences.
void check_tmem_unused(const TmemRegion& region, int line, const char* what) {
  for (const TmemHistory::Item& item : gather(region, true).items) {
    if (item.operation) {
      check_after_product(item, current(), false, line, what);
    } else {
      check_after_access(item, current(), true, false, line, what);
    }
  }
}

// ---- what later accesses will find ----

template <class Note>
static void for_cells(const TmemRegion& region, Note&& note) {
  for (u32 slab = 0; slab < kSlabs; ++slab) {
    if ((region.slabs >> slab & 1) == 0) continue;
    for (u32 column = region.column; column < region.column + region.columns; ++column)
      note(engine->tensor.cell(slab, column));
  }
}

void note_tmem_load(const TmemRegion& region, u32 access) {
  const u32 place = engine->tensor.accesses[access].warp / 4;
  for_cells(region, [&](TmemCell& c) { c.loaded[place] = access; });
}

void note_tmem_store(const TmemRegion& region, u32 access) {
  for_cells(region, [&](TmemCell& c) {
    c = TmemCell{};
    c.stored = access;
  });
}

void note_tmem_product(const TmemRegion& region, u32 operation) {
  for_cells(region, [&](TmemCell& c) {
    c = TmemCell{};
    c.product = operation;
  });
}

void note_tmem_operand(const TmemRegion& region, u32 operation) {
  const u32 pipe = engine->operations[operation].warpgroup;
  for_cells(region, [&](TmemCell& c) { c.operand_of[pipe] = operation; });
}

}  // namespace mla::emulator
