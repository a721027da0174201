"""CUDA source to cubin through NVRTC: no CuPy, no driver, no headers, no include path.

The compiler's log is judged (see `compiler_log`), so that a cubin that comes back has no register spills, no
local memory, no serialised wgmma and no warning.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mla_codegen.errors import CompileError, Diagnostic
from mla_codegen.runtime.compiler_log import EntryFigures, judge_log, parse_log
from mla_codegen.runtime.nvrtc_library import INSTALL_HELP, Nvrtc, find_nvrtc

__all__ = ["CompileResult", "compile_options", "compile_source", "find_nvrtc"]

_INVALID_OPTION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """A cubin and what the compiler said about it; `entries` are the figures per kernel."""

    cubin: bytes
    log: str
    entries: tuple[EntryFigures, ...]
    seconds: float
    options: tuple[str, ...]
    nvrtc_version: tuple[int, int]
    library_path: str

    def entry(self, name: str) -> EntryFigures:
        """The figures of the kernel called `name`; KeyError where the source has none."""
        for figures in self.entries:
            if figures.name == name:
                return figures
        raise KeyError(name)


def compile_source(
    source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
) -> CompileResult:
    """The cubin of `source` for `arch`; CompileError where the compiler or the log's judge refuses it.

    `name` names the program in messages. `strict=False` keeps the figures but refuses nothing that compiles:
    for debug builds, which trade speed for knowledge.
    """
    nvrtc = find_nvrtc(arch)
    options = compile_options(arch, extra_options)
    start = time.perf_counter()
    status, cubin, log = nvrtc.compile(source, f"{name}.cu", options)
    seconds = time.perf_counter() - start
    if status != 0:
        raise CompileError((_failure(nvrtc, status, name, arch, options, log),))
    entries = parse_log(log)
    if strict:
        faults = judge_log(log, entries, path=f"{name}.cu")
        if faults:
            raise CompileError(faults)
    return CompileResult(
        cubin=cubin, log=log, entries=entries, seconds=seconds, options=options, nvrtc_version=nvrtc.version,
        library_path=nvrtc.path,
    )  # fmt: skip


def compile_options(arch: str, extra_options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """All options that NVRTC gets, in order."""
    return (
        f"-arch={arch}",
        "--std=c++17",
        "-lineinfo",
        "--ptxas-options=-v",
        "--ptxas-options=--warn-on-spills",
        "--ptxas-options=--warn-on-local-memory-usage",
        *extra_options,
    )


def _failure(
    nvrtc: Nvrtc, status: int, name: str, arch: str, options: tuple[str, ...], log: str
) -> Diagnostic:
    text = " ".join(options)
    if status == _INVALID_OPTION:
        return Diagnostic(
            code="nvrtc-option",
            message=f"{nvrtc.describe()} does not take an option of '{text}', the target {arch} perhaps",
            path=f"{name}.cu",
            notes=tuple(line for line in log.splitlines() if line.strip())[:5],
            help=INSTALL_HELP,
        )
    lines = tuple(line for line in log.splitlines() if line.strip() and not line.startswith("ptxas info"))
    return Diagnostic(
        code="nvrtc-compile",
        message=f"{nvrtc.describe()} gave {nvrtc.error_name(status)} for {arch}",
        path=f"{name}.cu",
        notes=(*lines[:40], f"options: {text}"),
    )
