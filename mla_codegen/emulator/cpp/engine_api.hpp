// What the inlined primitives of a kernel call in the engine. The engine is compiled once per machine; a
// kernel sees only this header, which includes as little as possible so that a kernel compiles quickly.
#pragma once
#include <cstdint>

namespace mla {
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;
using u64 = unsigned long long;
using i64 = long long;
}  // namespace mla

namespace mla::emulator {

// The running CUDA thread, as far as inlined code reads it.
struct ThreadView {
  u32 thread;  // thread index in the CTA
  u32 cta[3];
  u32 cost;  // cycles of inlined instructions, for the trace
};

#if defined(__linux__) && defined(__GNUC__)
#define MLA_EMULATOR_TLS __attribute__((tls_model("initial-exec")))
#else
#define MLA_EMULATOR_TLS
#endif
extern thread_local ThreadView* self MLA_EMULATOR_TLS;

// Shared memory starts at this address, so that a forgotten smem_base() is an access out of bounds.
constexpr u32 kSmemBase = 1024;

// What a register holds between the issue of an asynchronous result and the wait for it: a signalling NaN
// with a payload that arithmetic carries on.
constexpr u32 kPoison = 0x7FBADBADu;
constexpr u32 kPoisonMask = 0x7FBFFFFFu;  // without sign and quiet bit
inline u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
inline float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
inline bool is_poison(u32 bits) { return (bits & kPoisonMask) == kPoison; }
inline bool is_poison(float value) { return is_poison(bits_of(value)); }
void poison_used(const char* what, int line);

enum class MmaType : u8 { e4m3, bf16, f16 };

// One wgmma instruction shape.
struct MmaShape {
  MmaType type;
  bool a_in_registers;
  bool b_mn_major;
  int n;
};

// One tcgen05.mma; `a` is a matrix descriptor or, from tensor memory, an address.
enum class MmaKind : u8 { f16, f8f6f4 };
struct TensorMma {
  MmaKind kind;
  bool a_in_tmem;
  u32 d;
  u64 a, b;
  u32 instruction, accumulate;
};

// Lanes of tensor memory that one load or store of a warp reaches.
enum class TmemShape : u8 { lanes_32, lanes_16 };

// Barriers (barriers.cpp).
void mbarrier_init(u32 barrier, u32 arrivals, int line);
void mbarrier_arrive(u32 barrier, u32 arrivals, u32 tx_bytes, int line);
void mbarrier_wait(u32 barrier, u32 phase, int line);
void fence_mbarrier_init();
void fence_proxy_async();
void named_barrier(u32 id, u32 threads, bool wait, int line);
void cta_barrier(int line);

// Warp collectives (warps.cpp).
void warp_barrier(int line);
u32 exchange(u32 value, u32 source_lane, const char* what, int line);
u32 uniform(u32 value, int line);
u32 vote(u32 predicate, int line);
bool elected(int line);
void set_registers(bool increase, u32 registers, int line);
void load_matrices(u32* r, int count, bool transposed, u32 row_address, int line);
void store_matrices(const u32* r, int count, bool transposed, u32 row_address, int line);

// Memory (memory.cpp).
void smem_read(u32 address, void* value, u32 bytes, int line);
void smem_write(u32 address, const void* value, u32 bytes, int line);
void global_read(const void* address, void* value, u32 bytes, int line);
void global_write(void* address, const void* value, u32 bytes, int line);
u32 global_add(u32* address, u32 value, int line);

// Copy engine (tma.cpp).
void tma_prefetch(const void* map, int line);
void tma_load(u32 destination, const void* map, u32 barrier, const i32* coordinates, int rank, int line);
void tma_store(const void* map, u32 source, const i32* coordinates, int rank, int line);
void tma_store_commit();
void tma_store_wait(u32 pending, bool reads_only, int line);

// Copies of single words by the threads themselves (word_copies.cpp).
void word_copy(u32 destination, const void* source, u32 bytes, u32 source_bytes, int line);
void word_copies_arrive(u32 barrier, int line);
void word_copies_wait(int line);

// Warpgroup matrix products (wgmma.cpp).
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(u32 pending, int line);
void wgmma_release(float* d, int count, int line);
void wgmma_issue(float* d, const MmaShape& shape, const u32* a_registers, u64 a, u64 b, u32 accumulate,
                 int line);

// Tensor memory: allocation, loads, stores, order (tmem.cpp, tmem_access.cpp).
void tmem_allocate(u32 destination, u32 columns, int line);
void tmem_relinquish(int line);
void tmem_free(u32 address, u32 columns, int line);
void tmem_load(float* r, int count, TmemShape shape, u32 address, int line);
void tmem_store(u32 address, const void* r, int count, int line);
void tmem_wait_loads(int line);
void tmem_wait_stores(int line);
void tmem_release(float* r, int count, int line);
void tmem_fence_before();
void tmem_fence_after();

// Products into tensor memory (tcgen05.cpp).
void tensor_mma(const TensorMma& mma, int line);
void tensor_commit(u32 barrier, int line);

}  // namespace mla::emulator
