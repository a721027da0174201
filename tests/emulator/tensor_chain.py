"""The kernel `tensor_chain.cu` on a problem, and what it should give."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mla_codegen.emulator.native import RunResult
from tests.emulator.small import aligned, run_small, source_with, tensor_map

ROWS, KEYS, BLOCK_N, BLOCKS, DEPTH = 128, 300, 64, 5, 64
BOUND = 4e-3
"""Largest error of the output, bf16, in parts of its largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Operands whose scores are exact in fp32, NaN behind the keys, and O of float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scales: np.ndarray
    expected: np.ndarray
    swizzle_bytes: int


@functools.cache
def chain_problem(*, fp8: bool) -> Chain:
    """O halves with every block and gets P V of its keys; P is rounded to the type of Q."""
    dtype = ml_dtypes.float8_e4m3fn if fp8 else ml_dtypes.bfloat16
    rng = np.random.default_rng(3)

    def quarters(rows: int) -> np.ndarray:
        return aligned((rng.integers(-4, 5, (rows, DEPTH)) / 4).astype(np.float32).astype(dtype))

    q, k, v = quarters(ROWS), quarters(BLOCKS * BLOCK_N), quarters(BLOCKS * BLOCK_N)
    scales = aligned((rng.integers(1, 5, BLOCKS * BLOCK_N) / 4).astype(np.float32))
    for behind in (k, v, scales):
        behind[KEYS:] = np.nan
    expected = np.zeros((ROWS, DEPTH))
    for first in range(0, KEYS, BLOCK_N):
        keys = slice(first, min(first + BLOCK_N, KEYS))
        s = (q.astype(np.float64) @ k[keys].astype(np.float64).T).astype(np.float32)
        p = (s * scales[keys]).astype(dtype).astype(np.float64)
        expected = expected / 2 + p @ v[keys].astype(np.float64)
    return Chain(q=q, k=k, v=v, scales=scales, expected=expected, swizzle_bytes=64 if fp8 else 128)


@functools.cache
def chain_source(*, fp8: bool) -> str:
    """The kernel for one of its two types."""
    return source_with("tensor_chain", {"kFp8": str(fp8).lower()})


def run_chain(
    source: str, problem: Chain, *, seed: int, policy: int | None = None, rows: int = ROWS
) -> tuple[RunResult, float]:
    """One schedule: what the engine reports, and the error of the output; infinite where it is not finite."""
    out = aligned(np.full((1, ROWS, DEPTH), np.nan, ml_dtypes.bfloat16))
    row_box = (DEPTH, BLOCK_N)
    maps = [
        tensor_map(problem.q, (DEPTH, ROWS), problem.swizzle_bytes),
        tensor_map(problem.k, row_box, problem.swizzle_bytes),
        tensor_map(problem.v, row_box, problem.swizzle_bytes),
        tensor_map(problem.scales, (BLOCK_N,)),
        tensor_map(out, (DEPTH, ROWS, 1)),
    ]
    result = run_small(
        "tensor_chain",
        source,
        arrays={},
        numbers={"rows": rows},
        maps=maps,
        mapped=[problem.q, problem.k, problem.v, problem.scales, out],
        threads=192,
        seed=seed,
        policy=seed % 3 if policy is None else policy,
    )
    values = out[0].astype(np.float64)
    if not np.isfinite(values).all():
        return result, float("inf")
    return result, float(np.abs(values - problem.expected).max() / np.abs(problem.expected).max())
