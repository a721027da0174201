// What the tensor core computes.
//
// One instruction adds its products and the accumulator in fixed point. All terms are aligned to the largest
// exponent among them (of a product: the sum of its factors' exponents), cut toward zero some bits after the
// point, and added exactly; the sum is cut toward zero. e4m3 keeps 13 bits of the terms and of the sum, which
// is why long rows drift; bf16 and fp16 keep 25 bits of the terms and the sum's fp32. Blackwell does the
// latter for e4m3 too.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "engine.hpp"

namespace mla::emulator {

typedef float Floats __attribute__((vector_size(32)));
typedef i32 Ints __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef long long Longs __attribute__((vector_size(64)));
constexpr int kLanes = 8;
constexpr float kLargestOperand = 0x1p50f;
constexpr float kLargestAccumulator = 0x1p100f;

// e4m3: 32 products below 2^15 fit a 32-bit sum, and so does the accumulator.
struct Fp8 {
  using Exponent = signed char;
  typedef signed char Exponents __attribute__((vector_size(32)));
  typedef signed char EightExponents __attribute__((vector_size(8)));
  static constexpr int kProducts = 32, kProductsPerSum = 32;
  static constexpr int kFractionBits = 13;
  static constexpr int kZeroExponent = -60;  // stands for the exponent of 0
};
// e4m3 on Blackwell: as 16-bit types, but 32 products, in two parts that fit a 32-bit sum each.
struct WideFp8 : Fp8 {
  static constexpr int kProductsPerSum = 16;
  static constexpr int kFractionBits = 25;
};
// bf16, fp16: 16 products below 2^27 just fit a 32-bit sum; the accumulator joins in fp64. Sums whose terms
// are all below 2^-100 are cut at 2^-125.
struct Halves {
  using Exponent = short;
  typedef short Exponents __attribute__((vector_size(32)));
  typedef short EightExponents __attribute__((vector_size(16)));
  static constexpr int kProducts = 16, kProductsPerSum = 16;
  static constexpr int kFractionBits = 25;
  static constexpr int kZeroExponent = -100;
};

template <class Vector, class Scalar>
static inline Vector load(const Scalar* from) {
  Vector v;
  memcpy(&v, from, sizeof v);
  return v;
}

// ---- decoding ----

// Too large for the fixed-point path, infinite or NaN.
static bool is_irregular(float value) { return !(__builtin_fabsf(value) < kLargestOperand); }

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
  bool irregular = false;
  for (int row = 0; row < rows; ++row) {
    const u8* from = bytes + row * 32;
    float* to = out + row * row_pitch;
    if (type == MmaType::e4m3) {
      for (int j = 0; j < 32; ++j) {
        irregular |= (from[j] & 0x7F) == 0x7F;
        to[j * element_pitch] = kE4m3[from[j]];
      }
      continue;
    }
    for (int j = 0; j < 16; ++j) {
      u16 half;
      memcpy(&half, from + 2 * j, 2);
      const float value = type == MmaType::bf16 ? float_of((u32)half << 16) : f16_value(half);
      irregular |= is_irregular(value);
      to[j * element_pitch] = value;
    }
  }
  return irregular;
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

// Exponent as the multiplier sees it: that of the code, so the lowest normal one for subnormals.
static int lowest_normal_exponent(MmaType type) {
  return type == MmaType::e4m3 ? -6 : type == MmaType::f16 ? -14 : -126;
}

static int exponent_of(float value, int lowest_normal, int of_zero) {
  const u32 magnitude = bits_of(value) & 0x7FFFFFFFu;
  return magnitude == 0 ? of_zero : std::max((int)(magnitude >> 23) - 127, lowest_normal);
}

static inline Floats power_of_two(Ints exponent) { return (Floats)((exponent + 127) << 23); }

template <class Format>
static void multiply_aligned(float* d, int n, const MmaOperands& o, MmaType type) {
  using Exponent = typename Format::Exponent;
  using Exponents = typename Format::Exponents;
  constexpr int kPerVector = sizeof(Exponents) / sizeof(Exponent);
  alignas(64) Exponent b_exponent[Format::kProducts][256];
  alignas(64) Exponent largest[256];
  const int lowest_normal = lowest_normal_exponent(type);
  const int padded = (n + kPerVector - 1) / kPerVector * kPerVector;
  for (int k = 0; k < Format::kProducts; ++k)
    for (int column = 0; column < padded; ++column)
      b_exponent[k][column] =
          (Exponent)exponent_of(column < n ? o.b[k][column] : 0.0f, lowest_normal, Format::kZeroExponent);
  for (int row = 0; row < 64; ++row) {
    Exponent a_exponent[Format::kProducts];
    for (int k = 0; k < Format::kProducts; ++k)
      a_exponent[k] = (Exponent)exponent_of(o.a[row][k], lowest_normal, Format::kZeroExponent);
    for (int column = 0; column < padded; column += kPerVector) {
      Exponents top = load<Exponents>(&b_exponent[0][column]) + a_exponent[0];
      for (int k = 1; k < Format::kProducts; ++k) {
        const Exponents sum = load<Exponents>(&b_exponent[k][column]) + a_exponent[k];
        top = sum > top ? sum : top;
      }
      memcpy(&largest[column], &top, sizeof top);
    }
    for (int column = 0; column < n; column += kLanes) {
      float* at = d + row * n + column;
      const Floats accumulator = load<Floats>(at);
      const Ints held = (Ints)(((Ints)accumulator & 0x7FFFFFFF) >> 23) - 127;
      Ints top = __builtin_convertvector(load<typename Format::EightExponents>(&largest[column]), Ints);
      top = held > top ? held : top;
      top = top > Format::kZeroExponent ? top : (Ints){} + Format::kZeroExponent;
      const Floats scale = power_of_two(Format::kFractionBits - top);
      const Ints carried = __builtin_convertvector(accumulator * scale, Ints);
      auto sum_of = [&](int first, int last) {
        Ints sum{};
        for (int k = first; k < last; ++k) {
          const Floats product = o.a[row][k] * load<Floats>(&o.b[k][column]);
          sum += __builtin_convertvector(product * scale, Ints);
        }
        return sum;
      };
      const Ints sum = sum_of(0, Format::kProductsPerSum);
      Floats kept;
      if constexpr (Format::kFractionBits < 23) {
        // Below 2^24, so exact as fp32; then cut to the bits that the accumulator keeps.
        kept = __builtin_convertvector(sum + carried, Floats);
        kept = (Floats)((Ints)kept & ~((1 << (23 - Format::kFractionBits)) - 1));
      } else {
        Doubles total = __builtin_convertvector(sum, Doubles) + __builtin_convertvector(carried, Doubles);
        for (int k = Format::kProductsPerSum; k < Format::kProducts; k += Format::kProductsPerSum)
          total += __builtin_convertvector(sum_of(k, k + Format::kProductsPerSum), Doubles);
        const Longs bits = (Longs)total & ~((1ll << 29) - 1);  // cut to the bits of fp32
        kept = __builtin_convertvector((Doubles)bits, Floats);
      }
      const Floats result = kept * power_of_two(top - Format::kFractionBits);
      memcpy(at, &result, sizeof result);
    }
  }
}

// Whether an accumulator is too large for the fixed-point path, infinite or NaN.
static bool out_of_range(const float* d, int count) {
  u32 largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, bits_of(d[i]) & 0x7FFFFFFFu);
  return largest >= bits_of(kLargestAccumulator);
}

