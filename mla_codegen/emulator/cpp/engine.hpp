// State of one CTA under emulation, shared by the parts of the engine.
//
// Order of events is judged by vector clocks. A clock has a component per thread, per mbarrier (phases
// completed), per named barrier (generations completed) and per pipe of tcgen05.mma (products completed). An
// asynchronous operation has no clock of its own: a thread is ordered after it only through the mbarrier
// phase that it completes, or through a wait_group.
#pragma once
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine_api.hpp"
#include "fiber.hpp"
#include "launch.hpp"
#include "tensor_memory.hpp"

namespace mla::emulator {

constexpr u32 kMaxThreads = 1024;
constexpr u32 kMaxMbarriers = 64;
constexpr u32 kNamedBarriers = 16;
constexpr u32 kWarpgroupThreads = 128;
constexpr u32 kMaxWarpgroups = kMaxThreads / kWarpgroupThreads;
constexpr u32 kNever = 0xFFFFFFFFu;
constexpr u32 kMaxHazards = 64;

enum class Policy : u32 { late, early, random };

enum class HazardKind : u8 {
  race,
  uninitialised,
  proxy_fence,
  barrier,
  transaction,
  deadlock,
  registers,
  bounds,
  alignment,
  wgmma,
  tcgen05,
  tcgen05_wait,
  tcgen05_fence,
  tmem,
  divergence,
  at_exit,
  internal
};
const char* name_of(HazardKind kind);

// One kind of fault at one pair of source lines. In the text, `@t5` stands for thread 5, `@b1024` for the
// mbarrier and `@s1024` for the shared-memory word at that address, `@c5` for a column of tensor memory;
// Python puts the names of the plan in their place.
struct Hazard {
  HazardKind kind;
  u32 cta[3];
  u32 thread;
  u32 line;
  u32 other_line;
  u64 count;
  std::string text;
};

struct Counters {
  u64 ctas, switches, tma_copies, tma_bytes, wgmma, tcgen05, macs, mbarrier_waits, barrier_arrivals, hazards;
};

enum class EventKind : u32 {
  wait_mbarrier,
  wait_named,
  wait_wgmma,
  wait_registers,
  wgmma,
  tma,
  arrive,
  wait_warp,
  tensor_mma
};
struct TraceEvent {
  u64 begin, end;
  u32 thread;  // kNever: the tensor core or the copy engine
  EventKind kind;
  u32 argument;  // barrier address, named barrier id, N, bytes
  u32 line;
};

enum class OperationKind : u8 { tma_load, tma_store, word_copies, wgmma, tensor_mma };
struct Operation {
  OperationKind kind;
  bool done;
  u16 warpgroup;  // of a wgmma; of a tcgen05.mma its pipe
  u32 line;
  u32 thread;
  u32 barrier;  // index of the mbarrier that it completes on, kNever for none
  u32 phase;    // phase that its completion counts in, once done
  u32 group;    // wgmma group, number in its pipe, or clock of its thread's wait for it (kNever before)
};

// The last writer of a 4-byte word of shared memory and a list of its ordinary readers since.
enum class Writer : u8 { nobody, thread, operation, mbarrier };
struct Cell {
  u32 stamp;  // clock of the thread, or index of the operation
  i32 readers;
  u16 thread;
  u16 line;
  Writer writer;
};
struct Reader {
  u32 clock;
  u32 lanes;
  i32 next;
  u16 warp;
  u16 line;
};

struct Mbarrier {
  u32 address, arrivals, init_thread, init_clock, init_line;
  i64 pending, tx_bytes;
  u32 phase;                         // completed phases
  u64 expected_bytes, issued_bytes;  // in the current phase
  u64 time_arrived, time_completed;
  u32* arrived;    // join of the clocks of those who arrived in this phase
  u32* completed;  // join over all completed phases
  std::vector<u32> waiters;
};

struct NamedBarrierState {
  u32 threads, arrived, generation;
  u32 line;
  u64 time;
  u32* joined;
  std::vector<u32> waiters;
  std::array<u16, kMaxThreads / 32> per_warp;
};

// An accumulator array in flight: who holds it and up to which group.
struct PendingAccumulator {
  float* registers;
  int count;
  u32 shadow;
  u32 last_group;
  int line;
  MmaType type;  // of the latest product into them
  u32 fences;    // of the thread when that product was issued
};

struct WordCopy {
  u32 smem, bytes, source_bytes;
  const void* source;
};

enum class ThreadState : u8 { ready, blocked, finished };
struct Fiber : ThreadView {
  FiberContext context;
  ThreadState state;
  const char* waits_for;
  u32 wait_argument, wait_phase;
  int wait_line;
  u32* clock;
  u64 time;
  std::vector<u32> async_fences, init_fences;  // clocks, ascending
  std::vector<PendingAccumulator> accumulators;
  std::vector<u32> group_end;  // operations issued when each group was committed
  u32 mma_issued, groups, groups_waited;
  bool mma_fenced;
  u32 mma_fences;
  std::vector<u32> bulk_open;  // store operations not yet committed
  std::vector<std::vector<u32>> bulk_groups;
  u32 word_operation;  // the word copies since the last arrive; 0 for none
  std::vector<WordCopy> open_words;
  u32 registers;
  TensorThread tensor;
};

struct Shadow {
  int users, n;
  alignas(64) float d[64 * 256];
};

struct OperandWriters {
  std::vector<u32> operations;
  struct ByThread {
    u32 thread, clock, address;
    u16 line;
  };
  std::vector<ByThread> threads;
  u32 uninitialised = kNever, mbarrier = kNever;
  std::vector<u32> operation_address;
};

struct PendingMma {
  u32 sequence, operation, shadow;
  u32 arrived;
  MmaShape shape;
  u64 a, b;
  u32 accumulate;
  u32 warps_seen;
  OperandWriters b_writers;
  alignas(16) u8 a_bytes[64][32];
};

struct Warpgroup {
  std::vector<std::unique_ptr<PendingMma>> queue;
  std::vector<std::unique_ptr<PendingMma>> spare;
  u32 executed;
  std::vector<std::unique_ptr<std::array<u32, kWarpgroupThreads>>> group_waits;
  std::vector<u64> group_time;
  std::vector<std::unique_ptr<Shadow>> shadows;
  std::vector<u32> free_shadows;
  std::vector<u32> waiters;
  std::vector<u32> last_read;  // per 16-byte unit: last operation that read it, 0 if none
  u32 register_warps;
};

struct Warp {
  u32 ready;  // lanes
  bool queued;
  u32 arrived;
  const char* what;
  int line;
  u32 in[32], out[32];
  void* payload[32];
};

struct PendingCopy {
  OperationKind kind;
  u32 operation;
  u32 smem, barrier, bytes;
  i32 at[5];
  u64 ready_time;
  std::array<u8, 128> map;
  std::vector<WordCopy> words;
};

constexpr int kOperandPitch = 256 + 16;  // floats; not a power of two, so that rows differ in cache set
struct MmaOperands {
  alignas(64) float a[64][32];
  alignas(64) float b[32][kOperandPitch];
  alignas(16) u8 b_bytes[256 * 32];
  int k;
  bool irregular;  // holds NaN, infinity or 2^50 and more: summed in fp32
};

struct Random {
  u64 state;
  u32 next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (u32)(state >> 32);
  }
  u32 below(u32 limit) { return (u32)((u64)next() * limit >> 32); }
};

