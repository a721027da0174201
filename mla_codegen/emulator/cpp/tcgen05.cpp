// Products into tensor memory: descriptors, issue by one thread, commit, execution in the order of their
// pipe.
#include <algorithm>

#include "engine.hpp"
#include "matrices.hpp"

namespace mla::emulator {

constexpr u32 kRowBytes = 32;       // of an operand, in one instruction
constexpr u32 kOperandColumns = 8;  // of A in tensor memory

// ---- descriptors ----

// PTX ISA, tcgen05: instruction descriptor of kind::f16 and kind::f8f6f4.
static TensorShape decode_instruction(const TensorMma& mma, int line) {
  const u32 bits = mma.instruction, a_type = bits >> 7 & 7, b_type = bits >> 10 & 7;
  const bool fp8 = mma.kind == MmaKind::f8f6f4;
  TensorShape shape{(bits >> 24 & 31) * 16, (bits >> 17 & 63) * 8, MmaType::e4m3, (bits >> 15 & 1) != 0,
                    (bits >> 16 & 1) != 0};
  auto refuse = [&](const char* why) {
    fatal(HazardKind::tcgen05, line, "instruction descriptor 0x%08x of kind::%s: %s", bits,
          fp8 ? "f8f6f4" : "f16", why);
  };
  if ((bits & 0xE080604Fu) != 0) refuse("sparse, saturating, negating, shifting or with a reserved bit set");
  if ((bits >> 4 & 3) != 1) refuse("the accumulator is not fp32");
  if (a_type != b_type) refuse("A and B have different types");
  if (fp8 ? a_type != 0 : a_type > 1)
    refuse(fp8 ? "the types are not e4m3" : "the types are neither f16 nor bf16");
  if (shape.m != 64 && shape.m != 128) refuse("M is neither 64 nor 128");
  const u32 step = shape.m == 64 ? 8 : 16;
  if (shape.n < step || shape.n > 256 || shape.n % step != 0)
    refuse("N is out of range or no multiple of 8 (M = 64) or 16");
  if (mma.a_in_tmem && shape.a_mn_major) refuse("A in tensor memory has its M contiguous");
  if (!fp8) shape.type = a_type == 1 ? MmaType::bf16 : MmaType::f16;
  return shape;
}

// PTX ISA, tcgen05: shared memory descriptor.
static Matrix decode_matrix(u64 descriptor, bool mn_major, int line, const char* operand) {
  static constexpr u32 widths[8] = {16, 0, 128, 0, 64, 0, 32, 0};
  const u32 layout = (u32)(descriptor >> 61);
  if ((descriptor >> 46 & 7) != 1) {
    fatal(HazardKind::tcgen05, line, "operand %s has a matrix descriptor with %u in bits 46 to 48, not 1",
          operand, (u32)(descriptor >> 46 & 7));
  }
  if ((descriptor & 0x1FFE0000C000C000ull) != 0) {
    fatal(HazardKind::tcgen05, line,
          "operand %s has a matrix descriptor with base offset, absolute stride or a reserved bit set, which "
          "is not modelled",
          operand);
  }
  if (widths[layout] == 0) {
    fatal(HazardKind::tcgen05, line,
          "operand %s has a matrix descriptor of layout %u, modelled are 0, 2, 4 and 6", operand, layout);
  }
  const Matrix m = matrix_of(descriptor, widths[layout], mn_major);
  if (m.width > 16 && m.start % (8 * m.width) >= m.width) {
    report(HazardKind::tcgen05, line, 0,
           "operand %s starts at @s%u, not in the first row of a %u-byte swizzle atom", operand, m.start,
           m.width);
  }
  return m;
}

static u32 elements_per_row(MmaType type) { return type == MmaType::e4m3 ? 32 : 16; }

// Visits the 16-byte units of `extent` rows of an operand.
template <class Visit>
static void for_operand(const Matrix& m, u32 first, u32 extent, MmaType type, int line, const char* operand,
                        Visit&& visit) {
  if (!m.mn_major) {
    for_units(m, first, extent, 2, line, operand, visit);
    return;
  }
  const u32 k = elements_per_row(type), per_unit = k / 2;
  for_units(m, 0, k, (first + extent + per_unit - 1) / per_unit, line, operand,
            [&](u32 a, u32 row, u32 unit) {
              if (unit >= first / per_unit) visit(a, row, unit);
            });
}

// Rows of an operand as K-major rows of 32 bytes.
static void fetch(const Matrix& m, u32 first, u32 extent, MmaType type, u8* rows) {
  const u32 bytes = type == MmaType::e4m3 ? 1 : 2, per_unit = 16 / bytes;
  for_operand(m, first, extent, type, 0, "", [&](u32 a, u32 row, u32 unit) {
    const u8* from = engine->smem + a;
    if (!m.mn_major) {
      memcpy(rows + (row - first) * kRowBytes + unit * 16, from, 16);
      return;
    }
    for (u32 i = 0; i < per_unit; ++i) {
      const u32 at = unit * per_unit + i;
      if (at >= first && at < first + extent)
        memcpy(rows + (at - first) * kRowBytes + row * bytes, from + i * bytes, bytes);
    }
  });
}

// ---- places in tensor memory ----

// Lane of a row: M = 128 has a row in every lane; M = 64 has 16 rows in the lower or upper half of each
// warp's lanes.
static u32 lane_of_row(u32 m, u32 address, u32 row) {
  return m == 128 ? row : row / 16 * 32 + row % 16 + tmem_lane(address);
}

static TmemRegion product_region(u32 address, u32 m, u32 columns, int line, const char* what) {
  const u32 lane = tmem_lane(address);
  if (m == 128 ? lane != 0 : lane != 0 && lane != kSlabLanes) {
    fatal(HazardKind::tmem, line, "%s of M = %u starts in lane %u, possible is %s", what, m, lane,
          m == 128 ? "0" : "0 or 16");
  }
  check_allocated(tmem_column(address), columns, line, what);
  return {m == 128 ? 0xFFu : lane == 0 ? 0x55u : 0xAAu, tmem_column(address), columns};
}

// ---- issue ----

static TensorPipe& pipe_of_current(int line) {
  Engine& e = *engine;
  const u32 thread = current().thread;
  for (TensorPipe& pipe : e.tensor.pipes) {
    if (pipe.thread == thread) return pipe;
  }
  for (const TensorPipe& pipe : e.tensor.pipes) {
    if (pipe.thread / 32 != thread / 32) continue;
    report(HazardKind::tcgen05, line, 0,
           "tcgen05.mma by @t%u and by @t%u of the same warp: one thread issues products", pipe.thread,
           thread);
  }
  if (e.tensor.pipes.size() == kTensorPipes) {
    fatal(HazardKind::tcgen05, line, "tcgen05.mma by more than %u threads of a CTA, which is not modelled",
          kTensorPipes);
  }
  TensorPipe pipe{};
  pipe.thread = thread;
  pipe.last_read.assign(e.smem_end / 16, 0);
  e.tensor.pipes.push_back(std::move(pipe));
  return e.tensor.pipes.back();
}

static void check_shared_operand(TensorPipe& pipe, u64 descriptor, bool mn_major, u32 extent, MmaType type,
                                 u32 operation, int line, const char* name, const char* what) {
  const Matrix m = decode_matrix(descriptor, mn_major, line, name);
  OperandWriters writers;
  for_operand(m, 0, extent, type, line, name, [&](u32 a, u32, u32) {
    if (!engine->checks) return;
    gather_unit(a, writers);
    pipe.last_read[a / 16] = operation;
  });
  if (engine->checks) check_operand(writers, current().clock, current().thread, line, what);
}

void tensor_mma(const TensorMma& mma, int line) {
  Engine& e = *engine;
  const TensorShape shape = decode_instruction(mma, line);
  const bool accumulates = mma.accumulate != 0;
  const TmemRegion d = product_region(mma.d, shape.m, shape.n, line, "the accumulator of a tcgen05.mma");
  TensorPipe& pipe = pipe_of_current(line);
  const u32 index = (u32)(&pipe - e.tensor.pipes.data()), operation = (u32)e.operations.size();
  e.operations.push_back(
      {OperationKind::tensor_mma, false, (u16)index, (u32)line, current().thread, kNever, 0, ++pipe.issued});
  pipe.accumulators.push_back({mma.d, shape.m, shape.n});
  if (mma.a_in_tmem) {
    const u32 address = (u32)mma.a;
    const TmemRegion a =
        product_region(address, shape.m, kOperandColumns, line, "operand A of a tcgen05.mma");
    if (tmem_lane(address) != tmem_lane(mma.d)) {
      fatal(HazardKind::tmem, line,
            "operand A of a tcgen05.mma starts in lane %u, its accumulator in lane %u", tmem_lane(address),
            tmem_lane(mma.d));
    }
    if (e.checks) {
      check_tmem_product(a, true, false, operation, line, "operand A of a tcgen05.mma");
      note_tmem_operand(a, operation);
    }
  } else {
    check_shared_operand(pipe, mma.a, shape.a_mn_major, shape.m, shape.type, operation, line, "A",
                         "tcgen05.mma operand A");
  }
  check_shared_operand(pipe, mma.b, shape.b_mn_major, shape.n, shape.type, operation, line, "B",
                       "tcgen05.mma operand B");
  if (e.checks) {
    check_tmem_product(d, accumulates, true, operation, line, "the accumulator of a tcgen05.mma");
    note_tmem_product(d, operation);
  }
  if (e.tracing) {
    const u64 begin = std::max(e.tensor_time, now());
    e.tensor_time = pipe.time = begin + shape.n / 2;
    record(EventKind::tensor_mma, begin, pipe.time, shape.n, line, kNever);
  }
  pipe.queue.push_back({false, line, operation, mma, shape, kNever, {}, pipe.time});
  complete_early();
}

// Arrives once all products of this thread are complete; carries what the thread knows, and what it has done
// to tensor memory, as a fence::before_thread_sync would.
void tensor_commit(u32 barrier, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  const u32 index = barrier_for_commit(barrier, line);
  tmem_fence_before();
  std::vector<u32> clock(f.clock, f.clock + e.components);
  tick(f);
  for (u32 p = 0; p < e.tensor.pipes.size(); ++p) {
    TensorPipe& pipe = e.tensor.pipes[p];
    if (pipe.thread != f.thread) continue;
    clock[pipe_component(p)] = pipe.issued;
    if (e.tracing) record(EventKind::arrive, pipe.time, pipe.time, barrier, line, f.thread);
    pipe.queue.push_back({true, line, 0, {}, {}, index, std::move(clock), pipe.time});
    complete_early();
    return;
  }
  complete_commit_on(index, clock.data(), now(), line);
}

// ---- execution ----

static void execute(const TensorEntry& entry) {
  Engine& e = *engine;
  TensorMemory& t = e.tensor;
  const TensorShape& s = entry.shape;
  MmaOperands& operands = e.operands;
  operands.k = (int)elements_per_row(s.type);
  fetch(decode_matrix(entry.mma.b, s.b_mn_major, entry.line, "B"), 0, s.n, s.type, operands.b_bytes);
  const bool b_irregular =
      decode_rows(operands.b_bytes, (int)s.n, s.type, &operands.b[0][0], 1, kOperandPitch);
  float* d = t.product.get();
  const u32 column = tmem_column(entry.mma.d);
  for (u32 first = 0; first < s.m; first += 64) {
    u8 a_bytes[64 * kRowBytes];
    if (entry.mma.a_in_tmem) {
      const u32 address = (u32)entry.mma.a;
      for (u32 row = 0; row < 64; ++row)
        memcpy(a_bytes + row * kRowBytes,
               &t.word(lane_of_row(s.m, address, first + row), tmem_column(address)), kRowBytes);
    } else {
      fetch(decode_matrix(entry.mma.a, s.a_mn_major, entry.line, "A"), first, 64, s.type, a_bytes);
    }
    operands.irregular = decode_rows(a_bytes, 64, s.type, &operands.a[0][0], 32, 1) || b_irregular;
    for (u32 row = 0; row < 64; ++row) {
      const u32* from = &t.word(lane_of_row(s.m, entry.mma.d, first + row), column);
      if (entry.mma.accumulate != 0) memcpy(d + row * s.n, from, s.n * sizeof(float));
    }
    if (entry.mma.accumulate == 0) std::fill(d, d + 64 * s.n, 0.0f);
    multiply(d, (int)s.n, operands, s.type, TensorCore::blackwell, e.config.exact_arithmetic != 0);
    for (u32 row = 0; row < 64; ++row)
      memcpy(&t.word(lane_of_row(s.m, entry.mma.d, first + row), column), d + row * s.n, s.n * sizeof(float));
  }
  e.operations[entry.operation].done = true;
  ++e.counters.tcgen05;
  e.counters.macs += (u64)s.m * s.n * (u64)operands.k;
}

u32 busy_pipes() {
  u32 busy = 0;
  for (const TensorPipe& pipe : engine->tensor.pipes) busy += pipe.queue.empty() ? 0 : 1;
  return busy;
}

// Executes the oldest entry of the busy pipe of that number; reports name the thread that issued it.
void run_pipe(u32 busy) {
  Engine& e = *engine;
  for (TensorPipe& pipe : e.tensor.pipes) {
    if (pipe.queue.empty() || busy-- != 0) continue;
    const TensorEntry entry = std::move(pipe.queue.front());
    pipe.queue.pop_front();
    Fiber* running = e.running;
    e.running = &e.fibers[pipe.thread];
    if (entry.commit) {
      complete_commit_on(entry.barrier, entry.clock.data(), entry.time, entry.line);
    } else {
      execute(entry);
    }
    e.running = running;
    return;
  }
}

}  // namespace mla::emulator
