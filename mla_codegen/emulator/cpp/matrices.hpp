// Matrices in shared memory as wgmma and tcgen05.mma find them through descriptors.
#pragma once
#include "engine.hpp"

namespace mla::emulator {

struct Matrix {
  u32 start, leading, stride, width;  // bytes; width is the swizzle's row, 16 for none
  bool mn_major;
};

// The fields that both descriptors have in the same place.
inline Matrix matrix_of(u64 descriptor, u32 width, bool mn_major) {
  return {(u32)(descriptor & 0x3FFF) << 4, (u32)(descriptor >> 16 & 0x3FFF) << 4,
          (u32)(descriptor >> 32 & 0x3FFF) << 4, width, mn_major};
}

// Address of the 16-byte unit `unit` (8 or 16 elements along the contiguous direction) of line `row` (the
// other one). Rows of the swizzle pattern come from the address bits, as in the hardware.
inline u32 unit_address(const Matrix& m, u32 row, u32 unit) {
  u32 a;
  if (!m.mn_major) {
    a = m.width == 16 ? m.start + row / 8 * m.stride + unit * m.leading + row % 8 * 16
                      : m.start + row / 8 * m.stride + row % 8 * m.width + unit * 16;
  } else {
    const u32 units = m.width / 16;
    a = m.width == 16
            ? m.start + unit * m.stride + row / 8 * m.leading + row % 8 * 16
            : m.start + unit / units * m.leading + row / 8 * m.stride + row % 8 * m.width + unit % units * 16;
  }
  return m.width == 16 ? a : a ^ ((a >> 3) & (m.width - 16));
}

template <class Visit>
void for_units(const Matrix& m, u32 first_row, u32 rows, u32 units, int line, const char* operand,
               Visit&& visit) {
  const Engine& e = *engine;
  for (u32 row = first_row; row < first_row + rows; ++row) {
    for (u32 unit = 0; unit < units; ++unit) {
      const u32 a = unit_address(m, row, unit);
      if (a < kSmemBase || a + 16 > e.smem_end) {
        fatal(HazardKind::bounds, line, "operand %s reaches shared-memory offset %d, the CTA has %u bytes",
              operand, (int)(a - kSmemBase), e.config.smem_bytes);
      }
      visit(a, row, unit);
    }
  }
}

}  // namespace mla::emulator
