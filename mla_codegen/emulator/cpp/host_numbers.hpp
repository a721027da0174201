// Scalar arithmetic and conversions of the device, bit by bit where the device rounds exactly.
#pragma once
#include <cmath>

#include "engine_api.hpp"

namespace mla {

namespace emulator {
// Cycles that one warp spends on an exponential inside a softmax, for the trace.
constexpr u32 kExp2Cycles = 12;

// fp32 to bf16, round to nearest even; a NaN becomes the canonical one.
inline u32 bf16_of(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFu;
  return (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
}

// fp32 to fp16, round to nearest even, infinite beyond 65520.
inline u32 f16_of(float value) {
  const u32 bits = bits_of(value);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FFFu;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;
  if (magnitude < 0x38800000u) {
    const float shifted = float_of(magnitude) + 0.5f;  // one unit of the sum is 2^-24, the smallest fp16
    return sign | (bits_of(shifted) - 0x3F000000u);
  }
  return sign | ((magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1)) >> 13);
}

// fp16 to fp32, exactly.
inline float value_of_f16(u32 bits) {
  const u32 sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  return float_of(sign | bits_of((float)magnitude * 0x1p-24f));
}

// fp32 to e4m3, round to nearest even, saturating at 448; NaN becomes 0x7F.
inline u32 e4m3_of(float value) {
  const u32 bits = bits_of(value);
  const u32 sign = (bits >> 24) & 0x80u;
  const u32 magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7Fu;
  if (magnitude >= 0x43E00000u) return sign | 0x7Eu;  // 448 and above
  if (magnitude < 0x3C800000u) {                      // below 2^-6: multiples of 2^-9
    const float shifted = float_of(magnitude) + 16384.0f;
    return sign | (bits_of(shifted) - 0x46800000u);
  }
  const u32 code = (magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1)) >> 20;
  return sign | (code > 0x7Eu ? 0x7Eu : code);
}
}  // namespace emulator

inline float ex2(float x) {
  emulator::self->cost += emulator::kExp2Cycles;
  // Flush-to-zero: results below the smallest normal number are 0, as is every NaN payload kept.
  return x < -126.0f ? 0.0f : __builtin_exp2f(x);
}
inline float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline void mul_f32x2(float& x0, float& x1, float y0, float y1) {
  x0 *= y0;
  x1 *= y1;
}
inline void fma_f32x2(float& x0, float& x1, float y0, float y1, float z0, float z1) {
  x0 = fma_f32(x0, y0, z0);
  x1 = fma_f32(x1, y1, z1);
}
inline void add_f32x2(float& x0, float& x1, float y0, float y1) {
  x0 += y0;
  x1 += y1;
}
// a + b, rounded down.
inline float add_rm_f32(float a, float b) {
  const double exact = (double)a + (double)b;
  const float near = (float)exact;
  return (double)near > exact ? __builtin_nextafterf(near, -__builtin_inff()) : near;
}
inline float max_f32(float a, float b, int line = __builtin_LINE()) {
  // fmaxf drops a NaN, and with it the mark of a register that is still being written.
  if (emulator::is_poison(a) || emulator::is_poison(b)) emulator::poison_used("max", line);
  return __builtin_fmaxf(a, b);
}
inline float min_f32(float a, float b, int line = __builtin_LINE()) {
  if (emulator::is_poison(a) || emulator::is_poison(b)) emulator::poison_used("min", line);
  return __builtin_fminf(a, b);
}
inline float max_nan_f32(float a, float b, int line = __builtin_LINE()) {
  const float larger = max_f32(a, b, line);
  return a != a || b != b ? std::numeric_limits<float>::quiet_NaN() : larger;
}
inline u32 max_u16x2(u32 a, u32 b) {
  const u32 high = a >> 16 > b >> 16 ? a : b, low = (a & 0xFFFFu) > (b & 0xFFFFu) ? a : b;
  return (high & 0xFFFF0000u) | (low & 0xFFFFu);
}
inline u32 min_u16x2(u32 a, u32 b) {
  const u32 high = a >> 16 < b >> 16 ? a : b, low = (a & 0xFFFFu) < (b & 0xFFFFu) ? a : b;
  return (high & 0xFFFF0000u) | (low & 0xFFFFu);
}
inline u32 mul_hi_u32(u32 x, u32 y) { return (u32)((u64)x * y >> 32); }
inline float rcp_rn(float x) { return 1.0f / x; }
inline float div_rn(float x, float y) { return x / y; }
inline float lg2(float x) {
  // Flush-to-zero: a subnormal number counts as 0 of its sign.
  return __builtin_log2f(__builtin_fabsf(x) < 0x1p-126f ? 0.0f : x);
}
inline float rcp(float x) { return 1.0f / x; }
inline float infinity_f32() { return emulator::float_of(0x7F800000u); }
inline float nan_f32() { return std::numeric_limits<float>::quiet_NaN(); }
inline float float_from_bits(u32 bits) { return emulator::float_of(bits); }
inline u32 bits_from_float(float x) { return emulator::bits_of(x); }

