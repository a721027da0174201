"""Runs a function in a child process with a time limit, so that a hanging kernel fails its test by name.

A kernel that waits for a barrier for ever cannot be stopped from inside its process. `run_watched` starts
`python -m tests.gpu.watched module:function`, hands it JSON and takes JSON back.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
"""Top of the checkout."""

_TAIL_LINES = 40
_TERM_SECONDS = 5.0


def run_watched(function: str, *, seconds: float, arguments: Mapping[str, Any] | None = None) -> Any:
    """What `function` (`package.module:name`) returns for `arguments`, both as JSON values.

    Fails the running test where the child takes longer than `seconds` or ends with an error; the message
    names the function and shows the end of what the child printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "tests.gpu.watched",
            function,
            json.dumps(arguments or {}),
            str(result),
        ]
        code, printed = run_command(command, seconds=seconds, name=function)
        if code != 0:
            pytest.fail(f"{function} ends with {code}\n{_tail(printed)}", pytrace=False)
        return json.loads(result.read_text(encoding="utf-8"))


def run_command(command: Sequence[str], *, seconds: float, name: str | None = None) -> tuple[int, str]:
    """Exit code and printed text of a command in the checkout; fails the test where it takes too long."""
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        hanging = f"{name or ' '.join(command)} hangs: no end after {seconds:g} s"
        pytest.fail(f"{hanging}\n{_tail(_stop(child))}", pytrace=False)
    return child.returncode, printed


def child_environment() -> dict[str, str]:
    """The environment of a child: this checkout comes first, what the parent imports from stays."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), inherited] if inherited else [str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def _stop(child: subprocess.Popen[str]) -> str:
    """Ends the child and all that it started; returns what it printed."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(child.pid, ending)
        try:
            printed, _ = child.communicate(timeout=_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return printed
    return "(the child could not be ended)"


def _tail(printed: str) -> str:
    return "\n".join(printed.splitlines()[-_TAIL_LINES:])


def _child(function: str, arguments: str, result: str) -> None:
    module, _, name = function.partition(":")
    value = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    Path(result).write_text(json.dumps(value), encoding="utf-8")


if __name__ == "__main__":
    _child(*sys.argv[1:])
