"""Makes wgmma_bits.npz: what the tensor cores of an sm_90 GPU compute for one wgmma, bit by bit.

Needs a Hopper GPU, nvcc and CuPy; run as `python wgmma_bits.py FOLDER`. The inputs come from `make_inputs`,
which the test that compares the emulator with the table calls as well.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CASES = 8
N = 16
KINDS = (
    "e4m3_normal",
    "e4m3_accumulate",
    "e4m3_all_codes",
    "e4m3_small",
    "e4m3_biased",
    "bf16_normal",
    "bf16_wide",
)


def make_inputs(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [cases, 64, 32] and B [cases, N, 32] as bytes, C [cases, 64, N] as fp32; seeded by kind."""
    rng = np.random.default_rng(100 + KINDS.index(kind))
    shape_a, shape_b, shape_c = (CASES, 64, 32), (CASES, N, 32), (CASES, 64, N)
    c = np.zeros(shape_c, np.float32)
    if kind.startswith("bf16"):
        wide = 8 if kind == "bf16_wide" else 0
        a, b = (_bf16(rng, shape, wide) for shape in (shape_a, shape_b))
        c = (rng.standard_normal(shape_c) * 4).astype(np.float32)
        return a, b, c
    if kind == "e4m3_all_codes":
        a, b = (_finite(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in (shape_a, shape_b))
        c = (rng.standard_normal(shape_c) * 2.0 ** rng.integers(-20, 20, shape_c)).astype(np.float32)
        return a, b, c
    if kind == "e4m3_small":
        a, b = (_finite(rng.integers(0, 256, shape, dtype=np.uint8) & 0x9F) for shape in (shape_a, shape_b))
        a[rng.random(shape_a) < 0.7] = 0
        c = (rng.standard_normal(shape_c) * 2.0 ** rng.integers(-24, -6, shape_c)).astype(np.float32)
        return a, b, c
    a, b = (rng.integers(0x28, 0x40, shape, dtype=np.uint8) for shape in (shape_a, shape_b))
    if kind != "e4m3_biased":
        a |= rng.integers(0, 2, shape_a, dtype=np.uint8) << 7
        b |= rng.integers(0, 2, shape_b, dtype=np.uint8) << 7
    if kind == "e4m3_accumulate":
        c = (rng.standard_normal(shape_c) * 8).astype(np.float32)
    if kind == "e4m3_biased":
        c = (1000 * rng.random(shape_c)).astype(np.float32)
    return a, b, c


def _finite(codes: np.ndarray) -> np.ndarray:
    codes[(codes & 0x7F) == 0x7F] = 0x30
    return codes


def _bf16(rng: np.random.Generator, shape: tuple[int, ...], wide: int) -> np.ndarray:
    """Bytes of bf16 numbers; `wide` spreads their exponents."""
    half = (*shape[:-1], shape[-1] // 2)
    values = rng.standard_normal(half) * 2.0 ** rng.integers(-wide, wide + 1, half)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


_SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 descriptor(unsigned address) {  // no swizzle: 8x16-byte matrices, 128 bytes apart along K
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}
template <bool kFp8>
__device__ void multiply(const unsigned char* a, const unsigned char* b, const float* c, float* d) {
  __shared__ __align__(1024) unsigned char smem[64 * 32 + 16 * 32];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 32 + 16 * 32; i += 128) {
    const int row = i < 2048 ? i / 32 : (i - 2048) / 32, byte = i % 32;
    const int at = row / 8 * 256 + byte / 16 * 128 + row % 8 * 16 + byte % 16;
    if (i < 2048) smem[at] = a[blockIdx.x * 2048 + i];
    else smem[2048 + at] = b[blockIdx.x * 512 + i - 2048];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned base = (unsigned)__cvta_generic_to_shared(smem);
  const u64 da = descriptor(base), db = descriptor(base + 2048);
  float r[8];
  const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = 0; i < 8; ++i)
    r[i] = c[blockIdx.x * 1024 + (row + (i >> 1 & 1) * 8) * 16 + column + (i >> 2) * 8 + (i & 1)];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  if (kFp8)
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1;"
        : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3]), "+f"(r[4]), "+f"(r[5]), "+f"(r[6]), "+f"(r[7])
        : "l"(da), "l"(db));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1, 0, 0;"
        : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3]), "+f"(r[4]), "+f"(r[5]), "+f"(r[6]), "+f"(r[7])
        : "l"(da), "l"(db));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 8; ++i) {
    asm volatile("" : "+f"(r[i])::"memory");
    d[blockIdx.x * 1024 + (row + (i >> 1 & 1) * 8) * 16 + column + (i >> 2) * 8 + (i & 1)] = r[i];
  }
}
typedef const unsigned char* Bytes;
extern "C" __global__ void multiply_e4m3(Bytes a, Bytes b, const float* c, float* d) {
  multiply<true>(a, b, c, d);
}
extern "C" __global__ void multiply_bf16(Bytes a, Bytes b, const float* c, float* d) {
  multiply<false>(a, b, c, d);
}
"""


def main(folder: str) -> None:
    """Runs every kind on the GPU and writes the table."""
    import cupy

    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "wgmma_bits.cu"
        source.write_text(_SOURCE)
        cubin = source.with_suffix(".cubin")
        subprocess.run(["nvcc", "-arch=sm_90a", "-cubin", "-o", str(cubin), str(source)], check=True)
        module = cupy.RawModule(path=str(cubin))
        results = {}
        for kind in KINDS:
            a, b, c = (cupy.asarray(x) for x in make_inputs(kind))
            d = cupy.zeros_like(c)
            kernel = module.get_function("multiply_bf16" if kind.startswith("bf16") else "multiply_e4m3")
            kernel((CASES,), (128,), (a, b, c, d))
            results[kind] = cupy.asnumpy(d).view(np.uint32)
    np.savez_compressed(Path(folder) / "wgmma_bits.npz", **results)


if __name__ == "__main__":
    main(sys.argv[1])
