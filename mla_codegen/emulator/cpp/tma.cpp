// The copy engine: bulk tensor copies of 1 to 5 dimensions, all swizzles. A copy is issued by a thread and
// completes when the scheduler says so; until then its destination holds poison.
#include <algorithm>

#include "engine.hpp"

namespace mla::emulator {

constexpr u64 kMapMagic = 0x70616D2D616C6D31ull;
constexpr u64 kCopyLatencyCycles = 700, kCopyBytesPerCycle = 32;

// Host form of the 128-byte tensor map, written by Python.
struct HostMap {
  u64 magic, base;
  u64 dims[5];
  u64 strides[4];  // bytes, of dimensions 1 to 4
  u16 box[5];
  u8 element_bytes, rank, swizzle_bytes;
};
static_assert(sizeof(HostMap) <= 128);

static HostMap read_map(const void* map, int line) {
  HostMap m;
  memcpy(&m, map, sizeof m);
  if (m.magic != kMapMagic) fatal(HazardKind::internal, line, "the tensor map is not an encoded one");
  return m;
}

static u32 box_bytes(const HostMap& m) {
  u32 bytes = m.element_bytes;
  for (int d = 0; d < m.rank; ++d) bytes *= m.box[d];
  return bytes;
}

static u32 swizzled(u32 address, u32 swizzle_bytes) {
  return swizzle_bytes == 0 ? address : address ^ ((address >> 3) & (swizzle_bytes - 16));
}

static void check_copy(const HostMap& m, u32 smem, int rank, int line, const char* what) {
  if (m.rank != rank)
    fatal(HazardKind::internal, line, "a %d-d copy with a tensor map of rank %d", rank, m.rank);
  const u32 inner = m.box[0] * m.element_bytes;
  if (m.swizzle_bytes != 0 && inner != m.swizzle_bytes) {
    fatal(HazardKind::alignment, line,
          "%s: box rows of %u bytes with a %d-byte swizzle, only equal ones are modelled", what, inner,
          m.swizzle_bytes);
  }
  check_bounds(smem, box_bytes(m), m.swizzle_bytes == 0 ? 128 : 8u * m.swizzle_bytes, line, what);
}

void tma_prefetch(const void* map, int line) { read_map(map, line); }

void tma_load(u32 destination, const void* map, u32 barrier, const i32* at, int rank, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  const HostMap m = read_map(map, line);
  check_copy(m, destination, rank, line, "bulk tensor load");
  const u32 bytes = box_bytes(m);
  PendingCopy copy{};
  copy.kind = OperationKind::tma_load;
  copy.operation = (u32)e.operations.size();
  copy.smem = destination;
  copy.bytes = bytes;
  copy.barrier = barrier_for_copy(barrier, bytes, line);
  std::copy(at, at + 5, copy.at);
  memcpy(copy.map.data(), map, 128);
  e.operations.push_back({OperationKind::tma_load, false, 0, (u32)line, f.thread, copy.barrier, 0, kNever});
  note_copy_write(destination, bytes, copy.operation, line);
  for (u32 a = destination; a < destination + bytes; a += 4) memcpy(e.smem + a, &kPoison, 4);
  ++e.counters.tma_copies;
  e.counters.tma_bytes += bytes;
  if (e.tracing) {
    e.copy_time = std::max(e.copy_time, now()) + bytes / kCopyBytesPerCycle;
    copy.ready_time = e.copy_time + kCopyLatencyCycles;
    record(EventKind::tma, f.time, copy.ready_time, bytes, line, kNever);
  }
  e.copies.push_back(copy);
  complete_early();
}

void tma_store(const void* map, u32 source, const i32* at, int rank, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  const HostMap m = read_map(map, line);
  check_copy(m, source, rank, line, "bulk tensor store");
  PendingCopy copy{};
  copy.operation = (u32)e.operations.size();
  copy.kind = OperationKind::tma_store;
  copy.smem = source;
  copy.bytes = box_bytes(m);
  std::copy(at, at + 5, copy.at);
  memcpy(copy.map.data(), map, 128);
  e.operations.push_back({OperationKind::tma_store, false, 0, (u32)line, f.thread, kNever, 0, kNever});
  note_copy_read(source, copy.bytes, copy.operation, line);
  f.bulk_open.push_back(copy.operation);
  ++e.counters.tma_copies;
  e.counters.tma_bytes += copy.bytes;
  e.copies.push_back(copy);
  complete_early();
}

void tma_store_commit() {
  Fiber& f = current();
  f.bulk_groups.push_back(std::move(f.bulk_open));
  f.bulk_open.clear();
}

void tma_store_wait(u32 pending, bool, int) {
  Engine& e = *engine;
  Fiber& f = current();
  while (f.bulk_groups.size() > pending) {
    for (const u32 index : f.bulk_groups.front()) {
      while (!e.operations[index].done && complete_one_operation()) {
      }
      e.operations[index].group = clock_of(f);
    }
    f.bulk_groups.erase(f.bulk_groups.begin());
  }
}

// ---- completion ----

// Whether [address, address + bytes) lies in one of the arrays.
static bool in_arrays(u64 address, u64 bytes) {
  const Engine& e = *engine;
  for (u32 i = 0; i < e.num_ranges; ++i) {
    const GlobalRange& r = e.ranges[i];
    if (address >= r.address && address + bytes <= r.address + r.bytes) return true;
  }
  return false;
}

static void move_row(const HostMap& m, bool is_store, u32 smem, u64 global, u32 first, u32 count) {
  Engine& e = *engine;
  const u32 inner = m.box[0] * m.element_bytes;
  const u32 begin = first * m.element_bytes, end = (first + count) * m.element_bytes;
  for (u32 unit = 0; unit < inner; unit += 16) {
    u8* shared = e.smem + swizzled(smem + unit, m.swizzle_bytes);
    const u32 low = std::max(unit, begin), high = std::min(unit + 16, end);
    if (!is_store && (low > unit || high < unit + 16)) memset(shared, 0, 16);
    if (low >= high) continue;
    u8* memory = reinterpret_cast<u8*>(static_cast<std::uintptr_t>(global)) + (low - begin);
    if (is_store) {
      memcpy(memory, shared + (low - unit), high - low);
    } else {
      memcpy(shared + (low - unit), memory, high - low);
    }
  }
}

static void perform(const PendingCopy& copy) {
  Engine& e = *engine;
  HostMap m;
  memcpy(&m, copy.map.data(), sizeof m);
  const bool is_store = copy.kind == OperationKind::tma_store;
  const u32 inner = m.box[0] * m.element_bytes;
  // The elements of a row that lie in the tensor.
  const i64 first = std::clamp<i64>(-(i64)copy.at[0], 0, m.box[0]);
  const i64 last = std::clamp<i64>((i64)m.dims[0] - copy.at[0], first, m.box[0]);
  u32 rows = 1;
  for (int d = 1; d < m.rank; ++d) rows *= m.box[d];
  u32 index[5] = {};
  bool outside = false;
  for (u32 row = 0; row < rows; ++row) {
    u64 address = m.base + (u64)((i64)copy.at[0] + first) * m.element_bytes;
    bool inside = first < last;
    for (int d = 1; d < m.rank; ++d) {
      const i64 coordinate = (i64)copy.at[d] + index[d];
      inside &= coordinate >= 0 && (u64)coordinate < m.dims[d];
      address += (u64)coordinate * m.strides[d - 1];
    }
    const u32 count = inside ? (u32)(last - first) : 0;
    if (count != 0 && !in_arrays(address, (u64)count * m.element_bytes)) {
      outside = true;
      move_row(m, false, copy.smem + row * inner, 0, (u32)first, 0);
    } else if (count != 0 || !is_store) {
      move_row(m, is_store, copy.smem + row * inner, address, (u32)first, count);
    }
    for (int d = 1; d < m.rank; ++d) {
      if (++index[d] < m.box[d]) break;
      index[d] = 0;
    }
  }
  if (outside) {
    const Operation& op = e.operations[copy.operation];
    report(HazardKind::bounds, (int)op.line, 0,
           "a %s reaches outside every array: its tensor map is too large", describe(op));
  }
}

void complete_copy(u32 pick) {
  Engine& e = *engine;
  const PendingCopy copy = std::move(e.copies[pick]);
  e.copies.erase(e.copies.begin() + pick);
  Operation& op = e.operations[copy.operation];
  if (copy.kind == OperationKind::word_copies) {
    move_words(copy);
    complete_word_copies_on(copy.barrier, copy.ready_time, op);
    return;
  }
  perform(copy);
  if (copy.kind == OperationKind::tma_store) {
    op.done = true;
  } else {
    complete_copy_on(copy.barrier, copy.bytes, copy.ready_time, op);
  }
}

}  // namespace mla::emulator
