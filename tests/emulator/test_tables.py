"""The model of wgmma against tables that it did not make: CuTe's layouts, and bits computed by an H200."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.emulator.compiler import build_engine
from mla_codegen.emulator.native import load_engine
from tests.emulator.hardware.wgmma_bits import CASES, KINDS, N, make_inputs
from tests.emulator.small import aligned, run_small, source_with

TABLES = Path(__file__).parent / "hardware"
CUTE = np.load(TABLES / "cute_layouts.npz")
BITS = np.load(TABLES / "wgmma_bits.npz")
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
TILE_BYTES = 16384


@pytest.fixture(scope="module")
def engine() -> ctypes.CDLL:
    return load_engine(build_engine())


def model_product(engine: ctypes.CDLL, kind: str, case: int, *, exact: bool = False) -> np.ndarray:
    a, b, c = make_inputs(kind)
    d = np.ascontiguousarray(c[case])
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a[case].copy(), b[case].copy(), d)]
    engine.mla_emulator_multiply(1 if kind.startswith("bf16") else 0, int(exact), N, *pointers)
    return d


@pytest.mark.parametrize("kind", KINDS)
def test_products_equal_the_hardware_bit_by_bit(engine: ctypes.CDLL, kind: str) -> None:
    for case in range(CASES):
        assert np.array_equal(model_product(engine, kind, case).view(np.uint32), BITS[kind][case])


@pytest.mark.parametrize("factor", (2.0**60, np.inf, np.nan))
def test_bf16_beyond_the_fixed_point_range_is_summed_in_fp32(engine: ctypes.CDLL, factor: float) -> None:
    a, b = (np.ones((rows, 16), ml_dtypes.bfloat16) for rows in (64, N))
    a[3], d = factor, np.zeros((64, N), np.float32)
    engine.mla_emulator_multiply(1, 0, N, *(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d)))
    expected = np.full((64, N), 16.0, np.float32)
    expected[3] = 16 * factor
    assert np.array_equal(d, expected, equal_nan=True)


def test_exact_arithmetic_is_fp32(engine: ctypes.CDLL) -> None:
    a, b, c = make_inputs("e4m3_accumulate")
    values = [x[0].view(DTYPES["e4m3"]).astype(np.float64) for x in (a, b)]
    expected = values[0] @ values[1].T + c[0]
    assert np.allclose(model_product(engine, "e4m3_accumulate", 0, exact=True), expected, rtol=0, atol=2e-5)


def test_fp8_nan_and_infinity_pass_through(engine: ctypes.CDLL) -> None:
    a, b, d = (
        np.full((64, 32), 0x38, np.uint8),
        np.full((N, 32), 0x38, np.uint8),
        np.zeros((64, N), np.float32),
    )
    a[3, 7], d[5, 2] = 0x7F, np.inf
    engine.mla_emulator_multiply(0, 0, N, *(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d)))
    expected = np.full((64, N), 32.0)
    expected[3], expected[5, 2] = np.nan, np.inf
    assert np.array_equal(d, expected, equal_nan=True)


def image(tile: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Shared memory with element (row, column) at its byte offset."""
    memory = np.zeros(TILE_BYTES, np.uint8)
    raw = tile.view(np.uint8).reshape(*tile.shape, tile.itemsize)
    for byte in range(tile.itemsize):
        memory[offsets + byte] = raw[..., byte]
    return aligned(memory)


