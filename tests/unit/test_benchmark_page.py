"""docs/benchmarks.md is what the committed results say, and these name their run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_page", ROOT / "benchmarks" / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_results() -> None:
    assert load_page().PAGE.read_text(encoding="utf-8") == load_page().page()


def test_a_changed_result_shows(tmp_path: Path) -> None:
    page = load_page()
    for name in page.RUNS.values():
        data = json.loads((page.RESULTS / name).read_text(encoding="utf-8"))
        for row in data.get("rows", []):
            row["burst_tflops"] = row.get("burst_tflops", 0.0) + 1.0
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    assert page.page(tmp_path) != page.page()


@pytest.mark.parametrize("run", load_page().RUNS)
def test_a_result_names_its_run(run: str) -> None:
    page = load_page()
    data = page.load(page.RESULTS, run)
    for name in ("gpu", "driver", "max_sm_clock", "power_limit", "torch", "command"):
        assert data["context"][name]
    command = data["context"]["command"]
    assert command.startswith("python benchmarks/") and " /" not in command
    for row in data.get("rows", []):
        assert row.get("source_digest") or "cudnn" in row["spec"]
