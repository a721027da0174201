// Loads and stores of tensor memory by a warp, and the waits that complete them. The registers of a load hold
// poison until a wait names them; the cells of a store hold poison until its wait.
#include "engine.hpp"

namespace mla::emulator {

struct TmemTransfer {
  float* loaded;
  const u32* stored;
  int count;
  TmemShape shape;
};

// Which element register `i` of a lane is: a row of the lanes that the address names, and a column from it
// on.
static void element_of(TmemShape shape, u32 lane, u32 i, u32& row, u32& column) {
  if (shape == TmemShape::lanes_32) {
    row = lane;
    column = i;
  } else {
    row = lane / 4 + i % 4 / 2 * 8;
    column = i / 4 * 8 + lane % 4 * 2 + i % 2;
  }
}

static u32& element(u32 address, TmemShape shape, u32 lane, u32 i) {
  u32 row, column;
  element_of(shape, lane, i, row, column);
  return engine->tensor.word(tmem_lane(address) + row, tmem_column(address) + column);
}

static TmemRegion region_of(u32 address, const TmemTransfer& t) {
  const u32 slabs = t.shape == TmemShape::lanes_32 ? 3 : 1;
  const u32 columns = t.shape == TmemShape::lanes_32 ? (u32)t.count : (u32)t.count * 2;
  return {slabs << tmem_lane(address) / kSlabLanes, tmem_column(address), columns};
}

static TmemRegion check_place(const Warp& w, u32 warp, const TmemTransfer& t, int line, const char* what) {
  for (u32 lane = 1; lane < 32; ++lane) {
    if (w.out[lane] != w.out[0]) {
      fatal(HazardKind::tmem, line, "the lanes of warp %u give %s different addresses: %u and %u", warp, what,
            w.out[0], w.out[lane]);
    }
  }
  const u32 address = w.out[0], lane = tmem_lane(address), first = warp % 4 * 32;
  const bool in_reach = lane == first || (t.shape == TmemShape::lanes_16 && lane == first + kSlabLanes);
  if (!in_reach) {
    fatal(HazardKind::tmem, line, "%s of warp %u from lane %u on, the warp reaches lanes %u to %u", what,
          warp, lane, first, first + 31);
  }
  const TmemRegion region = region_of(address, t);
  check_allocated(region.column, region.columns, line, what);
  return region;
}

static u32 record_access(u32 warp, bool store, int line) {
  Engine& e = *engine;
  TmemAccess access{store, warp, line, {}};
  for (u32 lane = 0; lane < 32; ++lane) access.clock[lane] = clock_of(e.fibers[warp * 32 + lane]);
  e.tensor.accesses.push_back(access);
  return (u32)e.tensor.accesses.size() - 1;
}

// Whether an access takes place when it is issued, and not when its thread waits.
static bool takes_place_now() {
  Engine& e = *engine;
  return e.policy == Policy::early || (e.policy == Policy::random && e.random.below(2) == 0);
}

// ---- loads ----

static void read_elements(TmemLoad& load, u32 lane) {
  load.values.resize((size_t)load.count);
  for (u32 i = 0; i < (u32)load.count; ++i) load.values[i] = element(load.address, load.shape, lane, i);
}

static void finish_tmem_load(Warp& w, u32 warp, int line) {
  Engine& e = *engine;
  const TmemTransfer& first = *static_cast<const TmemTransfer*>(w.payload[0]);
  const TmemRegion region = check_place(w, warp, first, line, "tcgen05.ld");
  if (e.checks) {
    check_tmem_transfer(region, false, warp, line, "tcgen05.ld");
    note_tmem_load(region, record_access(warp, false, line));
  }
  const bool now = takes_place_now();
  for (u32 lane = 0; lane < 32; ++lane) {
    const TmemTransfer& t = *static_cast<const TmemTransfer*>(w.payload[lane]);
    std::vector<TmemLoad>& loads = e.fibers[warp * 32 + lane].tensor.loads;
    loads.push_back({t.loaded, w.out[0], t.count, line, t.shape, false, {}});
    if (now) read_elements(loads.back(), lane);
    for (int i = 0; i < t.count; ++i) t.loaded[i] = float_of(kPoison);
  }
}

void tmem_load(float* r, int count, TmemShape shape, u32 address, int line) {
  TmemTransfer transfer{r, nullptr, count, shape};
  collect(address, &transfer, "tcgen05.ld", line, finish_tmem_load);
}

void tmem_wait_loads(int line) {
  collect(0, nullptr, "tcgen05.wait::ld", line, nullptr);
  Fiber& f = current();
  for (TmemLoad& load : f.tensor.loads) {
    if (load.values.empty()) read_elements(load, f.thread % 32);
    load.complete = true;
  }
  tick(f);
  f.tensor.load_waits.push_back(clock_of(f));
}

// Hands the values to registers that a wait names; those it does not name stay poisoned.
void tmem_release(float* r, int count, int line) {
  std::vector<TmemLoad>& loads = current().tensor.loads;
  for (size_t i = 0; i < loads.size();) {
    TmemLoad& load = loads[i];
    if (!load.complete || load.registers < r || load.registers + load.count > r + count) {
      ++i;
      continue;
    }
    bool touched = false;
    for (int j = 0; j < load.count; ++j) touched |= bits_of(load.registers[j]) != kPoison;
    if (touched) {
      report(HazardKind::tcgen05_wait, line, load.line,
             "a register of the tcgen05.ld at line %d was written while it was in flight", load.line);
    }
    memcpy(load.registers, load.values.data(), load.values.size() * sizeof(u32));
    loads.erase(loads.begin() + (std::ptrdiff_t)i);
  }
}

// ---- stores ----

static void finish_tmem_store(Warp& w, u32 warp, int line) {
  Engine& e = *engine;
  const TmemTransfer& first = *static_cast<const TmemTransfer*>(w.payload[0]);
  const TmemRegion region = check_place(w, warp, first, line, "tcgen05.st");
  if (e.checks) {
    check_tmem_transfer(region, true, warp, line, "tcgen05.st");
    note_tmem_store(region, record_access(warp, true, line));
  }
  const bool now = takes_place_now();
  for (u32 lane = 0; lane < 32; ++lane) {
    const TmemTransfer& t = *static_cast<const TmemTransfer*>(w.payload[lane]);
    const u32 row = tmem_lane(w.out[0]) + lane;
    for (u32 i = 0; i < (u32)t.count; ++i)
      e.tensor.word(row, region.column + i) = now ? t.stored[i] : kPoison;
    std::vector<TmemStore>& stores = e.fibers[warp * 32 + lane].tensor.stores;
    stores.push_back({row, region.column, line, {}});
    if (!now) stores.back().values.assign(t.stored, t.stored + t.count);
  }
}

void tmem_store(u32 address, const void* r, int count, int line) {
  TmemTransfer transfer{nullptr, static_cast<const u32*>(r), count, TmemShape::lanes_32};
  for (int i = 0; i < count; ++i) {
    if (!is_poison(transfer.stored[i])) continue;
    poison_used("tcgen05.st", line);
    break;
  }
  collect(address, &transfer, "tcgen05.st", line, finish_tmem_store);
}

void tmem_wait_stores(int line) {
  collect(0, nullptr, "tcgen05.wait::st", line, nullptr);
  Fiber& f = current();
  for (const TmemStore& store : f.tensor.stores) {
    for (u32 i = 0; i < store.values.size(); ++i)
      engine->tensor.word(store.lane, store.column + i) = store.values[i];
  }
  f.tensor.stores.clear();
  tick(f);
  f.tensor.store_waits.push_back(clock_of(f));
}

}  // namespace mla::emulator
