// State of tensor memory: 128 lanes of 512 columns of 32 bits, who wrote and read them, and what is in
// flight.
//
// Loads and stores are asynchronous until their thread's wait; products are, until somebody sees the mbarrier
// phase in which a later commit of their thread arrives. Across threads both also need the tcgen05 fences: of
// the clock of a thread, only what it knew at its last fence::after_thread_sync counts for tensor memory.
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "engine_api.hpp"

namespace mla::emulator {

constexpr u32 kTmemLanes = 128, kTmemColumns = 512;
constexpr u32 kSlabLanes = 16;  // what every instruction reaches whole
constexpr u32 kSlabs = kTmemLanes / kSlabLanes;
constexpr u32 kTensorPipes = 4;  // threads that issue products
constexpr u32 kWarpsPerQuadrant = 8;
constexpr u32 kMaxProduct = 128 * 256;

// Some columns of the slabs whose bits are set.
struct TmemRegion {
  u32 slabs, column, columns;
};

// A load or store of a warp, with the clocks of its lanes.
struct TmemAccess {
  bool store;
  u32 warp;
  int line;
  std::array<u32, 32> clock;
};

// 16 lanes of a column. Indices are 0 for none; at most one of the writers is there.
struct TmemCell {
  u32 stored;                                 // access
  u32 product;                                // operation
  std::array<u32, kWarpsPerQuadrant> loaded;  // last load of each warp that reaches these lanes
  std::array<u32, kTensorPipes> operand_of;   // last product of each pipe that reads them as A
};

struct TmemAllocation {
  u32 column, columns, thread, clock;
  int line;
};

// A load whose registers no wait has named yet.
struct TmemLoad {
  float* registers;
  u32 address;
  int count, line;
  TmemShape shape;
  bool complete;
  std::vector<u32> values;
};
struct TmemStore {
  u32 lane, column;
  int line;
  std::vector<u32> values;
};

// What a thread has done with tensor memory; clocks are its own, ascending.
struct TensorThread {
  std::vector<u32> load_waits, store_waits, before_fences;
  std::vector<TmemLoad> loads;
  std::vector<TmemStore> stores;
  u32* clock;  // what it knew at its last fence::after_thread_sync, null before the first
};

struct TensorShape {
  u32 m, n;
  MmaType type;
  bool a_mn_major, b_mn_major;
};

// A product, or a commit of those before it in the pipe.
struct TensorEntry {
  bool commit;
  int line;
  u32 operation;
  TensorMma mma;
  TensorShape shape;
  u32 barrier;
  std::vector<u32> clock;
  u64 time;  // when it is done, for the trace
};

// The products of one thread: they execute in the order of their issue.
struct TensorPipe {
  u32 thread, issued;
  std::deque<TensorEntry> queue;
  std::vector<std::array<u32, 3>> accumulators;  // address, M, N of each product
  std::vector<u32> last_read;                    // per 16 bytes of shared memory, as in Warpgroup
  u64 time;
};

struct TensorMemory {
  bool used, relinquished;
  u32 smallest_allocation;
  std::vector<u32> words;       // by lane, then column
  std::vector<TmemCell> cells;  // by slab, then column
  std::vector<TmemAccess> accesses;
  std::vector<TmemAllocation> allocations;
  std::vector<TensorPipe> pipes;
  std::vector<u32> waiters;  // threads in an alloc that lacks columns
  std::vector<u32> clock_store;
  std::unique_ptr<float[]> product;  // D of the product that executes, row by row
  u32& word(u32 lane, u32 column) { return words[lane * kTmemColumns + column]; }
  TmemCell& cell(u32 slab, u32 column) { return cells[slab * kTmemColumns + column]; }
};

inline u32 tmem_lane(u32 address) { return address >> 16; }
inline u32 tmem_column(u32 address) { return address & 0xFFFF; }

}  // namespace mla::emulator
