// Tensor memory: allocation, fences, and what has to be in order when the CTA ends.
#include <algorithm>

#include "engine.hpp"

namespace mla::emulator {

void reset_tensor_memory() {
  TensorMemory& t = engine->tensor;
  const bool was_used = t.used;
  t.used = t.relinquished = false;
  t.pipes.clear();
  t.allocations.clear();
  t.waiters.clear();
  if (!was_used) return;
  t.cells.clear();
  t.words.clear();
  t.accesses.clear();
}

// The first tcgen05 instruction of a CTA brings the memory into being.
static void use_tensor_memory() {
  Engine& e = *engine;
  TensorMemory& t = e.tensor;
  if (t.used) return;
  t.used = true;
  t.smallest_allocation = kTmemColumns;
  t.words.assign(kTmemLanes * kTmemColumns, kPoison);
  t.cells.assign(kSlabs * kTmemColumns, TmemCell{});
  t.accesses.assign(1, TmemAccess{});  // index 0 means none
  t.clock_store.assign((size_t)e.threads * e.components, 0);
  if (t.product == nullptr) t.product = std::make_unique<float[]>(kMaxProduct);
}

// ---- allocation ----

static bool is_free(u32 column, u32 columns) {
  for (const TmemAllocation& a : engine->tensor.allocations) {
    if (column < a.column + a.columns && a.column < column + columns) return false;
  }
  return true;
}

// Any free place that is a multiple of the size: nobody says where, so the seed does.
static u32 find_columns(u32 columns) {
  std::array<u32, kTmemColumns / 32> places;
  u32 count = 0;
  for (u32 column = 0; column < kTmemColumns; column += columns) {
    if (is_free(column, columns)) places[count++] = column;
  }
  return count == 0 ? kNever : places[engine->random.below(count)];
}

// Whether all lanes of the warp gave the same value.
static bool agree(const Warp& w) {
  for (u32 lane = 1; lane < 32; ++lane) {
    if (w.out[lane] != w.out[0]) return false;
  }
  return true;
}

static void finish_allocation(Warp& w, u32, int line) {
  Engine& e = *engine;
  TensorMemory& t = e.tensor;
  use_tensor_memory();
  const u32 columns = *static_cast<const u32*>(w.payload[0]), destination = w.out[0];
  if (!agree(w)) fatal(HazardKind::tmem, line, "the lanes of a warp give tcgen05.alloc different addresses");
  if (columns < 32 || columns > kTmemColumns || (columns & (columns - 1)) != 0) {
    fatal(HazardKind::tmem, line, "tcgen05.alloc of %u columns, possible are powers of two from 32 to 512",
          columns);
  }
  if (t.relinquished)
    fatal(HazardKind::tmem, line, "tcgen05.alloc after tcgen05.relinquish_alloc_permit of the same CTA");
  if (columns > t.smallest_allocation) {
    fatal(HazardKind::tmem, line, "tcgen05.alloc of %u columns after one of %u: allocations must not grow",
          columns, t.smallest_allocation);
  }
  check_bounds(destination, 4, 4, line, "tcgen05.alloc");
  u32 column;
  while ((column = find_columns(columns)) == kNever) {
    t.waiters.push_back(current().thread);
    block("tcgen05.alloc", columns, 0, line);
  }
  t.smallest_allocation = columns;
  note_write(destination, 4, line);
  memcpy(e.smem + destination, &column, 4);
  t.allocations.push_back({column, columns, current().thread, clock_of(current()), line});
}

void tmem_allocate(u32 destination, u32 columns, int line) {
  collect(destination, &columns, "tcgen05.alloc", line, finish_allocation);
}

void tmem_relinquish(int line) {
  collect(0, nullptr, "tcgen05.relinquish_alloc_permit", line, nullptr);
  engine->tensor.relinquished = true;
}

static void finish_free(Warp& w, u32, int line) {
  TensorMemory& t = engine->tensor;
  const u32 columns = *static_cast<const u32*>(w.payload[0]), address = w.out[0];
  if (!agree(w))
    fatal(HazardKind::tmem, line, "the lanes of a warp give tcgen05.dealloc different addresses");
  const auto found = std::find_if(t.allocations.begin(), t.allocations.end(), [&](const TmemAllocation& a) {
    return a.column == address && a.columns == columns;
  });
  if (found == t.allocations.end()) {
    fatal(HazardKind::tmem, line, "tcgen05.dealloc of %u columns from address %u: no allocation is like that",
          columns, address);
  }
  check_allocated(found->column, columns, line, "tcgen05.dealloc");
  if (engine->checks) check_tmem_unused({0xFF, found->column, columns}, line, "tcgen05.dealloc");
  for (u32 slab = 0; slab < kSlabs; ++slab) {
    for (u32 column = address; column < address + columns; ++column) t.cell(slab, column) = TmemCell{};
  }
  for (u32 lane = 0; lane < kTmemLanes; ++lane) {
    for (u32 column = address; column < address + columns; ++column) t.word(lane, column) = kPoison;
  }
  t.allocations.erase(found);
  wake_all(t.waiters);
}

void tmem_free(u32 address, u32 columns, int line) {
  collect(address, &columns, "tcgen05.dealloc", line, finish_free);
}

// Whether one allocation has all of the columns, and the running thread knows of it.
void check_allocated(u32 column, u32 columns, int line, const char* what) {
  const Engine& e = *engine;
  for (const TmemAllocation& a : e.tensor.allocations) {
    if (column < a.column || column + columns > a.column + a.columns) continue;
    if (e.checks && current().thread != a.thread && current().clock[a.thread] < a.clock) {
      report(HazardKind::race, line, a.line, "%s is not ordered after the tcgen05.alloc by @t%u at line %d",
             what, a.thread, a.line);
    }
    return;
  }
  fatal(HazardKind::tmem, line,
        "%s of tensor-memory columns %u to %u, which are not in one allocation of this CTA", what, column,
        column + columns - 1);
}

// ---- fences ----

void tmem_fence_before() {
  Fiber& f = current();
  tick(f);
  f.tensor.before_fences.push_back(clock_of(f));
}

void tmem_fence_after() {
  Engine& e = *engine;
  Fiber& f = current();
  use_tensor_memory();
  f.tensor.clock = e.tensor.clock_store.data() + (size_t)f.thread * e.components;
  memcpy(f.tensor.clock, f.clock, (size_t)e.components * sizeof(u32));
}

// ---- the end of the CTA ----

void check_tensor_memory_at_exit() {
  Engine& e = *engine;
  for (u32 p = 0; p < e.tensor.pipes.size(); ++p) {
    const TensorPipe& pipe = e.tensor.pipes[p];
    u32 known = 0;
    for (const Fiber& f : e.fibers) known = std::max(known, f.clock[pipe_component(p)]);
    if (known >= pipe.issued) continue;
    u32 line = 0;
    for (const Operation& op : e.operations) {
      if (op.kind == OperationKind::tensor_mma && op.warpgroup == p && op.group == known + 1) line = op.line;
    }
    report(HazardKind::at_exit, (int)line, 0,
           "the CTA ends while nobody has waited for a tcgen05.mma of @t%u, by a commit behind it",
           pipe.thread);
  }
  for (const TmemAllocation& a : e.tensor.allocations) {
    report(HazardKind::tmem, a.line, 0,
           "the CTA ends without a tcgen05.dealloc of %u columns of tensor memory", a.columns);
  }
}

}  // namespace mla::emulator
