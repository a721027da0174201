"""Built folders, and where their cubins come from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mla_codegen.digest import sha256
from mla_codegen.errors import CompileError, LaunchError
from mla_codegen.loading import load
from mla_codegen.plan.model import Plan
from mla_codegen.runtime import load_kernel
from mla_codegen.runtime.build import KernelBuild
from mla_codegen.runtime.stored import read_stored, write_stored
from tests.unit.plan_fixture import make_plan
from tests.unit.test_cache import StubCompiler, make_cache

SOURCE = "// tiny\n"


def built_folder(folder: Path) -> Plan:
    plan = dataclasses.replace(make_plan(debug=True), source_digest=sha256(SOURCE.encode()))
    folder.mkdir()
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "tiny.cu").write_text(SOURCE)
    return plan


def test_built_folder_gives_its_kernel(tmp_path: Path) -> None:
    plan = built_folder(tmp_path / "tiny")
    kernel = load_kernel(tmp_path / "tiny")
    assert kernel.source == SOURCE
    assert kernel.plan["source_digest"] == plan.source_digest


def test_edited_source_is_refused(tmp_path: Path) -> None:
    plan = built_folder(tmp_path / "tiny")
    (tmp_path / "tiny" / "tiny.cu").write_text(SOURCE + "// edited\n")
    with pytest.raises(LaunchError) as caught:
        load_kernel(tmp_path / "tiny")
    assert f"plan.json says {(plan.source_digest or '')[:12]}" in str(caught.value)
    assert caught.value.diagnostics[0].code == "mismatched-pair"


@pytest.mark.parametrize("name", ["plan.json", "tiny.cu"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    built_folder(tmp_path / "tiny")
    (tmp_path / "tiny" / name).unlink()
    with pytest.raises(LaunchError, match=rf"{name} cannot be read: no such file or directory"):
        load_kernel(tmp_path / "tiny")


@pytest.mark.parametrize("text", ["{}", "not json", "[]"])
def test_damaged_plan_is_refused(tmp_path: Path, text: str) -> None:
    built_folder(tmp_path / "tiny")
    (tmp_path / "tiny" / "plan.json").write_text(text)
    with pytest.raises(LaunchError, match="is not a plan that this version reads"):
        load_kernel(tmp_path / "tiny")


def test_cubin_beside_the_source_needs_no_compiler(tmp_path: Path) -> None:
    plan = built_folder(tmp_path / "tiny")
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log")
    result = StubCompiler(tmp_path / "other")(SOURCE, arch="sm_90a", name="tiny")
    write_stored(tmp_path / "tiny", "tiny", SOURCE, result)
    build = KernelBuild(plan, SOURCE, cache=cache, folder=tmp_path / "tiny", may_compile=False)
    assert build.get().cubin == result.cubin
    assert compiler.count() == 0
    assert read_stored(tmp_path / "tiny", "tiny", SOURCE + " ") is None


def test_late_compile_can_be_forbidden(tmp_path: Path) -> None:
    plan = built_folder(tmp_path / "tiny")
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log")
    build = KernelBuild(plan, SOURCE, cache=cache, may_compile=False)
    assert build.find() is None
    with pytest.raises(CompileError, match="compile='never' forbids to do it now"):
        build.get()
    KernelBuild(plan, SOURCE, cache=cache).get()
    assert build.get().cubin
    assert compiler.count() == 1


def test_load_takes_a_built_folder(tmp_path: Path) -> None:
    built_folder(tmp_path / "tiny")
    assert load(tmp_path / "tiny").source == SOURCE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "cpu"}, "backend is 'cpu', gpu or emulator or auto is allowed"),
        ({"compile": "late"}, "compile is 'late', 'auto' or 'never' is allowed"),
        ({"debug": True}, "is a built folder, a debug build is rendered from a spec"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    built_folder(tmp_path / "tiny")
    with pytest.raises(LaunchError, match=said):
        load(tmp_path / "tiny", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["gpu", "emulator"])
@pytest.mark.parametrize(("source", "kind"), [({}, "dict"), (None, "NoneType"), (b"a.yaml", "bytes")])
def test_load_of_something_else_is_refused(source: Any, kind: str, backend: str) -> None:
    for given in (source, [source]):
        with pytest.raises(LaunchError, match=f"load got an object of type {kind}, the path of a spec or of"):
            load(given, backend=backend)


def test_compile_is_an_option_of_the_emulator_too(tmp_path: Path) -> None:
    built_folder(tmp_path / "tiny")
    kernel = load(tmp_path / "tiny", backend="emulator", compile="never")
    assert not kernel.is_compiled()
    with pytest.raises(CompileError, match="compile='never' forbids to do it now"):
        kernel.warmup()
    with pytest.raises(LaunchError, match="compile is 'late', 'auto' or 'never' is allowed"):
        load(tmp_path / "tiny", backend="emulator", compile="late")


def test_load_of_nothing_is_refused() -> None:
    with pytest.raises(LaunchError, match="empty list"):
        load([])
