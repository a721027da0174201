// What the primitives make of single numbers: pairs of f16, and logarithms.
#include "mla_host_model.hpp"
namespace mla::test {

struct Params {
  const float* source;
  u32* out;         // two f16 of elements 2 i and 2 i + 1
  float* logarithm;  // of each element
  i32 pairs;
};

extern "C" __global__ void kernel(Params params) {
  for (i32 i = (i32)thread_index(); i < params.pairs; i += 128) {
    const float first = ld_global_f32(params.source + 2 * i), second = ld_global_f32(params.source + 2 * i + 1);
    st_global_u32(params.out + i, cvt_f16x2(first, second));
    st_global_f32(params.logarithm + 2 * i, lg2(first));
    st_global_f32(params.logarithm + 2 * i + 1, lg2(second));
  }
}

}  // namespace mla::test
