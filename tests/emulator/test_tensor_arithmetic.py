"""What a product of the Blackwell model sums, against the same rule in exact fractions."""

from __future__ import annotations

import ctypes
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.emulator.compiler import build_engine
from mla_codegen.emulator.native import load_engine

ROWS, N, BLACKWELL = 64, 8, 1
TYPES = {
    "e4m3": (0, ml_dtypes.float8_e4m3fn, -6),
    "bf16": (1, ml_dtypes.bfloat16, -126),
    "f16": (2, np.float16, -14),
}
"""Number of the type in the engine, the NumPy type, and the exponent of its smallest normal number."""
FRACTION_BITS = 25


def exponent(value: float, lowest_normal: int) -> int:
    return max(math.frexp(value)[1] - 1, lowest_normal)


def fixed_point_sum(a: list[float], b: list[float], c: float, lowest_normal: int) -> float:
    """Terms cut toward zero 25 bits below the largest exponent, added, and cut toward zero to fp32."""
    terms = [
        (Fraction(x) * Fraction(y), exponent(x, lowest_normal) + exponent(y, lowest_normal))
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    terms += [(Fraction(c), exponent(c, -126))] if c else []
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(e for _, e in terms) - FRACTION_BITS)
    total = sum(math.trunc(term / unit) for term, _ in terms) * unit
    if total == 0:
        return 0.0
    last = Fraction(2) ** (math.frexp(float(total))[1] - 24)
    return float(math.trunc(total / last) * last)


def inputs(name: str, spread: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, dtype, _ = TYPES[name]
    rng = np.random.default_rng(len(name) + len(spread))
    k = 32 // np.dtype(dtype).itemsize

    def draw(rows: int) -> np.ndarray:
        values = rng.standard_normal((rows, k))
        if spread == "biased":
            values = 1 + 0.25 * values
        if spread == "wide":
            values *= 2.0 ** rng.integers(-8, 6, (rows, k))
        return values.astype(np.float32).astype(dtype)

    c = (rng.standard_normal((ROWS, N)) * (1000 if spread == "biased" else 4)).astype(np.float32)
    return draw(ROWS), draw(N), c


@pytest.mark.parametrize("spread", ("normal", "biased", "wide"))
@pytest.mark.parametrize("name", TYPES)
def test_sums_are_those_of_the_rule(name: str, spread: str) -> None:
    engine = load_engine(build_engine())
    number, _, lowest_normal = TYPES[name]
    a, b, c = inputs(name, spread)
    d = c.copy()
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d)]
    engine.mla_emulator_multiply_on(BLACKWELL, number, 0, N, *pointers)
    a_values, b_values = a.astype(np.float64).tolist(), b.astype(np.float64).tolist()
    expected = [
        [fixed_point_sum(a_values[i], b_values[j], float(c[i, j]), lowest_normal) for j in range(N)]
        for i in range(ROWS)
    ]
    assert np.array_equal(d, np.array(expected, np.float32))


def test_e4m3_keeps_what_hopper_loses() -> None:
    """1,024 products of 1 times 1 + 1/8 on an accumulator of 8,192: Hopper drops the small parts."""
    engine = load_engine(build_engine())
    a = np.full((ROWS, 32), 0x38, np.uint8)
    b = np.full((N, 32), 0x39, np.uint8)
    sums = []
    for core in (0, BLACKWELL):
        d = np.full((ROWS, N), 8192.5, np.float32)
        for _ in range(32):
            engine.mla_emulator_multiply_on(
                core, 0, 0, N, *(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d))
            )
        sums.append(float(d[0, 0]))
    assert sums[1] == 8192.5 + 1024 * 1.125
    assert sums[0] < sums[1]
