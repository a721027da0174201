"""Traces in the Chrome format, which Perfetto reads: roles, waits, copies and products of one CTA."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from mla_codegen.emulator.names import PlanNames
from mla_codegen.emulator.native import NO_THREAD, RawEvent

# EventKind of engine.hpp.
_WAIT_MBARRIER, _WAIT_NAMED, _WAIT_WGMMA, _WAIT_REGISTERS, _WGMMA, _TMA, _ARRIVE, _WAIT_WARP, _MMA = range(9)
_NAMES = {
    _WAIT_MBARRIER: "wait {}",
    _WAIT_NAMED: "wait {}",
    _WAIT_WGMMA: "wait wgmma group {}",
    _WAIT_REGISTERS: "setmaxnreg {}",
    _WAIT_WARP: "wait for the warp",
    _WGMMA: "wgmma n{}",
    _MMA: "mma n{}",
    _TMA: "copy {} B",
    _ARRIVE: "arrive {}",
}
_TENSOR_CORE, _COPY_ENGINE = 1000, 1001


def write_trace(path: str | os.PathLike[str], events: Iterable[RawEvent], names: PlanNames) -> None:
    """Writes the events of one CTA; one microsecond in the viewer is one estimated cycle."""
    rows: list[dict[str, object]] = []
    tracks: dict[int, str] = {_TENSOR_CORE: "tensor core", _COPY_ENGINE: "copy engine"}
    for event in events:
        track = _track(event)
        if event.thread != NO_THREAD:
            warp = event.thread // 32
            tracks.setdefault(track, f"warp {warp}: {names.role(warp)}")
        row: dict[str, object] = {
            "name": _name(event, names),
            "ph": "X",
            "ts": event.begin,
            "dur": event.end - event.begin,
            "pid": 0,
            "tid": track,
            "args": {"line": event.line},
        }
        if event.kind == _ARRIVE:
            row |= {"ph": "i", "s": "t"}
            del row["dur"]
        rows.append(row)
    for track, name in sorted(tracks.items()):
        rows.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": name}})
    Path(path).write_text(json.dumps({"traceEvents": rows}) + "\n")


def _track(event: RawEvent) -> int:
    if event.thread == NO_THREAD:
        return _TENSOR_CORE if event.kind in (_WGMMA, _MMA) else _COPY_ENGINE
    return event.thread // 32


def _name(event: RawEvent, names: PlanNames) -> str:
    if event.kind in (_WAIT_MBARRIER, _ARRIVE):
        text = names.mbarrier(event.argument)
    elif event.kind == _WAIT_NAMED:
        text = names.named_barrier(event.argument)
    else:
        text = str(event.argument)
    return _NAMES[event.kind].format(text)
