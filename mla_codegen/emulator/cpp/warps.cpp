// What the lanes of a warp do together: exchange, vote, ldmatrix and stmatrix, setmaxnreg.
#include "engine.hpp"

namespace mla::emulator {

// ---- collectives of a warp ----

void collect(u32 value, void* payload, const char* what, int line, Finish finish) {
  Engine& e = *engine;
  Fiber& f = current();
  const u32 index = f.thread / 32, lane = f.thread % 32;
  Warp& w = e.warps[index];
  if (w.arrived == 0) {
    w.what = what;
    w.line = line;
  } else if (w.line != line || strcmp(w.what, what) != 0) {
    fatal(HazardKind::divergence, line, "the lanes of warp %u diverge: %s here, %s at line %d", index, what,
          w.what, w.line);
  }
  w.in[lane] = value;
  w.payload[lane] = payload;
  if (++w.arrived < 32) {
    block(what, index, 0, line);
    return;
  }
  w.arrived = 0;
  memcpy(w.out, w.in, sizeof w.out);
  if (finish != nullptr) finish(w, index, line);
  for (u32 other = 0; other < 32; ++other) {
    if (other != lane) wake(index * 32 + other);
  }
}

u32 exchange(u32 value, u32 source_lane, const char* what, int line) {
  const u32 index = current().thread / 32;
  collect(value, nullptr, what, line, nullptr);
  return engine->warps[index].out[source_lane & 31];
}

u32 uniform(u32 value, int line) {
  const u32 first = exchange(value, 0, "warp_uniform", line);
  if (first != value)
    report(HazardKind::divergence, line, 0, "warp_uniform of %u in lane 0 and %u here", first, value);
  return first;
}

u32 vote(u32 predicate, int line) {
  const u32 index = current().thread / 32;
  collect(predicate, nullptr, "vote", line, nullptr);
  u32 mask = 0;
  for (u32 lane = 0; lane < 32; ++lane) mask |= (engine->warps[index].out[lane] != 0 ? 1u : 0u) << lane;
  return mask;
}

// The hardware elects always the same lane but does not say which.
bool elected(int line) {
  Engine& e = *engine;
  const u32 thread = current().thread;
  collect(0, nullptr, "elect.sync", line, nullptr);
  const u32 leader =
      e.policy == Policy::random ? (e.config.seed * 2654435761u + thread / 32 * 40503u) >> 27 : 0;
  return thread % 32 == leader;
}

void warp_barrier(int line) {
  collect(0, nullptr, "warp_sync", line, [](Warp&, u32 index, int) {
    Engine& e = *engine;
    if (!e.checks) return;
    u32* first = e.fibers[index * 32].clock;
    for (u32 lane = 1; lane < 32; ++lane) join(first, e.fibers[index * 32 + lane].clock);
    for (u32 lane = 1; lane < 32; ++lane)
      memcpy(e.fibers[index * 32 + lane].clock, first, (size_t)e.components * sizeof(u32));
    for (u32 lane = 0; lane < 32; ++lane) tick(e.fibers[index * 32 + lane]);
  });
}

// ---- ldmatrix, stmatrix: lane l names row l % 8 of matrix l / 8; a fragment holds elements 2 * (l % 4) and
// the next of row l / 4 (transposed: of column l / 4) ----

static u16 matrix_element(const Warp& w, u32 matrix, u32 row, u32 column) {
  u16 value;
  memcpy(&value, engine->smem + w.out[matrix * 8 + row] + column * 2, 2);
  return value;
}

template <bool kTransposed>
static void finish_load(Warp& w, u32, int) {
  for (u32 lane = 0; lane < 32; ++lane) {
    u32* r = static_cast<u32*>(w.payload[lane]);
    for (u32 matrix = 0; matrix < 4; ++matrix) {
      const u32 major = lane / 4, minor = lane % 4 * 2;
      const u32 low =
          kTransposed ? matrix_element(w, matrix, minor, major) : matrix_element(w, matrix, major, minor);
      const u32 high = kTransposed ? matrix_element(w, matrix, minor + 1, major)
                                   : matrix_element(w, matrix, major, minor + 1);
      r[matrix] = low | high << 16;
    }
  }
}

template <bool kTransposed>
static void finish_store(Warp& w, u32, int) {
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32* r = static_cast<const u32*>(w.payload[lane]);
    for (u32 matrix = 0; matrix < 4; ++matrix) {
      for (u32 half = 0; half < 2; ++half) {
        const u16 value = (u16)(r[matrix] >> (16 * half));
        const u32 major = lane / 4, minor = lane % 4 * 2 + half;
        const u32 row = kTransposed ? minor : major, column = kTransposed ? major : minor;
        memcpy(engine->smem + w.out[matrix * 8 + row] + column * 2, &value, 2);
      }
    }
  }
}

void load_matrices(u32* r, int count, bool transposed, u32 row_address, int line) {
  if (count != 4) fatal(HazardKind::internal, line, "ldmatrix.x%d, only x4 is modelled", count);
  check_bounds(row_address, 16, 16, line, "ldmatrix");
  note_read(row_address, 16, line);
  collect(row_address, r, "ldmatrix", line, transposed ? finish_load<true> : finish_load<false>);
}

void store_matrices(const u32* r, int count, bool transposed, u32 row_address, int line) {
  if (count != 4) fatal(HazardKind::internal, line, "stmatrix.x%d, only x4 is modelled", count);
  check_bounds(row_address, 16, 16, line, "stmatrix");
  note_write(row_address, 16, line);
  collect(row_address, const_cast<u32*>(r), "stmatrix", line,
          transposed ? finish_store<true> : finish_store<false>);
}

// ---- registers ----

void set_registers(bool increase, u32 registers, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  collect(registers, nullptr, increase ? "setmaxnreg.inc" : "setmaxnreg.dec", line, nullptr);
  if (increase ? registers < f.registers : registers > f.registers) {
    fatal(HazardKind::registers, line, "setmaxnreg.%s to %u from %u registers", increase ? "inc" : "dec",
          registers, f.registers);
  }
  const u64 begin = now();
  const u32 warp = f.thread / 32;
  // Whichever lane runs first acts for the warp.
  while (f.registers != registers) {
    const i64 more = 32 * ((i64)registers - (i64)f.registers);
    if (e.register_pool >= more) {
      e.register_pool -= more;
      for (u32 lane = 0; lane < 32; ++lane) e.fibers[warp * 32 + lane].registers = registers;
      wake_all(e.register_waiters);
    } else {
      e.register_waiters.push_back(f.thread);
      block("setmaxnreg.inc", registers, 0, line);
    }
  }
  if (e.tracing) record(EventKind::wait_registers, begin, f.time, registers, line, f.thread);
}

}  // namespace mla::emulator
