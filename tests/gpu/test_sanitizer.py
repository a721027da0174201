"""compute-sanitizer finds nothing in small launches of each kernel."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gpu.checks import ARCH, spec_names
from tests.gpu.watched import run_command

pytestmark = pytest.mark.gpu(ARCH)

_TOOL = "compute-sanitizer"
_NO_ERRORS = "========= ERROR SUMMARY: 0 errors"
_CLEAN = {
    "memcheck": _NO_ERRORS,
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "initcheck": _NO_ERRORS,
    "synccheck": _NO_ERRORS,
}
"""What each tool prints last where it found nothing."""

_REFUSALS = (
    "device not supported",
    "device is not supported",
    "unsupported device",
    "insufficient permissions",
)
_SECONDS = 120


@pytest.mark.skipif(shutil.which(_TOOL) is None, reason=f"{_TOOL} is not on PATH")
@pytest.mark.parametrize("spec", spec_names())
def test_the_sanitizer_finds_nothing(spec: str) -> None:
    """All tools at once: each spends most of its time on one CPU core."""
    with ThreadPoolExecutor(len(_CLEAN)) as pool:
        runs = {tool: pool.submit(_printed, tool, spec) for tool in _CLEAN}
    printed = {tool: run.result() for tool, run in runs.items()}
    refused = [tool for tool, text in printed.items() if any(words in text.lower() for words in _REFUSALS)]
    if refused:
        pytest.skip(f"{_TOOL} refuses this device for {', '.join(refused)}")
    for tool, text in printed.items():
        assert _CLEAN[tool] in text.splitlines(), f"{tool} of {spec}:\n{text[-6000:]}"


def _printed(tool: str, spec: str) -> str:
    """What a tool prints; fails where the launches do not end or give wrong results."""
    command = [_TOOL, "--tool", tool, sys.executable, "-m", "tests.gpu.sanitized", spec]
    if tool == "racecheck":
        command.append("--every-lane-arrives")  # what racecheck cannot follow otherwise: see there
    code, printed = run_command(command, seconds=_SECONDS)
    if code != 0 and _CLEAN[tool] in printed:
        pytest.fail(f"the launches under {tool} end with {code}\n{printed[-6000:]}", pytrace=False)
    return printed
