// What the tensor core computes.
//
// bf16 and fp16: products and sums in fp32, one after another; the hardware differs in the last bits only.
//
// e4m3: the hardware adds the 32 products of one instruction and the accumulator in fixed point. All terms
// are aligned to the largest exponent among them (of a product: the sum of its factors' exponents), cut off
// below kFractionBits bits after the point, and added exactly; the sum is cut to the same number of bits.
// That is why long rows drift.
#include <algorithm>
#include <array>

#include "engine.hpp"

namespace mla::emulator {

typedef float Floats __attribute__((vector_size(32)));
typedef i32 Ints __attribute__((vector_size(32)));
typedef signed char Bytes __attribute__((vector_size(32)));
typedef signed char Bytes8 __attribute__((vector_size(8)));
constexpr int kLanes = 8;
constexpr int kFractionBits = 13;
constexpr int kLowestExponent = -60;  // stands for the exponent of 0

template <class Vector, class Scalar>
static inline Vector load(const Scalar* from) {
  Vector v;
  memcpy(&v, from, sizeof v);
  return v;
}

// ---- decoding ----

static float e4m3_value(u32 code) {
  const float sign = code & 0x80 ? -1.0f : 1.0f;
  const u32 exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return __builtin_nanf("");
  if (exponent == 0) return sign * (float)mantissa * 0x1p-9f;
  return sign * float_of((exponent + 120) << 23 | mantissa << 20);
}

static const std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> table{};
  for (u32 code = 0; code < 256; ++code) table[code] = e4m3_value(code);
  return table;
}();

static float f16_value(u16 half) {
  const u32 sign = (u32)(half & 0x8000) << 16, magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) return float_of(sign | 0x7F800000u | (magnitude & 0x3FF) << 13);
  if (magnitude < 0x400) return (sign != 0 ? -1.0f : 1.0f) * (float)magnitude * 0x1p-24f;
  return float_of(sign | ((magnitude << 13) + 0x38000000u));
}

bool decode_rows(const u8* bytes, int rows, MmaType type, float* out, int row_pitch, int element_pitch) {
  bool has_nan = false;
  for (int row = 0; row < rows; ++row) {
    const u8* from = bytes + row * 32;
    float* to = out + row * row_pitch;
    if (type == MmaType::e4m3) {
      for (int j = 0; j < 32; ++j) {
        has_nan |= (from[j] & 0x7F) == 0x7F;
        to[j * element_pitch] = kE4m3[from[j]];
      }
      continue;
    }
    for (int j = 0; j < 16; ++j) {
      u16 half;
      memcpy(&half, from + 2 * j, 2);
      to[j * element_pitch] = type == MmaType::bf16 ? float_of((u32)half << 16) : f16_value(half);
    }
  }
  return has_nan;
}

// ---- sums in fp32 ----

static void multiply_plain(float* d, int n, const MmaOperands& o) {
  for (int column = 0; column < n; column += kLanes) {
    for (int row = 0; row < 64; row += 8) {
      Floats sum[8];
      for (int i = 0; i < 8; ++i) sum[i] = load<Floats>(d + (row + i) * n + column);
      for (int k = 0; k < o.k; ++k) {
        const Floats b = load<Floats>(&o.b[k][column]);
        for (int i = 0; i < 8; ++i) sum[i] += o.a[row + i][k] * b;
      }
      for (int i = 0; i < 8; ++i) memcpy(d + (row + i) * n + column, &sum[i], sizeof(Floats));
    }
  }
}

// ---- sums in aligned fixed point ----

// Exponent as the multiplier sees it: that of the code, so -6 for subnormals.
static signed char exponent_of(float value) {
  const u32 magnitude = bits_of(value) & 0x7FFFFFFFu;
  if (magnitude == 0) return kLowestExponent;
  return (signed char)std::max((int)(magnitude >> 23) - 127, -6);
}

static inline Floats power_of_two(Ints exponent) { return (Floats)((exponent + 127) << 23); }

static void multiply_aligned(float* d, int n, MmaOperands& o) {
  alignas(64) signed char largest[256];
  const int padded = (n + 31) / 32 * 32;
  for (int k = 0; k < 32; ++k) {
    for (int column = 0; column < n; ++column) o.b_exponent[k][column] = exponent_of(o.b[k][column]);
    for (int column = n; column < padded; ++column) o.b_exponent[k][column] = kLowestExponent;
  }
  for (int row = 0; row < 64; ++row) {
    signed char a_exponent[32];
    for (int k = 0; k < 32; ++k) a_exponent[k] = exponent_of(o.a[row][k]);
    for (int column = 0; column < padded; column += 32) {
      Bytes top = (Bytes){} - (signed char)127;
      for (int k = 0; k < 32; ++k) {
        const Bytes sum = load<Bytes>(&o.b_exponent[k][column]) + a_exponent[k];
        top = sum > top ? sum : top;
      }
      memcpy(&largest[column], &top, sizeof top);
    }
    for (int column = 0; column < n; column += kLanes) {
      float* at = d + row * n + column;
      const Floats accumulator = load<Floats>(at);
      const Ints held = (Ints)(((Ints)accumulator & 0x7FFFFFFF) >> 23) - 127;
      Ints top = __builtin_convertvector(load<Bytes8>(&largest[column]), Ints);
      top = held > top ? held : top;
      top = top > kLowestExponent ? top : (Ints){} + kLowestExponent;
      const Floats scale = power_of_two(kFractionBits - top);
      Ints sum = __builtin_convertvector(accumulator * scale, Ints);
      for (int k = 0; k < 32; ++k) {
        const Floats product = o.a[row][k] * load<Floats>(&o.b[k][column]);
        sum += __builtin_convertvector(product * scale, Ints);
      }
      // Below 2^24, so exact as fp32; then cut to the bits that the accumulator keeps.
      Ints bits = (Ints) __builtin_convertvector(sum, Floats);
      bits &= ~((1 << (23 - kFractionBits)) - 1);
      const Floats result = (Floats)bits * power_of_two(top - kFractionBits);
      memcpy(at, &result, sizeof result);
    }
  }
}

// Whether an accumulator is too large for the fixed-point path, infinite or NaN.
static bool out_of_range(const float* d, int count) {
  u32 largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, bits_of(d[i]) & 0x7FFFFFFFu);
  return largest >= 0x71800000u;  // 2^100
}

void multiply(float* d, int n, MmaOperands& o, MmaType type, bool exact) {
  if (type != MmaType::e4m3 || exact || o.has_nan || out_of_range(d, 64 * n)) {
    multiply_plain(d, n, o);
  } else {
    multiply_aligned(d, n, o);
  }
}

}  // namespace mla::emulator
