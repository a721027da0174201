"""Tensor memory in small kernels: widths of loads and stores, and orders that hold or do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.small import run_small, source_with

POLICIES = (0, 1, 2)


@pytest.mark.parametrize(
    ("store", "load", "words", "halves"),
    [
        (2, 128, False, False),
        (8, 64, True, False),
        (16, 32, True, False),
        (32, 16, False, False),
        (64, 8, True, False),
        (128, 2, False, False),
        (16, 8, False, True),
        (32, 32, True, True),
        (64, 64, False, True),
    ],
)
def test_widths_of_loads_and_stores(store: int, load: int, words: bool, halves: bool) -> None:
    source = np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
    out = np.full((128, 128), np.nan, np.float32)
    constants = {
        "kStore": str(store),
        "kLoad": str(load),
        "kWords": str(words).lower(),
        "kHalves": str(halves).lower(),
    }
    for policy in POLICIES:
        result = run_small(
            "tensor_transfers",
            source_with("tensor_transfers", constants),
            arrays={"source": source, "out": out},
            policy=policy,
        )
        assert not result.hazards
        assert np.array_equal(out, by_registers(source) if halves else source)


def by_registers(rows: np.ndarray) -> np.ndarray:
    """What the threads get of each half of their warp's lanes: of every 8 columns 2 of two rows."""
    thread, half, register = np.indices((128, 2, 64))
    row = thread // 32 * 32 + half * 16 + thread % 32 // 4 + register % 4 // 2 * 8
    return rows[row, register // 4 * 8 + thread % 4 * 2 + register % 2].reshape(128, 128)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (0, ""),
        (1, "race"),
        (2, "race"),
        (3, ""),
        (4, ""),
        (5, "race"),
        (6, ""),
        (7, "proxy-fence"),
        (8, "uninitialised"),
        (9, "at-exit"),
        (10, "tcgen05-wait"),
        (11, ""),
        (12, "race"),
        (13, "race"),
        (14, ""),
        (20, "race"),
        (21, ""),
        (30, "tcgen05-wait"),
        (31, ""),
        (32, ""),
        (33, "tcgen05-wait"),
        (34, "tcgen05-wait"),
        (35, "at-exit"),
        (36, "tcgen05-wait"),
        (37, "tmem"),
        (38, "divergence"),
        (39, "tmem"),
        (40, "uninitialised"),
        (41, "at-exit"),
        (50, ""),
        (51, "race"),
        (52, "tcgen05-fence"),
        (53, "tcgen05-fence"),
        (54, "tcgen05-wait"),
        (60, "tmem"),
        (61, ""),
        (62, "tmem"),
        (63, ""),
        (64, "race"),
    ],
)
def test_orders(case: int, kind: str, policy: int) -> None:
    source = source_with("tensor_orders", {"kCase": str(case)})
    for seed in range(4):
        out = np.zeros(256, np.float32)
        result = run_small(
            "tensor_orders",
            source,
            arrays={"out": out},
            threads=256,
            smem_bytes=49152,
            seed=seed,
            policy=policy,
        )
        kinds = {hazard.kind for hazard in result.hazards}
        assert kind in kinds if kind else not kinds, result.hazards
