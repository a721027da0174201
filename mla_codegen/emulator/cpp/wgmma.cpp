// Asynchronous warpgroup matrix products: issue by 128 threads, operands by descriptor, accumulators in
// flight.
#include <algorithm>

#include "engine.hpp"
#include "matrices.hpp"

namespace mla::emulator {

// ---- matrix descriptors ----

// PTX ISA, wgmma matrix descriptor.
static Matrix decode(u64 descriptor, bool mn_major, int line, const char* operand) {
  static constexpr u32 widths[4] = {16, 128, 64, 32};
  const Matrix m = matrix_of(descriptor, widths[descriptor >> 62], mn_major);
  if (descriptor >> 49 & 7) {
    fatal(HazardKind::wgmma, line,
          "operand %s has a matrix descriptor with base_offset %d, only 0 is modelled", operand,
          (int)(descriptor >> 49 & 7));
  }
  if (m.width > 16 && m.start % (8 * m.width) >= m.width) {
    report(HazardKind::wgmma, line, 0,
           "operand %s starts at @s%u, not in the first row of a %u-byte swizzle atom", operand, m.start,
           m.width);
  }
  return m;
}

// ---- execution, when the last of the 128 threads has issued ----

static void execute(Warpgroup& g, PendingMma& p, int line) {
  Engine& e = *engine;
  MmaOperands& operands = e.operands;
  const bool fp8 = p.shape.type == MmaType::e4m3;
  const u32 n = (u32)p.shape.n, k = fp8 ? 32 : 16;
  operands.k = (int)k;
  if (!p.shape.a_in_registers) {
    for_units(decode(p.a, false, line, "A"), 0, 64, 2, line, "A",
              [&](u32 a, u32 row, u32 unit) { memcpy(p.a_bytes[row] + unit * 16, e.smem + a, 16); });
  }
  operands.irregular = decode_rows(&p.a_bytes[0][0], 64, p.shape.type, &operands.a[0][0], 32, 1);
  const Matrix b = decode(p.b, p.shape.b_mn_major, line, "B");
  u8* b_bytes = operands.b_bytes;
  if (!p.shape.b_mn_major) {
    for_units(b, 0, n, 2, line, "B",
              [&](u32 a, u32 row, u32 unit) { memcpy(b_bytes + row * 32 + unit * 16, e.smem + a, 16); });
    operands.irregular |= decode_rows(b_bytes, (int)n, p.shape.type, &operands.b[0][0], 1, kOperandPitch);
  } else {
    for_units(b, 0, k, n / 8, line, "B", [&](u32 a, u32 row, u32 unit) {
      memcpy(b_bytes + (row * (n / 8) + unit) * 16, e.smem + a, 16);
    });
    for (u32 row = 0; row < k; ++row) {
      // A line of the reduction holds n 16-bit elements; 16 of them make one decoded row of 32 bytes.
      for (u32 part = 0; part < n; part += 8) {
        u8 bytes[32] = {};
        memcpy(bytes, b_bytes + (row * n + part) * 2, 16);
        float values[16];
        operands.irregular |= decode_rows(bytes, 1, p.shape.type, values, 16, 1);
        memcpy(&operands.b[row][part], values, 8 * sizeof(float));
      }
    }
  }
  Shadow& s = *g.shadows[p.shadow];
  if (p.accumulate == 0) std::fill(s.d, s.d + 64 * n, 0.0f);
  multiply(s.d, (int)n, operands, p.shape.type, TensorCore::hopper, e.config.exact_arithmetic != 0);
  ++e.counters.wgmma;
  e.counters.macs += 64ull * n * k;
}

// ---- fragments: thread t of the warpgroup holds rows 16 * (t / 32) + (t % 32) / 4 (+ 8) and, of every 8
// columns, 2 ----

template <class Visit>
static void for_fragment(u32 lane_in_group, int count, Visit&& visit) {
  const u32 row = lane_in_group / 32 * 16 + lane_in_group % 32 / 4, column = lane_in_group % 4 * 2;
  for (int i = 0; i < count; i += 4) {
    visit(i, row, column + (u32)i * 2);
    visit(i + 2, row + 8, column + (u32)i * 2);
  }
}

static u32 take_shadow(Warpgroup& g, int n) {
  if (g.free_shadows.empty()) {
    g.free_shadows.push_back((u32)g.shadows.size());
    g.shadows.push_back(std::make_unique<Shadow>());
  }
  const u32 index = g.free_shadows.back();
  g.free_shadows.pop_back();
  g.shadows[index]->n = n;
  g.shadows[index]->users = kWarpgroupThreads;
  return index;
}

static PendingMma& enqueue(Warpgroup& g, u32 sequence, u32 group_index, u32 group, const MmaShape& shape,
                           u64 a, u64 b, u32 accumulate, int line) {
  Engine& e = *engine;
  if (g.spare.empty()) g.spare.push_back(std::make_unique<PendingMma>());
  std::unique_ptr<PendingMma> p = std::move(g.spare.back());
  g.spare.pop_back();
  p->sequence = sequence;
  p->operation = (u32)e.operations.size();
  p->shadow = kNever;
  p->arrived = p->warps_seen = 0;
  p->shape = shape;
  p->a = a;
  p->b = b;
  p->accumulate = accumulate;
  p->b_writers = {};
  e.operations.push_back(
      {OperationKind::wgmma, false, (u16)group_index, (u32)line, current().thread, 0, 0, group});
  g.queue.push_back(std::move(p));
  return *g.queue.back();
}

// What a warp's first thread checks: the operands that its quarter of the tensor core reads.
static void check_operands(Warpgroup& g, u32 group_index, PendingMma& p, u32 warp, int line) {
  const Fiber& f = current();
  const u32 k = p.shape.type == MmaType::e4m3 ? 32 : 16;
  if (!p.shape.a_in_registers) {
    OperandWriters writers;
    for_units(decode(p.a, false, line, "A"), warp * 16, 16, 2, line, "A", [&](u32 a, u32, u32) {
      gather_unit(a, writers);
      g.last_read[a / 16] = p.operation;
    });
    check_operand(writers, f.clock, f.thread, line, "wgmma operand A");
  }
  if (p.warps_seen == 0) {
    auto visit = [&](u32 a, u32, u32) {
      gather_unit(a, p.b_writers);
      g.last_read[a / 16] = p.operation;
    };
    const Matrix b = decode(p.b, p.shape.b_mn_major, line, "B");
    if (p.shape.b_mn_major) {
      for_units(b, 0, k, (u32)p.shape.n / 8, line, "B", visit);
    } else {
      for_units(b, 0, (u32)p.shape.n, 2, line, "B", visit);
    }
  }
  check_operand(p.b_writers, f.clock, f.thread, line, "wgmma operand B");
  p.warps_seen |= 1u << warp;
  (void)group_index;
}

void wgmma_issue(float* d, const MmaShape& shape, const u32* a_registers, u64 a, u64 b, u32 accumulate,
                 int line) {
  Engine& e = *engine;
  Fiber& f = current();
  const u32 group_index = f.thread / kWarpgroupThreads, member = f.thread % kWarpgroupThreads;
  Warpgroup& g = e.warpgroups[group_index];
  const u32 sequence = f.mma_issued++;
  accumulate = accumulate != 0 ? 1 : 0;
  PendingMma* p = nullptr;
  const u32 oldest = g.queue.empty() ? sequence : g.queue.front()->sequence;
  if (sequence - oldest < g.queue.size()) {
    p = g.queue[sequence - oldest].get();
    if (p->shape.n != shape.n || p->shape.type != shape.type ||
        p->shape.a_in_registers != shape.a_in_registers || p->shape.b_mn_major != shape.b_mn_major ||
        p->a != a || p->b != b || p->accumulate != accumulate) {
      fatal(HazardKind::wgmma, line, "the operands of a wgmma differ inside the warpgroup");
    }
  } else {
    p = &enqueue(g, sequence, group_index, f.groups + 1, shape, a, b, accumulate, line);
  }
  if (e.checks && (p->warps_seen >> member / 32 & 1) == 0)
    check_operands(g, group_index, *p, member / 32, line);
  if (e.checks && e.operations[p->operation].group != f.groups + 1) {
    report(HazardKind::wgmma, line, 0, "the threads of a warpgroup put a wgmma into different groups");
  }

  PendingAccumulator* held = nullptr;
  for (PendingAccumulator& pending : f.accumulators) {
    if (pending.registers == d) held = &pending;
  }
  const int count = shape.n / 2;
  if (held == nullptr) {
    if (p->shadow == kNever) p->shadow = take_shadow(g, shape.n);
    Shadow& s = *g.shadows[p->shadow];
    if (!f.mma_fenced) {
      report(HazardKind::wgmma, line, 0,
             "wgmma uses registers without a wgmma_fence after their last ordinary use");
    }
    if (accumulate != 0) {
      for (int i = 0; i < count; ++i) {
        if (is_poison(d[i])) {
          poison_used("wgmma accumulator", line);
          break;
        }
      }
      for_fragment(member, count,
                   [&](int i, u32 row, u32 column) { memcpy(s.d + row * s.n + column, d + i, 8); });
    }
    for (int i = 0; i < count; ++i) d[i] = float_of(kPoison);
    f.accumulators.push_back({d, count, p->shadow, 0, line, shape.type, f.mma_fences});
    held = &f.accumulators.back();
  } else {
    if (p->shadow == kNever) p->shadow = held->shadow;
    const bool same_shape = (held->type == MmaType::e4m3) == (shape.type == MmaType::e4m3);
    if (!same_shape && held->fences == f.mma_fences) {
      report(HazardKind::wgmma, line, held->line,
             "wgmma accumulates into registers of a product of another shape, at line %d, without a wgmma_fence "
             "between them",
             held->line);
    }
  }
  held->type = shape.type;
  held->fences = f.mma_fences;
  if (p->shadow != held->shadow || held->count != count) {
    fatal(HazardKind::wgmma, line, "the accumulators of a wgmma differ inside the warpgroup");
  }
  held->last_group = f.groups + 1;
  if (shape.a_in_registers) {
    const u32 row = member / 32 * 16 + member % 32 / 4, byte = member % 4 * 4;
    for (u32 i = 0; i < 4; ++i) {
      if (is_poison(a_registers[i])) poison_used("wgmma operand A", line);
      memcpy(p->a_bytes[row + (i & 1) * 8] + byte + i / 2 * 16, a_registers + i, 4);
    }
  }
  if (++p->arrived < kWarpgroupThreads) return;
  execute(g, *p, line);
  if (e.tracing) {
    const u64 begin = std::max(e.tensor_time, now());
    e.tensor_time = begin + (u64)shape.n / 2;
    const u32 group = f.groups + 1;
    if (g.group_time.size() <= group) g.group_time.resize(group + 1, 0);
    g.group_time[group] = e.tensor_time;
    record(EventKind::wgmma, begin, e.tensor_time, (u32)shape.n, line, kNever);
  }
  g.executed = sequence + 1;
  wake_all(g.waiters);
  g.spare.push_back(std::move(g.queue.front()));
  g.queue.erase(g.queue.begin());
}

void wgmma_fence() {
  current().mma_fenced = true;
  ++current().mma_fences;
}

void wgmma_commit() {
  Fiber& f = current();
  ++f.groups;
  f.group_end.push_back(f.mma_issued);
}

void wgmma_wait(u32 pending, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  Warpgroup& g = e.warpgroups[f.thread / kWarpgroupThreads];
  const u32 limit = f.groups > pending ? f.groups - pending : 0;
  const u64 begin = now();
  while (g.executed < f.group_end[limit]) {
    g.waiters.push_back(f.thread);
    block("wgmma.wait_group", limit, 0, line);
  }
  if (g.group_waits.size() <= limit) g.group_waits.resize(limit + 1);
  for (u32 group = f.groups_waited + 1; group <= limit; ++group) {
    if (!g.group_waits[group]) {
      g.group_waits[group] = std::make_unique<std::array<u32, kWarpgroupThreads>>();
      g.group_waits[group]->fill(kNever);
    }
    (*g.group_waits[group])[f.thread % kWarpgroupThreads] = clock_of(f);
  }
  f.groups_waited = std::max(f.groups_waited, limit);
  f.mma_fenced = false;
  if (e.tracing) {
    if (limit < g.group_time.size()) f.time = std::max(f.time, g.group_time[limit] + 40);
    record(EventKind::wait_wgmma, begin, f.time, limit, line, f.thread);
  }
}

// Hands the results to registers that a wait names; those it does not name stay in flight.
void wgmma_release(float* d, int count, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  for (size_t i = 0; i < f.accumulators.size(); ++i) {
    const PendingAccumulator held = f.accumulators[i];
    if (held.registers != d || held.last_group > f.groups_waited) continue;
    Warpgroup& g = e.warpgroups[f.thread / kWarpgroupThreads];
    Shadow& s = *g.shadows[held.shadow];
    bool touched = held.count != count;
    for (int j = 0; j < count; ++j) touched |= bits_of(d[j]) != kPoison;
    if (touched) {
      report(HazardKind::wgmma, line, held.line,
             "an accumulator of the wgmma at line %d was written while it was in flight", held.line);
    }
    for_fragment(f.thread % kWarpgroupThreads, held.count,
                 [&](int j, u32 row, u32 column) { memcpy(d + j, s.d + row * s.n + column, 8); });
    if (--s.users == 0) g.free_shadows.push_back(held.shadow);
    f.accumulators.erase(f.accumulators.begin() + (std::ptrdiff_t)i);
    return;
  }
}

}  // namespace mla::emulator
