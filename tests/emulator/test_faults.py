"""Every fault of the corpus shows as a hazard or a wrong result in any schedule, correct kernels as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.emulator import EmulatedKernel
from tests.emulator.fault import Fault, form_plan, form_source
from tests.emulator.faults import BF16, FAULTS, FP8
from tests.emulator.form_faults import FORM_FAULTS
from tests.emulator.form_problems import form_problem
from tests.emulator.support import BOUNDS, SCHEDULES, Problem, kernel_of, make_problem, relative_error, run
from tests.forms import FORMS

DOCUMENTED = Path(__file__).parents[2] / "docs" / "emulator.md"
LENGTHS = ((192, 70), (290, 90))
ALL_FAULTS = FAULTS + FORM_FAULTS
FAULTY_FORMS = sorted({fault.kernel for fault in FORM_FAULTS})


def problem_of(kernel: str) -> Problem:
    return form_problem(kernel, *LENGTHS) if kernel in FORMS else make_problem(kernel, *LENGTHS, 1)


@pytest.mark.parametrize("fault", ALL_FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_fault_is_caught(fault: Fault) -> None:
    problem, kernel = problem_of(fault.kernel), fault.build()
    found = [fault.found_as(kernel, problem, seed=seed) for seed in range(SCHEDULES)]
    assert all(found), f"not found under the seeds {[seed for seed, kind in enumerate(found) if not kind]}"


@pytest.mark.parametrize("name", (FP8, BF16))
def test_correct_kernels_show_nothing(name: str) -> None:
    problem = make_problem(name, *LENGTHS, 1)
    for seed in range(SCHEDULES):
        report = run(kernel_of(name), problem, seed=seed)
        assert not report.hazards, report.render()


@pytest.mark.parametrize("name", FAULTY_FORMS)
def test_correct_forms_show_nothing(name: str) -> None:
    """On the problem on which their faults are found, with the bound that finds them."""
    problem, kernel = form_problem(name, *LENGTHS), EmulatedKernel(form_plan(name), form_source(name))
    bound = BOUNDS[form_plan(name).spec["dtypes"]["qkv"]]
    for seed in range(SCHEDULES):
        report = run(kernel, problem, seed=seed)
        assert not report.hazards, report.render()
        assert relative_error(report.out, problem.expected) <= bound


def test_corpus_is_large_and_its_names_differ() -> None:
    assert len(ALL_FAULTS) >= 100
    assert len({fault.name for fault in ALL_FAULTS}) == len(ALL_FAULTS)


def test_the_documented_faults_are_these() -> None:
    text = DOCUMENTED.read_text().partition("## Faults that it finds")[2]
    rows = [line.split(" | ")[1:3] for line in text.splitlines() if line.startswith("|")][2:]
    short = {FP8: "fp8", BF16: "bf16"}
    assert rows == [[fault.name, short.get(fault.kernel, f"`{fault.kernel}`")] for fault in ALL_FAULTS]
    assert f"All {len(ALL_FAULTS)} are found" in text


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
