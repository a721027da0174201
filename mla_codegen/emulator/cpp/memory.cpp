// Ordinary accesses to shared and global memory.
#include "engine.hpp"

namespace mla::emulator {

static void check_poison(const void* value, u32 bytes, int line, const char* what) {
  for (u32 i = 0; i + 4 <= bytes; i += 4) {
    u32 word;
    memcpy(&word, static_cast<const u8*>(value) + i, 4);
    if (is_poison(word)) {
      poison_used(what, line);
      return;
    }
  }
}

void smem_read(u32 address, void* value, u32 bytes, int line) {
  check_bounds(address, bytes, bytes, line, "ld.shared");
  note_read(address, bytes, line);
  memcpy(value, engine->smem + address, bytes);
}

void smem_write(u32 address, const void* value, u32 bytes, int line) {
  check_bounds(address, bytes, bytes, line, "st.shared");
  check_poison(value, bytes, line, "st.shared");
  note_write(address, bytes, line);
  memcpy(engine->smem + address, value, bytes);
}

// The range that holds the access; fatal outside all of them.
const GlobalRange& find_range(const void* pointer, u32 bytes, int line, const char* what) {
  Engine& e = *engine;
  const u64 address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % bytes != 0) {
    fatal(HazardKind::alignment, line, "%s of %u bytes, its address is no multiple of that", what, bytes);
  }
  for (u32 i = 0; i < e.num_ranges; ++i) {
    const GlobalRange& r = e.ranges[(e.last_range + i) % e.num_ranges];
    if (address >= r.address && address + bytes <= r.address + r.bytes) {
      e.last_range = (e.last_range + i) % e.num_ranges;
      return r;
    }
  }
  // Name the nearest array and how far outside it the access lies.
  const GlobalRange* nearest = nullptr;
  u64 distance = ~0ull;
  for (u32 i = 0; i < e.num_ranges; ++i) {
    const GlobalRange& r = e.ranges[i];
    const u64 d = address < r.address ? r.address - address : address + bytes - (r.address + r.bytes);
    if (d < distance) {
      distance = d;
      nearest = &r;
    }
  }
  fatal(HazardKind::bounds, line,
        "%s of %u bytes outside every array, %lld bytes from the start of @g%u, which has %llu", what, bytes,
        nearest != nullptr ? (long long)(address - nearest->address) : 0,
        nearest != nullptr ? nearest->index : 0, nearest != nullptr ? nearest->bytes : 0ull);
}

void global_read(const void* address, void* value, u32 bytes, int line) {
  find_range(address, bytes, line, "global load");
  memcpy(value, address, bytes);
}

void global_write(void* address, const void* value, u32 bytes, int line) {
  const GlobalRange& r = find_range(address, bytes, line, "global store");
  check_poison(value, bytes, line, "global store");
  if (r.writable == 0) fatal(HazardKind::bounds, line, "global store into @g%u, which is an input", r.index);
  if (r.marks != 0) {
    const u64 offset = reinterpret_cast<std::uintptr_t>(address) - r.address;
    u8* marks = reinterpret_cast<u8*>(static_cast<std::uintptr_t>(r.marks));
    bool again = false;
    for (u64 i = offset / 2; i < (offset + bytes + 1) / 2; ++i) {
      again |= marks[i] != 0;
      marks[i] = 1;
    }
    if (again) {
      report(HazardKind::race, line, 0, "global store into @g%u at byte %llu, which was written before",
             r.index, (unsigned long long)offset);
    }
  }
  memcpy(address, value, bytes);
}

static void check_atomic(u32* address, int line, const char* what) {
  const GlobalRange& r = find_range(address, 4, line, what);
  if (r.writable == 0) fatal(HazardKind::bounds, line, "%s of @g%u, which is an input", what, r.index);
}

u32 global_add(u32* address, u32 value, int line) {
  check_atomic(address, line, "atomic add");
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

void global_max(u32* address, u32 value, int line) {
  check_atomic(address, line, "atomic max");
  u32 found = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (found < value && !__atomic_compare_exchange_n(address, &found, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
  }
}

}  // namespace mla::emulator
