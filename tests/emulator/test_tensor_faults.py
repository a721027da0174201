"""Faults of the kernel with tensor memory show in any schedule, as what they are; itself shows nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from mla_codegen.emulator.names import PlanNames
from tests.emulator.support import SCHEDULES
from tests.emulator.tensor_chain import BOUND, chain_problem, chain_source, run_chain
from tests.emulator.tensor_fault import TensorFault
from tests.emulator.tensor_faults import TENSOR_FAULTS

DOCUMENTED = Path(__file__).parents[2] / "docs" / "emulator.md"


@pytest.mark.parametrize("fault", TENSOR_FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_fault_is_caught_as_what_it_is(fault: TensorFault) -> None:
    source = fault.source()
    found = {seed: fault.found_as(source, seed=seed) for seed in range(SCHEDULES)}
    assert set(found.values()) <= set(fault.kinds), found


@pytest.mark.parametrize("fp8", (False, True))
def test_the_correct_kernel_shows_nothing(fp8: bool) -> None:
    for seed in range(3 * SCHEDULES):
        result, error = run_chain(chain_source(fp8=fp8), chain_problem(fp8=fp8), seed=seed)
        assert not result.hazards, result.hazards
        assert error <= BOUND
        assert result.counters["tcgen05"] == (20 if fp8 else 40)


def test_it_may_end_before_it_allocates() -> None:
    result, _ = run_chain(chain_source(fp8=False), chain_problem(fp8=False), seed=0, rows=0)
    assert not result.hazards


def test_results_are_those_of_any_schedule() -> None:
    errors = {run_chain(chain_source(fp8=True), chain_problem(fp8=True), seed=seed)[1] for seed in range(6)}
    assert len(errors) == 1


def test_names_differ_and_are_many() -> None:
    assert len({fault.name for fault in TENSOR_FAULTS}) == len(TENSOR_FAULTS) >= 60


def test_the_documented_faults_are_these() -> None:
    text = (
        DOCUMENTED.read_text().partition("## Faults of tensor memory that it finds")[2].partition("\n## ")[0]
    )
    rows = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == [fault.name for fault in TENSOR_FAULTS]
    for (_, found), fault in zip(rows, TENSOR_FAULTS, strict=True):
        kinds = {re.sub(r" \d+$", "", part.strip(" |")) for part in found.split(",")}
        assert kinds <= set(fault.kinds)
    assert f"All {len(TENSOR_FAULTS)} are found" in text


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("no wait::st of P", ("operand A of a tcgen05.mma at @c0, lanes 0 to 15", "the tcgen05.st by @t")),
        ("no fence::before ahead of p_ready", ("fence::before_thread_sync, between wait and barrier",)),
        ("no fence::after behind s_full", ("fence::after_thread_sync", "the tcgen05.mma by @t")),
        ("no dealloc", ("the CTA ends without a tcgen05.dealloc of 128 columns",)),
        ("another warp's lanes", ("of warp ", " reaches lanes ")),
        ("V released ahead of its products", ("tcgen05.mma at line", "its commit is not ordered before")),
        ("two allocs that do not fit", ("wait in tcgen05.alloc 512",)),
    ],
)
def test_reports_say_what_and_where(name: str, parts: tuple[str, ...]) -> None:
    fault = next(fault for fault in TENSOR_FAULTS if fault.name == name)
    result, _ = run_chain(fault.source(), chain_problem(fp8=fault.fp8), seed=1)
    for part in parts:
        assert part in result.hazards[0].text


def test_columns_have_the_names_of_their_regions() -> None:
    regions = (("s0", 0, 128), ("p0", 0, 32), ("o0", 256, 128))
    variant = SimpleNamespace(mbarriers=(), smem=SimpleNamespace(fields=()), roles=())
    names = PlanNames(variant, (), tmem=regions)  # type: ignore[arg-type]
    assert names.text("at @c5, lanes 0") == "at tensor memory s0 + 5 = p0 + 5, lanes 0"
    assert names.text("at @c40 and @c300") == "at tensor memory s0 + 40 and tensor memory o0 + 44"
    assert names.text("at @c200") == "at tensor-memory column 200"