static void multiply_regular(float* d, int n, const MmaOperands& o, MmaType type, TensorCore core) {
  if (type == MmaType::e4m3 && core == TensorCore::hopper) {
    multiply_aligned<Fp8>(d, n, o, type);
  } else if (type == MmaType::e4m3) {
    multiply_aligned<WideFp8>(d, n, o, type);
  } else {
    multiply_aligned<Halves>(d, n, o, type);
  }
}

// Rows of A, columns of B and accumulators that the fixed-point path cannot take are summed in fp32; the bits
// of all other elements are what they are without them.
static void multiply_mixed(float* d, int n, const MmaOperands& o, MmaType type, TensorCore core) {
  const auto copy = std::make_unique<MmaOperands>(o);  // too large for the stack of an emulated thread
  MmaOperands& regular = *copy;
  bool row_is_plain[64] = {}, column_is_plain[256] = {};
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < o.k; ++k) row_is_plain[row] |= is_irregular(o.a[row][k]);
    for (int k = 0; row_is_plain[row] && k < o.k; ++k) regular.a[row][k] = 0.0f;
  }
  for (int column = 0; column < n; ++column) {
    for (int k = 0; k < o.k; ++k) column_is_plain[column] |= is_irregular(o.b[k][column]);
    for (int k = 0; column_is_plain[column] && k < o.k; ++k) regular.b[k][column] = 0.0f;
  }
  std::vector<float> plain(d, d + 64 * n);
  std::vector<bool> is_plain(64 * n);
  multiply_plain(plain.data(), n, o);
  for (int i = 0; i < 64 * n; ++i) {
    is_plain[i] = row_is_plain[i / n] || column_is_plain[i % n] || out_of_range(d + i, 1);
    if (is_plain[i]) d[i] = 0.0f;
  }
  multiply_regular(d, n, regular, type, core);
  for (int i = 0; i < 64 * n; ++i)
    if (is_plain[i]) d[i] = plain[i];
}

void multiply(float* d, int n, const MmaOperands& o, MmaType type, TensorCore core, bool exact) {
  if (exact) {
    multiply_plain(d, n, o);
  } else if (o.irregular || out_of_range(d, 64 * n)) {
    multiply_mixed(d, n, o, type, core);
  } else {
    multiply_regular(d, n, o, type, core);
  }
}

}  // namespace mla::emulator
