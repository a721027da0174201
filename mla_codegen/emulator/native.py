"""The compiled kernel as a ctypes library; structures are those of `cpp/launch.hpp` and `cpp/engine.hpp`."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

from mla_codegen.emulator.compiler import Libraries


class RunConfig(ctypes.Structure):
    """`RunConfig` of launch.hpp."""

    _fields_ = (
        ("threads", ctypes.c_uint32),
        ("smem_bytes", ctypes.c_uint32),
        ("launch_registers", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("checks", ctypes.c_uint32),
        ("exact_arithmetic", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("trace", ctypes.c_uint32),
        ("trace_cta", ctypes.c_uint32),
        ("stack_bytes", ctypes.c_uint32),
        ("ctas_done", ctypes.POINTER(ctypes.c_uint64)),
    )


class GlobalRange(ctypes.Structure):
    """`GlobalRange` of launch.hpp."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("marks", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
    )


class _HazardView(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("cta", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
    )


class _TraceEvent(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("argument", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
    )


COUNTERS = (
    "ctas",
    "switches",
    "tma_copies",
    "tma_bytes",
    "wgmma",
    "tcgen05",
    "macs",
    "mbarrier_waits",
    "barrier_arrivals",
    "hazards",
)
"""Members of `Counters` in engine.hpp, all 64-bit."""

NO_THREAD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class RawHazard:
    """A hazard as the engine tells it, with tokens in place of names."""

    kind: str
    text: str
    cta: tuple[int, int, int]
    thread: int
    line: int
    other_line: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEvent:
    """A trace event; times in cycles, `thread` is NO_THREAD for the tensor core and the copy engine."""

    begin: int
    end: int
    thread: int
    kind: int
    argument: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything that one run of the grid left behind."""

    hazards: tuple[RawHazard, ...]
    counters: dict[str, int]
    events: tuple[RawEvent, ...]


@functools.cache
def load_engine(path: Path) -> ctypes.CDLL:
    """The engine, with its symbols open to the kernels that are loaded after it."""
    engine = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    engine.mla_emulator_num_hazards.restype = ctypes.c_uint64
    engine.mla_emulator_num_events.restype = ctypes.c_uint64
    engine.mla_emulator_events.restype = ctypes.POINTER(_TraceEvent)
    return engine


class KernelLibrary:
    """One kernel, compiled, and the engine that runs it."""

    def __init__(self, libraries: Libraries) -> None:
        self._engine = load_engine(libraries.engine)
        self._kernel = ctypes.CDLL(str(libraries.kernel))

    def run(
        self, variant: int, config: RunConfig, ranges: list[GlobalRange], maps: bytes, slots: list[int]
    ) -> RunResult:
        """Runs the grid of one entry; `slots` hold the members of Params, each in 64 bits."""
        entry = self._kernel[f"mla_emulator_run_{variant}"]
        entry.restype = ctypes.c_void_p
        raw = entry(
            ctypes.byref(config),
            (GlobalRange * len(ranges))(*ranges),
            ctypes.c_uint32(len(ranges)),
            ctypes.c_char_p(maps),
            (ctypes.c_uint64 * len(slots))(*slots),
        )
        results = ctypes.c_void_p(raw)
        try:
            return RunResult(
                hazards=self._hazards(results), counters=self._counters(results), events=self._events(results)
            )
        finally:
            self._engine.mla_emulator_free(results)

    def _hazards(self, results: ctypes.c_void_p) -> tuple[RawHazard, ...]:
        found = []
        view = _HazardView()
        for index in range(self._engine.mla_emulator_num_hazards(results)):
            self._engine.mla_emulator_hazard(results, ctypes.c_uint64(index), ctypes.byref(view))
            x, y, z = view.cta
            found.append(
                RawHazard(
                    kind=view.kind.decode(),
                    text=view.text.decode(),
                    cta=(x, y, z),
                    thread=view.thread,
                    line=view.line,
                    other_line=view.other_line,
                    count=view.count,
                )
            )
        return tuple(found)

    def _counters(self, results: ctypes.c_void_p) -> dict[str, int]:
        values = (ctypes.c_uint64 * len(COUNTERS))()
        self._engine.mla_emulator_counters(results, values)
        return dict(zip(COUNTERS, values, strict=True))

    def _events(self, results: ctypes.c_void_p) -> tuple[RawEvent, ...]:
        count = self._engine.mla_emulator_num_events(results)
        if count == 0:
            return ()
        events = self._engine.mla_emulator_events(results)
        return tuple(
            RawEvent(
                begin=event.begin,
                end=event.end,
                thread=event.thread,
                kind=event.kind,
                argument=event.argument,
                line=event.line,
            )
            for event in (events[index] for index in range(count))
        )
