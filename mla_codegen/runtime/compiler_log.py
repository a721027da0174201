"""The log of NVRTC with `ptxas -v`: figures per kernel, and what in it is a build error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mla_codegen.errors import Diagnostic

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_SERIALISED = re.compile(r"C75\d\d")
_WARNING = re.compile(r"\bwarning(?:\s+#\d+\S*)?\s*:", re.IGNORECASE)
# A constant of the generated file that no statement of this kernel needs (#177-D): it costs nothing.
_HARMLESS_WARNING = re.compile(r"warning #177-D:")
# Said a second time, without figures, by the spill and local-memory switches.
_COUNTED_WARNING = re.compile(
    r"Registers are spilled to local memory|Local memory used for function", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFigures:
    """What ptxas says about one kernel, functions that it calls included."""

    name: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    barriers: int
    static_smem_bytes: int


def parse_log(log: str) -> tuple[EntryFigures, ...]:
    """The figures of each kernel in the log, in its order."""
    return tuple(_entry(name, lines) for name, lines in _sections(log))


def judge_log(log: str, entries: tuple[EntryFigures, ...], *, path: str) -> tuple[Diagnostic, ...]:
    """Every build error that the log of a successful compilation shows; empty where it is clean."""
    faults = [fault for entry in entries for fault in _memory_faults(entry, path)]
    for line in log.splitlines():
        text = line.strip()
        if _SERIALISED.search(text):
            faults.append(
                Diagnostic(
                    code="ptxas-note",
                    message=f"the compiler says '{text}', no C75xx note is allowed",
                    path=path,
                    help="wgmma or setmaxnreg lost its effect: touch no accumulator before its wait",
                )
            )
        elif (
            _WARNING.search(text) and not _COUNTED_WARNING.search(text) and not _HARMLESS_WARNING.search(text)
        ):
            faults.append(
                Diagnostic(
                    code="compiler-warning",
                    message=f"the compiler says '{text}', no warning is allowed",
                    path=path,
                )
            )
    return tuple(faults)


def _memory_faults(entry: EntryFigures, path: str) -> Iterator[Diagnostic]:
    spilled = entry.spill_store_bytes + entry.spill_load_bytes
    if spilled:
        yield Diagnostic(
            code="register-spill",
            message=f"kernel {entry.name} spills {entry.spill_store_bytes} B of stores and "
            f"{entry.spill_load_bytes} B of loads at {entry.registers} registers, 0 B are allowed",
            path=path,
            help="choose a smaller tile.block_n or tile.block_m",
        )
    if entry.stack_bytes and not spilled:
        yield Diagnostic(
            code="local-memory",
            message=f"kernel {entry.name} uses {entry.stack_bytes} B of local memory, 0 B are allowed",
            path=path,
            help="an array in registers is indexed by a run-time value, or its address is taken",
        )


def _sections(log: str) -> Iterator[tuple[str, list[str]]]:
    name = None
    lines: list[str] = []
    for line in log.splitlines():
        match = _ENTRY.search(line)
        if match:
            if name is not None:
                yield name, lines
            name, lines = match.group(1), []
        lines.append(line)
    if name is not None:
        yield name, lines


def _entry(name: str, lines: list[str]) -> EntryFigures:
    text = "\n".join(lines)
    frames = [tuple(map(int, groups)) for groups in _STACK.findall(text)]
    return EntryFigures(
        name=name,
        registers=_last_number(_USED, text),
        spill_store_bytes=sum(frame[1] for frame in frames),
        spill_load_bytes=sum(frame[2] for frame in frames),
        stack_bytes=max((frame[0] for frame in frames), default=0),
        barriers=_last_number(_BARRIERS, text),
        static_smem_bytes=_last_number(_SMEM, text),
    )


def _last_number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.findall(text)
    return int(found[-1]) if found else 0
