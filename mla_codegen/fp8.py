"""Bit-exact conversions between float32 and e4m3 (fn: no infinities) or bf16, and rounding of float64.

The code functions take float32 or unsigned integer arrays of any array module that follows NumPy's names
(NumPy, CuPy) and work on bit patterns, so every such library gives the same bits. Rounding is to nearest,
ties to even; values beyond the largest finite one, infinities included, saturate to it; NaN stays NaN with
its sign.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from mla_codegen.dtypes import DTYPES

NARROW_DTYPES = ("e4m3", "bf16", "f16")
_MIN_EXPONENT = {"e4m3": -6, "bf16": -126, "f16": -14}  # of the smallest normal number

_F32_INF = 0x7F800000  # bits of float32 infinity; anything above, sign apart, is NaN
_F32_MAX_BF16 = 0x7F7F0000  # bits of the largest finite bf16 as float32
_F32_MIN_NORMAL_E4M3 = 0x3C800000  # bits of 2^-6
_F32_MAGIC = 0x46800000  # bits of 2^14, whose unit in the last place is 2^-9, the smallest e4m3 step
_E4M3_REBIAS = (127 - 7) << 3  # difference of the exponent biases, in units of the e4m3 exponent field


def e4m3_codes(values: Any, xp: ModuleType = np) -> Any:
    """Converts float32 `values` (any shape) to e4m3 codes, uint8 of the same shape.

    Args:
        values: float32 array of the module `xp`.
        xp: array module that owns `values`.
    """
    bits = values.view(xp.uint32)
    magnitude = bits & xp.uint32(0x7FFFFFFF)
    is_nan = magnitude > xp.uint32(_F32_INF)
    odd = (magnitude >> xp.uint32(20)) & xp.uint32(1)
    finite = xp.minimum(magnitude, xp.uint32(_F32_INF))  # keeps the addition below from wrapping
    normal = (finite + xp.uint32(0x7FFFF) + odd) >> xp.uint32(20)
    small = xp.minimum(magnitude, xp.uint32(_F32_MIN_NORMAL_E4M3)).view(xp.float32)
    subnormal = (small + xp.float32(2.0**14)).view(xp.uint32) - xp.uint32(_F32_MAGIC)
    is_normal = magnitude >= xp.uint32(_F32_MIN_NORMAL_E4M3)
    code = xp.where(is_normal, normal - xp.uint32(_E4M3_REBIAS), subnormal)  # a wrapped value is never taken
    code = xp.where(is_nan, xp.uint32(0x7F), xp.minimum(code, xp.uint32(0x7E)))
    return (code | ((bits >> xp.uint32(24)) & xp.uint32(0x80))).astype(xp.uint8)


def bf16_codes(values: Any, xp: ModuleType = np) -> Any:
    """Converts float32 `values` (any shape, of the module `xp`) to bf16 codes, uint16 of the same shape."""
    bits = values.view(xp.uint32)
    magnitude = bits & xp.uint32(0x7FFFFFFF)
    is_nan = magnitude > xp.uint32(_F32_INF)
    finite = xp.minimum(magnitude, xp.uint32(_F32_MAX_BF16))
    odd = (finite >> xp.uint32(16)) & xp.uint32(1)
    code = (finite + xp.uint32(0x7FFF) + odd) >> xp.uint32(16)
    code = xp.where(is_nan, xp.uint32(0x7FC0), code)
    return (code | ((bits >> xp.uint32(16)) & xp.uint32(0x8000))).astype(xp.uint16)


@lru_cache(maxsize=1)
def _e4m3_table() -> np.ndarray:
    """Value of each of the 256 e4m3 codes, float32 [256]."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    normal = np.ldexp(1.0 + fraction / 8.0, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(fraction / 8.0, -6), normal)
    value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    return np.where(code & 0x80, -value, value).astype(np.float32)


def e4m3_values(codes: Any, xp: ModuleType = np) -> Any:
    """Converts e4m3 `codes` (uint8, any shape, of the module `xp`) to float32; both NaN codes give NaN."""
    return xp.asarray(_e4m3_table())[codes]


def bf16_values(codes: Any, xp: ModuleType = np) -> Any:
    """Converts bf16 `codes` (uint16, any shape, of the module `xp`) to float32, exactly."""
    return (codes.astype(xp.uint32) << xp.uint32(16)).view(xp.float32)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds float64 `values` to the nearest number of a narrow format, ties to even, saturating.

    Args:
        values: float64 array of any shape; NaN stays NaN, infinities become the largest finite value.
        dtype: "e4m3", "bf16" or "f16".

    Returns:
        A new float64 array of the same shape; the sign of zeros is not kept.

    Raises:
        ValueError: the format is not one of these.
    """
    if dtype not in NARROW_DTYPES:
        raise ValueError(f"cannot round to {dtype!r}, allowed are {', '.join(NARROW_DTYPES)}")
    form = DTYPES[dtype]
    rounded = np.clip(values, -form.max_finite, form.max_finite)
    # The power of two at or below each value. Adding 1.5 * 2^(52 - mantissa bits) times it pushes the bits
    # that the format does not have out of the float64, with its own rounding to nearest even.
    magic = (rounded.view(np.uint64) & np.uint64(0x7FF0000000000000)).view(np.float64)
    np.maximum(magic, 2.0 ** _MIN_EXPONENT[dtype], out=magic)
    magic *= 1.5 * 2.0 ** (52 - form.mantissa_bits)
    rounded += magic
    rounded -= magic
    return rounded
