"""Conversions of narrow floats, bit by bit against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.fp8 import bf16_codes, bf16_values, e4m3_codes, e4m3_values, round_to

ALL_BF16 = np.arange(2**16, dtype=np.uint16)


def random_floats(count: int = 400_000) -> np.ndarray:
    """Float32 of every bit pattern, and as many whose exponents are those of e4m3."""
    rng = np.random.default_rng(5)
    patterns = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = np.ldexp(rng.uniform(1, 2, count), rng.integers(-12, 10, count)).astype(np.float32)
    return np.concatenate([patterns, near, -near])


def assert_same_codes(codes: np.ndarray, values: np.ndarray, dtype: type, largest: float) -> None:
    """`codes` must be ml_dtypes' conversion of the clipped `values`; NaN may carry any payload."""
    is_nan = np.isnan(values)
    expected = np.clip(values[~is_nan], -largest, largest).astype(dtype).view(codes.dtype)
    np.testing.assert_array_equal(codes[~is_nan], expected)
    assert np.isnan(codes.view(dtype).astype(np.float32)[is_nan]).all()
    np.testing.assert_array_equal(np.signbit(values), codes >> (8 * codes.itemsize - 1) == 1)


@pytest.mark.parametrize("values", [ALL_BF16.view(ml_dtypes.bfloat16).astype(np.float32), random_floats()])
def test_e4m3_codes_match_ml_dtypes(values: np.ndarray) -> None:
    assert_same_codes(e4m3_codes(values), values, ml_dtypes.float8_e4m3fn, 448.0)


def test_bf16_codes_match_ml_dtypes() -> None:
    values = random_floats()
    assert_same_codes(bf16_codes(values), values, ml_dtypes.bfloat16, float(ml_dtypes.finfo("bfloat16").max))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1.0625, 0x38),  # tie to the even 1.0
        (1.1875, 0x3A),  # tie to the even 1.25
        (2.0**-10, 0x00),  # tie to zero
        (3 * 2.0**-10, 0x02),  # tie between subnormals
        (2.0**-6 - 2.0**-10, 0x08),  # tie to the smallest normal
        (464.0, 0x7E),
        (1e30, 0x7E),
        (np.inf, 0x7E),
        (-np.inf, 0xFE),
        (-0.0, 0x80),
    ],
)
def test_e4m3_ties_and_saturation(value: float, code: int) -> None:
    assert e4m3_codes(np.array([value], dtype=np.float32))[0] == code


def test_e4m3_values_of_all_codes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(e4m3_values(codes), codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_bf16_values_of_all_codes() -> None:
    np.testing.assert_array_equal(bf16_values(ALL_BF16), ALL_BF16.view(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("e4m3", ml_dtypes.float8_e4m3fn), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16)],
)
def test_round_to_matches_the_cast(name: str, dtype: type) -> None:
    values = random_floats()
    values = values[np.isfinite(values)]
    largest = float(ml_dtypes.finfo(dtype).max)
    expected = np.clip(values, -largest, largest).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(round_to(values.astype(np.float64), name), expected)


def test_round_to_rounds_once() -> None:
    just_above_a_tie = np.array([1.0625 + 2.0**-50, -1.0625 - 2.0**-50, np.nan, np.inf])
    np.testing.assert_array_equal(round_to(just_above_a_tie, "e4m3"), [1.125, -1.125, np.nan, 448.0])


def test_round_to_leaves_its_input_alone() -> None:
    values = np.array([0.3])
    assert round_to(values, "bf16")[0] != values[0] == 0.3


def test_round_to_unknown_format() -> None:
    with pytest.raises(ValueError, match="'e5m2', allowed are e4m3, bf16, f16"):
        round_to(np.zeros(1), "e5m2")
