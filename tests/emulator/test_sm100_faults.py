"""Every fault of the Blackwell kernels shows as a hazard or a wrong result in any schedule."""

from __future__ import annotations

import pytest

from tests.emulator.fault import Fault
from tests.emulator.sm100_faults import SM100_FAULTS
from tests.emulator.support import make_problem

LENGTHS = ((300, 100), (700, 1100))
"""2Q with 6 blocks, which its rings of 3 see twice; 1Q with 9, and a last block that ends within it."""
SEEDS = range(6)
"""Twice each of the three policies."""


@pytest.mark.parametrize("fault", SM100_FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_fault_is_caught(fault: Fault) -> None:
    problem, kernel = make_problem(fault.kernel, *LENGTHS, 1), fault.build()
    missed = [seed for seed in SEEDS if not fault.found_as(kernel, problem, seed=seed)]
    assert not missed, f"not found under the seeds {missed}"


def test_the_corpus_is_large_and_its_names_differ() -> None:
    assert len({fault.name for fault in SM100_FAULTS}) == len(SM100_FAULTS) >= 70