struct Engine {
  RunConfig config{};
  const GlobalRange* ranges = nullptr;
  u32 num_ranges = 0;
  u32 last_range = 0;
  KernelBody body = nullptr;
  const void* arguments = nullptr;

  u32 cta[3] = {};
  u32 threads = 0, live = 0, components = 0;
  bool failed = false;
  Random random{1};
  Policy policy = Policy::late;
  bool checks = true, tracing = false;

  StackPool stacks;
  FiberContext scheduler{};
  std::vector<Fiber> fibers;
  Fiber* running = nullptr;
  std::vector<u32> clock_store;
  std::vector<Warp> warps;
  std::vector<u32> ready_warps;

  std::vector<u8> smem_store;
  u8* smem = nullptr;  // indexed by address; the first kSmemBase bytes are out of bounds
  u32 smem_end = 0;
  std::vector<Cell> cells;
  std::vector<Reader> readers;
  i32 free_readers = -1;
  std::vector<Operation> operations;

  std::vector<Mbarrier> mbarriers;
  std::vector<u16> mbarrier_at;  // by address / 8; 0xFFFF for none
  std::array<NamedBarrierState, kNamedBarriers> named{};
  std::vector<Warpgroup> warpgroups;
  std::vector<PendingCopy> copies;
  i64 register_pool = 0;
  std::vector<u32> register_waiters;
  u64 tensor_time = 0, copy_time = 0;
  MmaOperands operands;
  TensorMemory tensor;

  std::vector<Hazard> hazards;
  Counters counters{};
  std::vector<TraceEvent> trace;
};

extern thread_local Engine* engine MLA_EMULATOR_TLS;

