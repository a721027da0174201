"""How a kernel's result is judged against the float64 reference: error measures and their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mla_codegen.arrays import host_values, to_host
from mla_codegen.tensors import SpecLike, tensor_facts

REL_BOUND = 5e-3  # relative Frobenius error of any kernel
EMULATION_FACTOR = 1.3  # fp8: allowed multiple of the error that rounding P as the kernel does makes
MEAN_V_BOUND = 3e-2  # fp8: relative Frobenius error on values with a mean, at every length
LSE_BOUNDS = {"e4m3": 2e-3, "bf16": 1e-3, "f16": 1e-3}  # absolute, in base e
LSE_RELATIVE = 2.0**-21  # part of |LSE| that is allowed on top

_COORDINATES = 16  # most mismatches that a report lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractBound:
    """Largest errors that keep the contract."""

    rel_frobenius: float
    lse_abs: float  # on top of LSE_RELATIVE * |LSE|


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """Errors of a result; positions where either side is not finite take no part in the numbers."""

    rel_frobenius: float  # ||actual - expected|| / ||expected||
    worst_row: float  # largest ||difference|| / ||expected|| of a row (last axis)
    worst_row_coordinate: tuple[int, ...]
    worst_coordinate: tuple[int, ...]  # of the largest absolute difference
    worst_actual: float
    worst_expected: float
    lse_abs: float | None  # largest absolute difference, None if no LSE was compared
    lse_excess: float | None  # the same after LSE_RELATIVE * |expected| is taken off each difference
    nonfinite_mismatch: tuple[tuple[int, ...], ...]  # first places where inf or NaN differ
    lse_nonfinite_mismatch: tuple[tuple[int, ...], ...]

    def kept(self, bound: ContractBound) -> bool:
        """True if inf and NaN stand in the same places and all errors are within `bound`."""
        if self.nonfinite_mismatch or self.lse_nonfinite_mismatch:
            return False
        lse_kept = self.lse_excess is None or self.lse_excess <= bound.lse_abs
        return self.rel_frobenius <= bound.rel_frobenius and lse_kept


def measure(
    actual: Any, expected: Any, lse: Any = None, expected_lse: Any = None, *, out_dtype: str = "bf16"
) -> ErrorReport:
    """Compares an output, and where given its natural LSE, with the expected ones.

    Args:
        actual: output [..., v] of any array library; uint16 codes are read as `out_dtype`.
        expected: float64 output of the same shape.
        lse, expected_lse: natural LSE of one shape; both or none.
        out_dtype: "bf16", "f16" or "f32".

    Raises:
        ValueError: shapes differ, or only one LSE is given.
    """
    found = host_values(actual, out_dtype).astype(np.float64)
    wanted = np.asarray(expected, dtype=np.float64)
    mismatch = _nonfinite_mismatch("output", found, wanted)
    difference = _finite_difference(found, wanted)
    norms = np.linalg.norm(np.where(np.isfinite(wanted), wanted, 0.0), axis=-1)
    row_norms = np.linalg.norm(difference, axis=-1)
    row_errors = _ratio(row_norms, norms)
    worst = _worst_place(np.abs(difference))
    lse_abs, lse_excess, lse_mismatch = _lse_errors(lse, expected_lse)
    worst_row_place = _worst_place(row_errors)
    return ErrorReport(
        rel_frobenius=float(_ratio(np.linalg.norm(row_norms), np.linalg.norm(norms))),
        worst_row=float(row_errors[worst_row_place]) if row_errors.size else 0.0,
        worst_row_coordinate=worst_row_place,
        worst_coordinate=worst,
        worst_actual=float(found[worst]) if found.size else 0.0,
        worst_expected=float(wanted[worst]) if wanted.size else 0.0,
        lse_abs=lse_abs,
        lse_excess=lse_excess,
        nonfinite_mismatch=mismatch,
        lse_nonfinite_mismatch=lse_mismatch,
    )


def contract_bound(
    spec: SpecLike, *, expected: Any = None, emulated: Any = None, v_has_mean: bool = False
) -> ContractBound:
    """Bounds that a kernel of `spec` must keep on one problem.

    An e4m3 rope beside 16-bit nope has the output's bound of the latter and the LSE's of e4m3: the tensor
    core sums its products to 13 bits.

    Args:
        spec: Spec, plain mapping of one, or path of a YAML file.
        expected, emulated: outputs of `reference` without and with the kernel's `p_rounding`; needed for
            e4m3 unless `v_has_mean`, ignored for bf16 and f16.
        v_has_mean: the values have a mean, for which e4m3 kernels promise 3e-2 at every length.

    Raises:
        ValueError: an e4m3 bound is asked for without both references.
    """
    facts = tensor_facts(spec)
    factors = {facts.qkv_dtype} | ({facts.rope_dtype} if facts.rope else set())
    lse_abs = LSE_BOUNDS["e4m3" if "e4m3" in factors else facts.qkv_dtype]
    if facts.qkv_dtype != "e4m3":
        return ContractBound(rel_frobenius=REL_BOUND, lse_abs=lse_abs)
    if v_has_mean:
        return ContractBound(rel_frobenius=MEAN_V_BOUND, lse_abs=lse_abs)
    if expected is None or emulated is None:
        raise ValueError(
            "an e4m3 bound needs expected and emulated, the references without and with p_rounding"
        )
    rounding = measure(emulated, expected).rel_frobenius
    return ContractBound(rel_frobenius=max(REL_BOUND, EMULATION_FACTOR * rounding), lse_abs=lse_abs)


def _nonfinite_mismatch(name: str, found: np.ndarray, wanted: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """First coordinates where one side is finite and the other not, or where they differ in kind or sign."""
    if found.shape != wanted.shape:
        raise ValueError(f"{name} has shape {found.shape} where {wanted.shape} is expected")
    both_finite = np.isfinite(found) & np.isfinite(wanted)
    same = both_finite | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    places = np.argwhere(~same)[:_COORDINATES]
    return tuple(tuple(int(i) for i in place) for place in places)


def _finite_difference(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Difference where both sides are finite, else 0."""
    finite = np.isfinite(found) & np.isfinite(wanted)
    return np.subtract(found, wanted, out=np.zeros_like(wanted), where=finite)


def _ratio(error: Any, norm: Any) -> Any:
    """error / norm; 0 where the error is 0, inf where only the norm is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, np.divide(error, norm))


def _worst_place(values: np.ndarray) -> tuple[int, ...]:
    """Coordinate of the largest element; zeros for an empty array."""
    if values.size == 0:
        return (0,) * values.ndim
    return tuple(int(i) for i in np.unravel_index(int(values.argmax()), values.shape))


def _lse_errors(
    lse: Any, expected_lse: Any
) -> tuple[float | None, float | None, tuple[tuple[int, ...], ...]]:
    """Largest absolute difference, largest excess over the relative part, and non-finite mismatches."""
    if lse is None and expected_lse is None:
        return None, None, ()
    if lse is None or expected_lse is None:
        given = "expected_lse" if lse is None else "lse"
        raise ValueError(f"only {given} is given, give lse and expected_lse or neither")
    found, wanted = to_host(lse).astype(np.float64), np.asarray(expected_lse, dtype=np.float64)
    mismatch = _nonfinite_mismatch("lse", found, wanted)
    difference = np.abs(_finite_difference(found, wanted))
    slack = LSE_RELATIVE * np.where(np.isfinite(wanted), np.abs(wanted), 0.0)
    excess = np.maximum(difference - slack, 0.0)
    return float(difference.max(initial=0.0)), float(excess.max(initial=0.0)), mismatch
