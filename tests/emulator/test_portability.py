"""Compilers other than g++, and processors and systems that are not at hand: at least everything compiles."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mla_codegen.emulator.compiler import CPP_FOLDER, Compiler
from mla_codegen.emulator.launcher import launcher_source
from tests.emulator.support import GENERATED, plan_of

ZIG = (sys.executable, "-m", "ziglang", "c++")
TARGETS = ("aarch64-linux-gnu", "aarch64-macos", "x86_64-macos", "x86_64-linux-musl")
FLAGS = ("-std=c++20", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w", "-O1", "-c")
FP8 = "dsv3_fp8_sm90"

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs the wheel ziglang, the extra `emulator`"
)


@needs_zig
@pytest.mark.parametrize("target", TARGETS)
def test_engine_and_kernel_compile_for(target: str, tmp_path: Path) -> None:
    (tmp_path / "launcher.cpp").write_text(launcher_source(plan_of(FP8)))
    folders = (f"-I{CPP_FOLDER}", f"-I{GENERATED / FP8}")
    for source in (CPP_FOLDER / "engine.cpp", tmp_path / "launcher.cpp"):
        made = tmp_path / f"{source.stem}.o"
        subprocess.run(
            [*ZIG, "-target", target, *FLAGS, *folders, str(source), "-o", str(made)], check=True, timeout=300
        )
        assert made.stat().st_size > 0


def found_compiler(tmp_path: Path, *, path: str, cxx: str = "", extra: str = "") -> tuple[str, str]:
    """What a fresh Python prints of the compiler that it finds, and its errors."""
    code = (
        f"{extra}\nfrom mla_codegen.emulator import compiler as c\n"
        "c._describe = lambda command: c.Compiler(command=command, machine_flags=(), identity='')\n"
        "found = c.find_compiler()\nprint(found.name, len(found.command))"
    )
    environment = {**os.environ, "PATH": path, "CXX": cxx, "PYTHONPATH": str(GENERATED.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    return done.stdout.strip(), done.stderr


def fake_compilers(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_compilers_are_looked_for_in_their_order(tmp_path: Path) -> None:
    path = fake_compilers(tmp_path, "mine", "g++", "clang++")
    assert found_compiler(tmp_path, path=path, cxx="mine -m64")[0] == "mine 2"
    assert found_compiler(tmp_path, path=path)[0] == "g++ 1"
    (tmp_path / "g++").unlink()
    assert found_compiler(tmp_path, path=path)[0] == "clang++ 1"


def test_a_wrong_cxx_is_named(tmp_path: Path) -> None:
    path = fake_compilers(tmp_path, "g++")
    assert (
        "no C++20 compiler found (looked for absent)" in found_compiler(tmp_path, path=path, cxx="absent")[1]
    )


def test_without_another_compiler_the_wheel_serves(tmp_path: Path) -> None:
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").write_text("")
    assert found_compiler(tmp_path, path="", extra="import sys; sys.path.insert(0, '.')")[0] == "ziglang 4"


def test_a_machine_without_compiler_is_told_what_to_install(tmp_path: Path) -> None:
    printed, errors = found_compiler(tmp_path, path="", extra="import sys; sys.modules['ziglang'] = None")
    assert printed == ""
    assert "no C++20 compiler found" in errors
    assert "install g++ 11 or clang++ 14 or newer, or pip install 'mla-codegen[emulator]'" in errors


def test_the_name_of_a_compiler_is_its_command() -> None:
    assert Compiler(command=("/usr/bin/g++", "-m64"), machine_flags=(), identity="").name == "/usr/bin/g++"
