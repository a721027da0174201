"""What the cases of a topic found: recorded in the child process, asserted in the parent."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.gpu.watched import ROOT, run_watched

ARCH = "sm_90a"

_TRACEBACK_FRAMES = 6
_ALIVE = "the device is usable afterwards"


_BASE = {"dims": {"nope": 128, "rope": 64, "v": 128}, "layout": {"q": "ragged", "kv": "ragged", "v": "rows"}}


def shipped_names(arch: str = ARCH) -> list[str]:
    """The specs of the checkout that are for `arch`, by name."""
    return [name for name, spec in _shipped().items() if spec["arch"] == arch]


def spec_names(arch: str = ARCH) -> list[str]:
    """Those of the shipped specs that all topics are written for; the others are run with `pairs`."""
    return [name for name in shipped_names(arch) if _is_base(_shipped()[name])]


def _shipped() -> dict[str, Any]:
    files = sorted((ROOT / "specs").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def _is_base(spec: Mapping[str, Any]) -> bool:
    """Ragged, with V in rows, the default dimensions, no LSE, and rope prescaled where there are scales."""
    plain = "softmax" not in spec and spec.get("scales", {}).get("rope") != "raw"
    return plain and {key: spec[key] for key in _BASE} == _BASE


def spec_path(name: str) -> Path:
    return ROOT / "specs" / f"{name}.yaml"


class Checks:
    """The findings of one case; each is a JSON object with what was found and what is allowed."""

    def __init__(self) -> None:
        """Starts with nothing found."""
        self.findings: list[dict[str, Any]] = []

    def at_most(self, what: str, found: float, allowed: float, where: str = "") -> None:
        """`found` is no NaN and not above `allowed`."""
        self._add(what, found <= allowed, f"{found:.4g}", f"at most {allowed:.4g}", where)

    def at_least(self, what: str, found: float, needed: float, where: str = "") -> None:
        """`found` is no NaN and not below `needed`."""
        self._add(what, found >= needed, f"{found:.4g}", f"at least {needed:.4g}", where)

    def equal(self, what: str, found: object, wanted: object, where: str = "") -> None:
        """`found` is exactly what is wanted."""
        self._add(what, found == wanted, repr(found), repr(wanted), where)

    def true(self, what: str, kept: object, where: str = "") -> None:
        """Something holds."""
        self._add(what, bool(kept), "no", "yes", where)

    def _add(self, what: str, kept: bool, found: str, allowed: str, where: str) -> None:
        finding = {"what": what, "kept": bool(kept), "found": found, "allowed": allowed, "where": where}
        self.findings.append(finding)


Case: TypeAlias = Callable[[Checks], None]


def run_cases(
    cases: Mapping[str, Case], *, device_is_alive: Callable[[], bool]
) -> dict[str, list[dict[str, Any]]]:
    """Runs all cases; an exception is a finding of its case, after a dead device no further case runs.

    The name of each case is printed first, so that the end of a hanging child's output names the case.
    """
    results = {}
    for name, case in cases.items():
        print(f"case {name}", flush=True)
        checks = Checks()
        start = time.perf_counter()
        try:
            case(checks)
        except Exception as error:
            checks.true("it runs", False, _summary(error))
        print(f"  {time.perf_counter() - start:.2f} s", flush=True)
        results[name] = checks.findings
        if not device_is_alive():
            checks.true(_ALIVE, False)
            break
    return results


def assert_kept(results: Mapping[str, list[dict[str, Any]]]) -> None:
    """Every case found something and nothing that is not allowed; the message has a line per fault."""
    assert results, "no case ran"
    silent = [name for name, findings in results.items() if not findings]
    assert not silent, f"cases without any check: {', '.join(silent)}"
    faults = [
        f"{name}: {finding['what']}: found {finding['found']}, allowed {finding['allowed']}"
        + (f" ({finding['where']})" if finding["where"] else "")
        for name, findings in results.items()
        for finding in findings
        if not finding["kept"]
    ]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)


def assert_topics(*topics: str, spec: str, seconds: float) -> None:
    """Runs all cases of each `tests.gpu.cases_<topic>` for a spec in one watched child and asserts them."""
    arguments = {"topics": topics, "spec": spec}
    assert_kept(run_watched("tests.gpu.checks:run_topics", seconds=seconds, arguments=arguments))


def run_topics(topics: Sequence[str], spec: str) -> dict[str, list[dict[str, Any]]]:
    """In the child: the findings of all topics; none after one that left the device dead."""
    results: dict[str, list[dict[str, Any]]] = {}
    for topic in topics:
        found = importlib.import_module(f"tests.gpu.cases_{topic}").run(spec)
        results |= {f"{topic}: {name}": findings for name, findings in found.items()}
        if any(finding["what"] == _ALIVE for findings in found.values() for finding in findings):
            break
    return results


def _summary(error: Exception) -> str:
    """The exception and the innermost frames that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[-_TRACEBACK_FRAMES:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {error} at {places}"
