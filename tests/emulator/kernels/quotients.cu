// Goes behind a generated quantiser: its quotient against IEEE division, for every pair of a group's largest
// element and an element.
namespace mla::test {

using namespace mla::QUANTIZER;

struct Params {
  u32* different;  // [32] pairs whose stored numbers differ, then [32] pairs that were compared
  i32 is_f16;      // what the inputs are
  i32 is_rope;     // stored as bf16, else as e4m3
  i32 is_raised;   // by the scale that the largest element gives as rope, else as nope
};

inline float value_of(u32 code, bool is_f16) {
  float low, high;
  if (is_f16) {
    F16Input::unpack(code, low, high);
  } else {
    Bf16Input::unpack(code, low, high);
  }
  return low;
}

extern "C" __global__ void kernel(Params params) {
  const bool is_f16 = params.is_f16 != 0, is_rope = params.is_rope != 0;
  const bool is_raised = params.is_raised != 0;
  const u32 end = is_f16 ? 0x7C00 : 0x7F80;
  const float least = is_rope ? kQuickQuotient : 0x1p-12f, most = is_rope ? 0x1p48f : 450.0f;
  u32 different = 0, compared = 0;
  for (u32 largest = 1 + thread_index(); largest < end; largest += 32) {
    const float x_largest = value_of(largest, is_f16);
    const Divisor by = divisor_of(is_raised ? prescaled_scale_of(0x1p-140f, x_largest) : scale_of(x_largest));
    for (u32 code = is_f16 ? 1 : bits_from_float(by.scale * least) >> 16; code < end; ++code) {
      const float x = value_of(code, is_f16), exact = x / by.scale, quick = quotient(x, by);
      if (exact > most) break;
      if (exact < least) continue;
      const u32 wanted = is_rope ? cvt_bf16x2(exact, 0.0f) : cvt_e4m3x4(exact, 0.0f, 0.0f, 0.0f);
      const u32 found = is_rope ? cvt_bf16x2(quick, 0.0f) : cvt_e4m3x4(quick, 0.0f, 0.0f, 0.0f);
      different += wanted != found ? 1 : 0;
      ++compared;
    }
  }
  st_global_u32(params.different + thread_index(), different);
  st_global_u32(params.different + 32 + thread_index(), compared);
}

}  // namespace mla::test