inline u32 cvt_bf16x2(float x0, float x1, int line = __builtin_LINE()) {
  if (emulator::is_poison(x0) || emulator::is_poison(x1)) emulator::poison_used("cvt", line);
  return emulator::bf16_of(x0) | emulator::bf16_of(x1) << 16;
}
inline u32 cvt_f16x2(float x0, float x1, int line = __builtin_LINE()) {
  if (emulator::is_poison(x0) || emulator::is_poison(x1)) emulator::poison_used("cvt", line);
  return emulator::f16_of(x0) | emulator::f16_of(x1) << 16;
}
inline u32 cvt_satfinite_f16x2(float x0, float x1, int line = __builtin_LINE()) {
  if (emulator::is_poison(x0) || emulator::is_poison(x1)) emulator::poison_used("cvt", line);
  const auto finite = [](u32 code) { return (code & 0x7FFFu) == 0x7C00u ? code - 1 : code; };
  return finite(emulator::f16_of(x0)) | finite(emulator::f16_of(x1)) << 16;
}
inline u32 cvt_e4m3x4(float x0, float x1, float x2, float x3, int line = __builtin_LINE()) {
  if (emulator::is_poison(x0) || emulator::is_poison(x1) || emulator::is_poison(x2) ||
      emulator::is_poison(x3)) {
    emulator::poison_used("cvt", line);
  }
  return emulator::e4m3_of(x0) | emulator::e4m3_of(x1) << 8 | emulator::e4m3_of(x2) << 16 |
         emulator::e4m3_of(x3) << 24;
}

inline void unpack_bf16x2(u32 halves, float& low, float& high) {
  low = emulator::float_of(halves << 16);
  high = emulator::float_of(halves & 0xFFFF0000u);
}
inline void unpack_f16x2(u32 halves, float& low, float& high) {
  low = emulator::value_of_f16(halves & 0xFFFFu);
  high = emulator::value_of_f16(halves >> 16);
}
inline void cvt_f32x4_e4m3(float (&x)[4], u32 codes) {
  for (int i = 0; i < 4; ++i) {
    const u32 code = codes >> (8 * i) & 0xFF, exponent = code >> 3 & 0xF, mantissa = code & 7;
    const float magnitude = (code & 0x7F) == 0x7F ? nan_f32()
                            : exponent == 0      ? (float)mantissa * 0x1p-9f
                                                 : __builtin_ldexpf((float)(8 + mantissa), (int)exponent - 10);
    x[i] = code & 0x80 ? -magnitude : magnitude;
  }
}

// Byte permute: nibble i of the selector picks byte i of the result out of {high, low}; its bit 3 spreads the
// sign.
inline u32 prmt(u32 low, u32 high, u32 selector) {
  const u64 bytes = (u64)high << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 pick = selector >> (4 * i) & 0xF;
    u32 byte = (u32)(bytes >> (8 * (pick & 7))) & 0xFF;
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}

}  // namespace mla
