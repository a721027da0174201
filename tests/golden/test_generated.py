"""generated/ is what the specs, the planner and the templates give, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mla_codegen import emit
from mla_codegen.build import kernel_names, plan_files
from mla_codegen.template_lint import MAX_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
GENERATED = ROOT / "generated"
HELP = "run: mla-codegen build specs/*.yaml, and look at the difference before committing it"


def test_there_are_specs() -> None:
    assert SPECS


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_generated_files_are_up_to_date(spec: Path) -> None:
    for planned in plan_files([spec]):
        changes = emit.check(emit.products(planned.plan, planned.quantizer), GENERATED)
        stale = [change.diff for change in changes if change.verb != "unchanged"]
        assert not stale, "\n".join([HELP, *stale])[:20_000]


def test_every_folder_has_a_spec() -> None:
    assert emit.orphans(GENERATED, kernel_names(ROOT / "specs")) == ()


def test_folders_hold_the_products_only() -> None:
    tracked = {".cu", ".json", ".py"}
    extra = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(GENERATED.glob("**/*"))
        if path.is_file()
        and path.suffix not in (*tracked, ".pyc", ".cubin")
        and not path.name.endswith(".cubin.json")
    ]
    assert extra == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_generated_source_keeps_the_house_style(spec: Path) -> None:
    for planned in plan_files([spec]):
        files = emit.products(planned.plan, planned.quantizer)
        for source in (file.text for file in files if file.path.suffix == ".cu"):
            wide = [line for line in source.splitlines() if len(line) > MAX_COLUMNS]
            assert wide == []
            assert "\n\n\n" not in source
            assert "TODO" not in source
            assert not [word for word in ("/home/", "/root/", "/tmp/") if word in source]


def test_a_hand_edit_shows() -> None:
    name = SPECS[0].stem
    source = (GENERATED / name / f"{name}.cu").read_bytes()
    plan = json.loads((GENERATED / name / "plan.json").read_text(encoding="utf-8"))
    assert plan["source_digest"] == hashlib.sha256(source).hexdigest()
    assert plan["source_digest"] != hashlib.sha256(source + b" ").hexdigest()


def test_products_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "4242"):
        out = tmp_path / seed
        command = ["-m", "mla_codegen", "build", "--no-compile", "--out", str(out), *map(str, SPECS)]
        subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=120,
        )
        texts = [path.read_bytes() for path in sorted(out.glob("*/*")) if path.is_file()]
        digests.add(hashlib.sha256(b"\0".join(texts)).hexdigest())
    assert len(digests) == 1
