"""Compiling the engine and kernels with the machine's C++ compiler, each once: the cache goes by content."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mla_codegen.digest import sha256, short
from mla_codegen.errors import CompileError
from mla_codegen.files import cache_folder, write_atomically

CPP_FOLDER = Path(__file__).parent / "cpp"
"""The engine's sources and the host model that kernels include."""

_COMMON_FLAGS = ("-std=c++20", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_ENGINE_FLAGS = ("-O2",)
_KERNEL_FLAGS = ("-O1",)
# A kernel leaves the engine's symbols open until it is loaded; only macOS has to be told.
_SHARED_FLAGS = ("-shared", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
_COMPILERS = ("g++", "clang++", "c++")
_ZIG = (sys.executable, "-m", "ziglang", "c++")
"""The compiler of the extra `emulator`."""
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A compiler command, the flags for this machine's processor, and what tells it from others."""

    command: tuple[str, ...]
    machine_flags: tuple[str, ...]
    identity: str

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return _name(self.command)


@functools.cache
def find_compiler() -> Compiler:
    """$CXX, else g++, clang++, c++ or the wheel ziglang; CompileError where there is none."""
    chosen = os.environ.get("CXX")
    candidates = [_split(chosen)] if chosen else [(name,) for name in _COMPILERS]
    for command in candidates:
        if command and shutil.which(command[0]):
            return _describe(command)
    if not chosen and importlib.util.find_spec("ziglang") is not None:
        return _describe(_ZIG)
    looked_for = chosen or ", ".join(_COMPILERS)
    raise CompileError.single(
        "no-host-compiler",
        f"no C++20 compiler found (looked for {looked_for}), the emulator needs one",
        help="unset CXX, or set it to a compiler that is there"
        if chosen
        else "install g++ 11 or clang++ 14 or newer, or pip install 'mla-codegen[emulator]'",
    )


def _split(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        message = f"CXX is {command!r}, which is no command line: {error}"
        help_text = "set CXX to a compiler, or unset it"
        raise CompileError.single("host-compiler", message, help=help_text) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Shared libraries: the engine, loaded once per process, and a kernel, whose open symbols it resolves."""

    engine: Path
    kernel: Path


def find_kernel(name: str, source: str, launcher: str) -> Libraries | None:
    """The libraries of a kernel that the cache holds; None where something has to be compiled.

    What the cache holds is for one compiler, which is asked for its version.
    """
    try:
        engine = _engine_path(find_compiler())
    except CompileError:
        return None
    target = _kernel_path(engine, name, source, launcher)
    found = engine.is_file() and target.is_file()
    return Libraries(engine=engine, kernel=target) if found else None


def build_kernel(name: str, source: str, launcher: str) -> Libraries:
    """The libraries of a kernel; compiles what the cache does not hold."""
    compiler = find_compiler()
    engine = build_engine()
    target = _kernel_path(engine, name, source, launcher)
    if target.is_file():
        return Libraries(engine=engine, kernel=target)
    with tempfile.TemporaryDirectory(prefix="mla-emulator-") as scratch:
        folder = Path(scratch)
        (folder / f"{name}.cu").write_text(source)
        (folder / "launcher.cpp").write_text(launcher)
        library = folder / "kernel.so"
        _compile(
            compiler,
            (*_KERNEL_FLAGS, *_SHARED_FLAGS, f"-I{CPP_FOLDER}", f"-I{folder}", "launcher.cpp"),
            library,
            folder,
            f"the source of {name}",
        )
        write_atomically(target, library.read_bytes(), mode=0o755)
    return Libraries(engine=engine, kernel=target)


@functools.cache
def build_engine() -> Path:
    """The engine's library for this machine."""
    compiler = find_compiler()
    target = _engine_path(compiler)
    if not target.is_file():
        with tempfile.TemporaryDirectory(prefix="mla-emulator-") as scratch:
            built = Path(scratch) / "engine.so"
            arguments = (*_ENGINE_FLAGS, *_SHARED_FLAGS, "-pthread", str(CPP_FOLDER / "engine.cpp"))
            _compile(compiler, arguments, built, Path(scratch), "the emulator's engine")
            write_atomically(target, built.read_bytes(), mode=0o755)
    return target


def _kernel_path(engine: Path, name: str, source: str, launcher: str) -> Path:
    """Where the cache has a kernel; the engine's name stands for compiler, machine and host model."""
    key = {
        "engine": engine.name,
        "source": source,
        "launcher": launcher,
        "flags": [*_KERNEL_FLAGS, *_SHARED_FLAGS],
    }
    return _folder() / f"{name}-{short(key)}.so"


def _engine_path(compiler: Compiler) -> Path:
    """Where the cache has the engine for a compiler."""
    sources = sorted([*CPP_FOLDER.glob("*.cpp"), *CPP_FOLDER.glob("*.hpp")])
    key = {
        "sources": {path.name: sha256(path.read_bytes()) for path in sources},
        "compiler": compiler.identity,
        "flags": [*_COMMON_FLAGS, *_ENGINE_FLAGS, *_SHARED_FLAGS, *compiler.command, *compiler.machine_flags],
    }
    return _folder() / f"engine-{short(key)}.so"


def _compile(compiler: Compiler, arguments: tuple[str, ...], target: Path, folder: Path, what: str) -> None:
    command = [*compiler.command, *_COMMON_FLAGS, *compiler.machine_flags, *arguments, "-o", str(target)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise CompileError.single(
            "host-compile",
            f"{compiler.name} refuses {what} with exit code {done.returncode}",
            notes=tuple(errors[:8]),
            help="the emulator needs g++ 11 or clang++ 14 or newer",
        )


def _name(command: tuple[str, ...]) -> str:
    return "ziglang" if command == _ZIG else command[0]


def _describe(command: tuple[str, ...]) -> Compiler:
    """Version and predefined macros of the compiler with the flags that it takes for this processor."""
    for flags in (("-march=native",), ("-mcpu=native",), ()):
        probe = subprocess.run(
            [*command, *flags, "-std=c++20", "-dM", "-E", "-x", "c++", os.devnull],
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if probe.returncode == 0:
            return Compiler(command=command, machine_flags=flags, identity=sha256(probe.stdout))
    raise CompileError.single(
        "host-compiler",
        f"{_name(command)} does not take -std=c++20, the emulator needs g++ 11 or clang++ 14 or newer",
        help="install a newer g++ or clang++, or set CXX",
    )


@functools.cache
def _folder() -> Path:
    """The cache's `emulator` folder, or one for this process where that cannot be written."""
    cache = cache_folder()
    if cache is not None:
        folder = cache / "emulator"
        with contextlib.suppress(OSError):  # one that cannot be made
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return Path(_process_folder().name)


@functools.cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mla-emulator-cache-")