def run_product(
    constants: dict[str, str], function: str, arrays: dict[str, np.ndarray], n: int
) -> np.ndarray:
    source = source_with("product", constants)
    form = "rs" if constants.get("kForm") == "1" else "ss"
    source = source.replace(f"wgmma_bf16_{form}<kN>", f"{function}<kN>")
    out = np.zeros((128, n // 2), np.float32)
    result = run_small("product", source, arrays={**arrays, "out": out})
    assert not result.hazards, result.hazards
    matrix = np.zeros((64, n), np.float32)
    index = CUTE[f"d_{n}"].reshape(128, n // 2)
    matrix[index % 64, index // 64] = out
    return matrix


def small_values(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray:
    """Multiples of 1/4 up to 2: every sum of 32 products is exact in any of the arithmetics."""
    return (np.random.default_rng(seed).integers(-8, 9, shape) / 4).astype(np.float32).astype(DTYPES[dtype])


@pytest.mark.parametrize("width", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_with_the_reduction_contiguous(dtype: str, width: int) -> None:
    k = 32 // np.dtype(DTYPES[dtype]).itemsize
    name = f"k_{'e4m3' if dtype == 'e4m3' else 'bf16'}_{width}"
    rows, columns = (64 if width == 0 else 96), max(width, 32) // np.dtype(DTYPES[dtype]).itemsize
    offsets = CUTE[name].reshape(rows, columns)
    a, b = small_values((rows, columns), dtype, 1), small_values((rows, columns), dtype, 2)
    leading, stride = (1024, 128) if width == 0 else (16, 8 * width)
    arrays = {
        "a": image(a, offsets),
        "b": image(b, offsets),
        "a_registers": np.zeros((128, 4), np.uint32),
    }
    for step in range(columns // k):
        constants = {
            "kN": str(rows), "kMode": str(MODES[width]), "kBMode": str(MODES[width]),
            "kLeadingBytes": str(leading), "kStrideBytes": str(stride), "kBLeadingBytes": str(leading),
            "kBStrideBytes": str(stride), "kABytes": str(32 * step), "kBBytes": str(32 * step),
        }  # fmt: skip
        columns_of_step = slice(step * k, (step + 1) * k)
        expected = a[:64, columns_of_step].astype(np.float32) @ b[:, columns_of_step].astype(np.float32).T
        got = run_product(constants, f"wgmma_{dtype}_ss", arrays, rows)
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_from_registers(dtype: str) -> None:
    itemsize = np.dtype(DTYPES[dtype]).itemsize
    k = 32 // itemsize
    a, b = small_values((64, k), dtype, 3), small_values((96, 128 // itemsize), dtype, 4)
    index = CUTE["a_e4m3" if dtype == "e4m3" else "a_bf16"].reshape(128, 16 // itemsize)
    registers = np.ascontiguousarray(a[index % 64, index // 64]).view(np.uint32)
    offsets = CUTE[f"k_{'e4m3' if dtype == 'e4m3' else 'bf16'}_128"].reshape(96, 128 // itemsize)
    arrays = {
        "a": np.zeros(TILE_BYTES, np.uint8),
        "b": image(b, offsets),
        "a_registers": registers.reshape(128, 4),
    }
    got = run_product({"kN": "96", "kForm": "1"}, f"wgmma_{dtype}_rs", arrays, 96)
    assert np.array_equal(got, a.astype(np.float32) @ b[:, :k].astype(np.float32).T)


@pytest.mark.parametrize("form", ("ss", "rs"))
@pytest.mark.parametrize("width", (128, 64, 32))
@pytest.mark.parametrize("dtype", ("bf16", "f16"))
def test_b_with_the_columns_contiguous(dtype: str, width: int, form: str) -> None:
    a, b = small_values((96, 64), dtype, 5), small_values((128, 64), dtype, 6)
    index = CUTE["a_bf16"].reshape(128, 8)
    arrays = {
        "a": image(a, CUTE["k_bf16_128"].reshape(96, 64)),
        "b": image(b, CUTE[f"mn_bf16_{width}"].reshape(128, 64)),
        "a_registers": np.ascontiguousarray(a[index % 64, index // 64]).view(np.uint32).reshape(128, 4),
    }
    atom = 8 * width  # bytes of 8 steps along the reduction
    for step in range(4 if form == "ss" else 1):
        constants = {
            "kN": "128", "kForm": "1" if form == "rs" else "0", "kBMode": str(MODES[width]),
            "kBLeadingBytes": str(8 * atom), "kBStrideBytes": str(atom), "kABytes": str(32 * step),
            "kBBytes": str(2 * atom * step),
        }  # fmt: skip
        columns = slice(16 * step, 16 * step + 16)
        expected = a[:64, columns].astype(np.float32) @ b[:, columns].astype(np.float32).T
        assert np.array_equal(run_product(constants, f"wgmma_{dtype}_{form}_mn", arrays, 128), expected)


@pytest.mark.parametrize(("fault", "kind"), [(1, "wgmma"), (2, "wgmma"), (3, "wgmma"), (4, "proxy-fence")])
def test_misuse_of_a_product(fault: int, kind: str) -> None:
    arrays = {
        "a": np.zeros(TILE_BYTES, np.uint8),
        "b": np.zeros(TILE_BYTES, np.uint8),
        "a_registers": np.zeros((128, 4), np.uint32),
        "out": np.zeros((128, 32), np.float32),
    }
    result = run_small("product", source_with("product", {"kFault": str(fault)}), arrays=arrays)
    assert kind in {hazard.kind for hazard in result.hazards}
