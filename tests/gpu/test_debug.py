"""The debug build gives right results, and names role, barrier and stage of a wait that never ends."""

from __future__ import annotations

import pytest

from tests.gpu.cases_debug import FAULTS, source_of
from tests.gpu.checks import ARCH, spec_names
from tests.gpu.watched import run_watched

pytestmark = pytest.mark.gpu(ARCH)


def _faults() -> list[tuple[str, str]]:
    """Each spec with each fault that its source has a place for."""
    sources = {spec: source_of(spec) for spec in spec_names()}
    return [(spec, fault) for spec, source in sources.items() for fault in FAULTS if FAULTS[fault] in source]


@pytest.mark.parametrize("spec", spec_names())
def test_the_debug_build_is_right(spec: str) -> None:
    verdict = run_watched("tests.gpu.cases_debug:right", seconds=60, arguments={"spec": spec})
    assert verdict["contract_kept"], verdict
    assert verdict["report"] is None, verdict["report"]


@pytest.mark.parametrize(("spec", "fault"), _faults())
def test_a_barrier_that_never_completes_is_named(spec: str, fault: str) -> None:
    function = "tests.gpu.cases_debug:broken"
    found = run_watched(function, seconds=180, arguments={"spec": spec, "fault": fault})
    assert found["error"], "the launch ended without an error"
    missing = [part for part in ("role", "barrier", "stage") if not found[part]]
    assert not missing, f"the error does not name a known {' and '.join(missing)}: {found['error']}"
