"""Makes cute_layouts.npz: layouts of wgmma operands and fragments as CuTe defines them.

Run as `python cute_layouts.py FOLDER`; needs g++ and the network: CuTe's headers come from the wheel
nvidia-cutlass 4.2.0.0 (BSD licence), the CUDA headers that they include from NVIDIA's wheels. Only the
numbers are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

WHEELS = (
    "nvidia-cutlass==4.2.0.0",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
)

_SOURCE = r"""
#include <cstdio>
#include <cuda_runtime.h>
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
using namespace cute;
template <class T, class L> void tile(const char* name, L layout, int rows, int columns) {
  static char* base = (char*)aligned_alloc(1 << 20, 1 << 20);
  auto t = make_tensor(make_smem_ptr((T*)base), layout);
  printf("\"%s\": [", name);
  for (int m = 0; m < rows; ++m)
    for (int k = 0; k < columns; ++k) printf("%s%d", m + k ? "," : "", (int)((char*)&t(m, k) - base));
  printf("],\n");
}
template <class L> void fragment(const char* name, L layout, int registers) {
  printf("\"%s\": [", name);
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < registers; ++i) printf("%s%d", t + i ? "," : "", (int)layout(t, i));
  printf("],\n");
}
int main() {
  using H = cutlass::bfloat16_t;
  using B = cutlass::float_e4m3_t;
  using Mn = Shape<_128, _64>;
  using Order = Step<_2, _1>;
  printf("{");
  tile<B>("k_e4m3_128", tile_to_shape(GMMA::Layout_K_SW128_Atom<B>{}, Shape<_96, _128>{}), 96, 128);
  tile<B>("k_e4m3_64", tile_to_shape(GMMA::Layout_K_SW64_Atom<B>{}, Shape<_96, _64>{}), 96, 64);
  tile<B>("k_e4m3_32", tile_to_shape(GMMA::Layout_K_SW32_Atom<B>{}, Shape<_96, _32>{}), 96, 32);
  tile<B>("k_e4m3_0", tile_to_shape(GMMA::Layout_K_INTER_Atom<B>{}, Shape<_64, _32>{}), 64, 32);
  tile<H>("k_bf16_128", tile_to_shape(GMMA::Layout_K_SW128_Atom<H>{}, Shape<_96, _64>{}), 96, 64);
  tile<H>("k_bf16_64", tile_to_shape(GMMA::Layout_K_SW64_Atom<H>{}, Shape<_96, _32>{}), 96, 32);
  tile<H>("k_bf16_32", tile_to_shape(GMMA::Layout_K_SW32_Atom<H>{}, Shape<_96, _16>{}), 96, 16);
  tile<H>("k_bf16_0", tile_to_shape(GMMA::Layout_K_INTER_Atom<H>{}, Shape<_64, _16>{}), 64, 16);
  tile<H>("mn_bf16_128", tile_to_shape(GMMA::Layout_MN_SW128_Atom<H>{}, Mn{}, Order{}), 128, 64);
  tile<H>("mn_bf16_64", tile_to_shape(GMMA::Layout_MN_SW64_Atom<H>{}, Mn{}, Order{}), 128, 64);
  tile<H>("mn_bf16_32", tile_to_shape(GMMA::Layout_MN_SW32_Atom<H>{}, Mn{}, Order{}), 128, 64);
  fragment("d_64", SM90::GMMA::CLayout_64x64{}, 32);
  fragment("d_96", SM90::GMMA::CLayout_64x96{}, 48);
  fragment("d_128", SM90::GMMA::CLayout_64x128{}, 64);
  fragment("d_256", SM90::GMMA::CLayout_64x256{}, 128);
  fragment("a_bf16", SM90::GMMA::ALayout_64x16{}, 8);
  fragment("a_e4m3", SM90::GMMA::ALayout_64x32{}, 16);
  printf("\"end\": [0]}\n");
}
"""


def main(folder: str) -> None:
    """Downloads the headers, compiles, and writes the table."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), *WHEELS],
            check=True,
        )
        for wheel in scratch.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(scratch / "headers")
        cuda = scratch / "headers/nvidia/cu13/include"
        includes = [scratch / "headers/cutlass_library/source/include", cuda, cuda / "cccl"]
        (scratch / "layouts.cpp").write_text(_SOURCE)
        binary = scratch / "layouts"
        flags = [f"-I{path}" for path in includes]
        subprocess.run(
            ["g++", "-std=c++17", "-w", *flags, str(scratch / "layouts.cpp"), "-o", str(binary)], check=True
        )
        text = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    tables = {key: np.array(values, np.int32) for key, values in json.loads(text).items() if key != "end"}
    np.savez_compressed(Path(folder) / "cute_layouts.npz", **tables)


if __name__ == "__main__":
    main(sys.argv[1])