// ---- reporting and scheduling (scheduler.cpp) ----
[[gnu::format(printf, 4, 5)]] void report(HazardKind kind, int line, int other_line, const char* format, ...);
[[noreturn, gnu::format(printf, 3, 4)]] void fatal(HazardKind kind, int line, const char* format, ...);
void block(const char* waits_for, u32 argument, u32 phase, int line);
void wake(u32 thread);
void wake_all(std::vector<u32>& threads);
void run_cta(Engine& e, u32 x, u32 y, u32 z);
void record(EventKind kind, u64 begin, u64 end, u32 argument, int line, u32 thread);
inline Fiber& current() { return *engine->running; }
inline u64 now() {
  Fiber& f = current();
  f.time += f.cost;
  f.cost = 0;
  return f.time;
}

// ---- clocks ----
inline u32 barrier_component(u32 index) { return engine->threads + index; }
inline u32 named_component(u32 id) { return engine->threads + kMaxMbarriers + id; }
inline u32 pipe_component(u32 index) { return engine->threads + kMaxMbarriers + kNamedBarriers + index; }
inline void join(u32* __restrict into, const u32* __restrict from) {
  const u32 n = engine->components;
  for (u32 i = 0; i < n; ++i) into[i] = into[i] > from[i] ? into[i] : from[i];
}
inline u32 clock_of(const Fiber& f) { return f.clock[f.thread]; }
inline void tick(Fiber& f) { ++f.clock[f.thread]; }

// ---- shadow memory (shadow.cpp) ----
bool operation_before(const Operation& op, const u32* clock);
const char* describe(const Operation& op);
void check_bounds(u32 address, u32 bytes, u32 alignment, int line, const char* what);
void note_read(u32 address, u32 bytes, int line);
void note_write(u32 address, u32 bytes, int line);
void note_copy_write(u32 address, u32 bytes, u32 operation, int line);
void note_copy_read(u32 address, u32 bytes, u32 operation, int line);
void gather_unit(u32 address, OperandWriters& writers);
void check_operand(const OperandWriters& writers, const u32* clock, u32 thread, int line,
                   const char* operand);
void mark_read(u32 address, u32 warpgroup, u32 operation);
bool saw_fence(const std::vector<u32>& fences, u32 write_clock, u32 seen);

// ---- what is in flight (scheduler.cpp) ----
bool in_flight();
bool complete_one_operation();
inline void complete_early() {
  if (engine->policy != Policy::early) return;
  while (complete_one_operation()) {
  }
}

// ---- copy engine (tma.cpp), and what it needs of its barrier (barriers.cpp) ----
void complete_copy(u32 pick);
u32 barrier_for_copy(u32 address, u32 bytes, int line);
void complete_copy_on(u32 index, u32 bytes, u64 time, Operation& op);
u32 barrier_for_word_copies(u32 address, int line);
void complete_word_copies_on(u32 index, u64 time, Operation& op);
void move_words(const PendingCopy& copy);
const GlobalRange& find_range(const void* pointer, u32 bytes, int line, const char* what);

// ---- warps (warps.cpp): the last lane to arrive runs `finish` while the others still wait ----
using Finish = void (*)(Warp& warp, u32 warp_index, int line);
void collect(u32 value, void* payload, const char* what, int line, Finish finish);

// ---- tensor memory ----
// Allocation (tmem.cpp).
void check_allocated(u32 column, u32 columns, int line, const char* what);
void check_tensor_memory_at_exit();
void reset_tensor_memory();
// Order of accesses (tmem_shadow.cpp).
void check_tmem_transfer(const TmemRegion& region, bool store, u32 warp, int line, const char* what);
void check_tmem_product(const TmemRegion& region, bool reads, bool writes, u32 operation, int line,
                        const char* what);
void check_tmem_unused(const TmemRegion& region, int line, const char* what);
void note_tmem_load(const TmemRegion& region, u32 access);
void note_tmem_store(const TmemRegion& region, u32 access);
void note_tmem_product(const TmemRegion& region, u32 operation);
void note_tmem_operand(const TmemRegion& region, u32 operation);
// Products (tcgen05.cpp), and their arrival at a barrier (barriers.cpp).
u32 busy_pipes();
void run_pipe(u32 busy);
u32 barrier_for_commit(u32 address, int line);
void complete_commit_on(u32 index, const u32* clock, u64 time, int line);

// ---- arithmetic (mma_arithmetic.cpp) ----
// Hopper keeps 13 bits of e4m3 sums, Blackwell 25 and fp32.
enum class TensorCore : u8 { hopper, blackwell };
// Decodes rows of 32 bytes; element j of row i goes to out[i * row_pitch + j * element_pitch].
// True when an e4m3 code is NaN.
bool decode_rows(const u8* bytes, int rows, MmaType type, float* out, int row_pitch, int element_pitch);
// d[64][n] += a * b.
void multiply(float* d, int n, const MmaOperands& operands, MmaType type, TensorCore core, bool exact);

}  // namespace mla::emulator
