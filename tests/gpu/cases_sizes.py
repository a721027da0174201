"""Sizes: many heads, long and short sequences, lengths around every edge of tiles and rings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tests.gpu import batches, harness
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import UNIFORM_ROW_BOUND, Subject

_LONG_Q = (1, 0, 777, 9000, 0, 130, 2000, 5, 4096, 300, 64, 0, 3)
_LONG_KV = (9000, 50, 0, 8999, 0, 129, 150, 5, 1, 6000, 64, 1, 0)
_HEAD_COUNTS = (1, 2, 3, 8, 16, 20, 64)
_LONGEST_STEP_TEST = 300


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    m, n, flush = under.block_m, under.block_n, under.flush_blocks()
    periods = [*under.ring_depths(), *([] if flush is None else [flush])]
    tiles = sorted({count for s in periods for count in (1, s - 1, s, s + 1, 2 * s + 1)} - {0})
    ring_lens = [count * n - short for count in tiles for short in (0, 3)]
    q_edges, kv_edges = _edges(under.query_tiles()), _edges(under.key_tiles())
    edges = [(q, kv) for q in q_edges for kv in kv_edges]
    step = range(1, _LONGEST_STEP_TEST + 1)
    grids: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        f"KV tile counts {tiles}": ([m + 2] * len(ring_lens), ring_lens),
        "one query on KV tile counts": ([1] * len(ring_lens), ring_lens),
        "lengths around tile edges": ([q for q, _ in edges], [kv for _, kv in edges]),
        "q_len = kv_len = 1..300": (step, step),
        "q_len 1, kv_len 1..300": ([1] * len(step), step),
        "q_len 1..300, kv_len 1": (step, [1] * len(step)),
    }
    cases: dict[str, Case] = {
        "128 heads x 4,096 tokens": functools.partial(_many_heads, under),
        "lengths 0 to 9,000": functools.partial(_long_and_short, under),
        "512 new tokens on 8,192 cached": functools.partial(_cached, under),
    }
    for heads in _HEAD_COUNTS:
        cases[f"{heads} heads"] = functools.partial(_heads, under, heads)
    for name, (q_lens, kv_lens) in grids.items():
        cases[name] = functools.partial(_grid, under, name, q_lens, kv_lens)
        cases[f"{name}, equal logits"] = functools.partial(_uniform_grid, under, name, q_lens, kv_lens)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _edges(tiles: Sequence[int]) -> list[int]:
    """Lengths around 1, 16, 64 and one and two tiles."""
    marks = {16, 64, *tiles, *(2 * tile for tile in tiles)}
    return sorted({1} | {mark + step for mark in marks for step in (-1, 0, 1)})


def _many_heads(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "many heads", [4096], [4096], heads=128)
    out = harness.launch(under, arguments, checks)
    rows = batches.some_rows(4096, 120, under.block_m, 2048)
    harness.judge(under, arguments, out, checks, heads=(0, 63, 127), rows=rows)


def _long_and_short(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "long and short", _LONG_Q, _LONG_KV)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, rows=batches.some_rows(9000, 200, *_LONG_Q))


def _cached(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "cached", [512], [512 + 8192], heads=16)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, heads=(0, 15))


def _heads(under: Subject, heads: int, checks: Checks) -> None:
    arguments = harness.problem(under, f"{heads} heads", [130, 77, 260], [200, 333, 250], heads=heads)
    out = harness.launch(under, arguments, checks)
    last = heads - 1
    harness.judge(
        under, arguments, out, checks, heads=sorted({0, 1, 2, heads // 2, last} & set(range(heads)))
    )


def _grid(under: Subject, name: str, q_lens: Sequence[int], kv_lens: Sequence[int], checks: Checks) -> None:
    arguments = harness.problem(under, name, q_lens, kv_lens)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks)


def _uniform_grid(
    under: Subject, name: str, q_lens: Sequence[int], kv_lens: Sequence[int], checks: Checks
) -> None:
    """All P are equal, so that a row is the mean of the values it sees: a wrong key count shows."""
    arguments = harness.problem(under, f"{name}, equal", q_lens, kv_lens, shape=harness.uniform)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, heads=(1,), row_bound=UNIFORM_ROW_BOUND)
