"""Every fault of the corpus shows as a hazard or a wrong result in any schedule, correct kernels as none."""

from __future__ import annotations

import pytest

from tests.emulator.faults import BF16, FAULTS, FP8, Fault
from tests.emulator.support import (
    BOUNDS,
    SCHEDULES,
    kernel_of,
    make_problem,
    plan_of,
    relative_error,
    run,
)

LENGTHS = ((192, 70), (290, 90))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_fault_is_caught(fault: Fault) -> None:
    problem = make_problem(fault.kernel, *LENGTHS, 1)
    kernel = fault.build()
    bound = BOUNDS[plan_of(fault.kernel).spec["dtypes"]["qkv"]]
    for seed in range(SCHEDULES):
        report = run(kernel, problem, seed=seed)
        assert report.hazards or not relative_error(report.out, problem.expected) <= bound, f"seed {seed}"


@pytest.mark.parametrize("name", (FP8, BF16))
def test_correct_kernels_show_nothing(name: str) -> None:
    problem = make_problem(name, *LENGTHS, 1)
    for seed in range(SCHEDULES):
        report = run(kernel_of(name), problem, seed=seed)
        assert not report.hazards, report.render()


def test_corpus_is_large_and_its_names_differ() -> None:
    assert len(FAULTS) >= 30
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_reports_name_line_role_barrier_and_field() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no wait for K")
    kernel = fault.build()
    report = run(kernel, make_problem(FP8, *LENGTHS, 1), seed=0)
    race = next(hazard for hazard in report.hazards if hazard.kind == "race")
    lines = kernel.source.splitlines()
    assert race.role.startswith("consumer ")
    assert "kv_smem[stage " in race.message
    assert "bulk tensor load" in race.message
    assert "wgmma_" in lines[race.line - 1]
    assert "cp_async_bulk_tensor_3d" in lines[race.other_line - 1]
    assert f"{FP8}.cu:{race.line}: hazard[race]" in report.render()


def test_a_deadlock_says_who_waits_for_whom() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "16 bytes too few announced for K")
    report = run(fault.build(), make_problem(FP8, *LENGTHS, 1), seed=0)
    (deadlock,) = (hazard for hazard in report.hazards if hazard.kind == "deadlock")
    for part in ("load (warp 0) wait", "k_full[0]", "24560 announced, 24576 in copies", "k_empty[0]"):
        assert part in deadlock.message
