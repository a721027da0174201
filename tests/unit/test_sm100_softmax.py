"""Numbers of the Blackwell softmax: the polynomial that stands in for a part of the exponentials."""

from __future__ import annotations

import numpy as np

from mla_codegen.plan.sm100.softmax import EXP2_COEFFICIENTS, EXP2_ERROR, EXP2_ROUND_TO_INTEGER


def minimax(degree: int, rounds: int = 40) -> tuple[np.ndarray, float]:
    """The polynomial with the smallest largest relative error of 2^f on [0, 1], by the exchange algorithm.

    In each round it is fitted so that its error alternates at degree + 2 points, which then move to where the
    error is largest.
    """
    points = 0.5 - 0.5 * np.cos(np.pi * np.arange(degree + 2) / (degree + 1))
    grid = np.linspace(0.0, 1.0, 100_001)
    powers = np.arange(degree + 1)
    for _ in range(rounds):
        signs = (-1.0) ** np.arange(degree + 2)
        rows = np.column_stack([points[:, None] ** powers / 2.0 ** points[:, None], signs])
        coefficients = np.linalg.solve(rows, np.ones(degree + 2))[:-1]
        error = grid[:, None] ** powers @ coefficients / 2.0**grid - 1.0
        turns = np.flatnonzero(np.diff(np.sign(np.diff(error)))) + 1
        points = grid[np.concatenate([[0], turns, [grid.size - 1]])]
        assert points.size == degree + 2
    return coefficients, float(np.abs(error).max())


def test_the_coefficients_are_those_of_the_best_polynomial() -> None:
    best, error = minimax(3)
    assert np.allclose(EXP2_COEFFICIENTS, best, rtol=2e-6)
    assert all(float(np.float32(value)) == value for value in EXP2_COEFFICIENTS)
    assert error < EXP2_ERROR < 1.01 * error


def polynomial_exp2(x: np.ndarray) -> np.ndarray:
    """What the kernel's ``exp2_polynomial`` does, instruction by instruction."""
    clamped = np.maximum(x, np.float32(-126.0))
    exact = clamped.astype(np.float64) + EXP2_ROUND_TO_INTEGER
    shifted = np.floor(exact).astype(np.float32)  # a number of 2^23 and more has no fraction
    f = clamped - (shifted - np.float32(EXP2_ROUND_TO_INTEGER))
    p = np.float32(EXP2_COEFFICIENTS[3])
    for power in (2, 1, 0):
        p = (p.astype(np.float64) * f + EXP2_COEFFICIENTS[power]).astype(np.float32)
    bits = p.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)


def test_the_polynomial_is_within_its_error_and_small_where_exponentials_are() -> None:
    x = np.concatenate([np.linspace(-125.9, 20.0, 400_001), np.arange(-125.0, 21.0)]).astype(np.float32)
    expected = 2.0 ** x.astype(np.float64)
    assert np.abs(polynomial_exp2(x) / expected - 1.0).max() < EXP2_ERROR + 2e-7
    tiny = polynomial_exp2(np.array([-np.inf, -1e30, -200.0, -127.0, -126.0, -125.99], np.float32))
    assert (tiny >= 0.0).all() and (tiny <= 2.0**-125.9).all()
