"""What a call costs the host: time, synchronisation, memory."""

from __future__ import annotations

import functools
import statistics
import time
from pathlib import Path
from typing import Any

import cupy
import torch

from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.cases_running import as_cupy
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import GuardedOutput, Subject

_OVERHEAD_SECONDS = 30e-6
_CALLS = 1000
_LAUNCHES = 2000
_PAGES = Path("/proc/self/statm")
_PAGE_BYTES = 4096


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        "no synchronisation, no allocation": functools.partial(_warm_call, under),
        "host time, torch": functools.partial(_host_time_torch, under),
        "host time, CuPy": functools.partial(_host_time_cupy, under),
        "2,000 launches": functools.partial(_many_launches, under),
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _tiny(under: Subject) -> Arguments:
    return harness.problem(under, "tiny", [2, 3], [5, 3])


def _warm_call(under: Subject, checks: Checks) -> None:
    """Behind a busy stream a call returns at once, and no allocator has been asked for anything."""
    base = _tiny(under)
    out = GuardedOutput(under, base).view
    under.kernel(**base, out=out)
    torch.cuda.synchronize()
    pool = cupy.get_default_memory_pool()
    before = _allocations(), pool.total_bytes(), torch.cuda.mem_get_info()[0]
    torch.cuda._sleep(400_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        start = time.perf_counter()
        under.kernel(**base, out=out)
        seconds = time.perf_counter() - start
        busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    checks.at_most("seconds until the call returns", seconds, 0.01)
    checks.true("the stream is still busy then", busy)
    torch.cuda.synchronize()
    after = _allocations(), pool.total_bytes(), torch.cuda.mem_get_info()[0]
    checks.equal("allocations, CuPy's pool and free memory", after, before)


def _allocations() -> int:
    """How often torch's allocator has been asked for memory."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def _host_time_torch(under: Subject, checks: Checks) -> None:
    base = _tiny(under)
    out = under.kernel(**base)
    checks.at_most("median seconds of a warm call", _median_seconds(under, base, out), _OVERHEAD_SECONDS)


def _host_time_cupy(under: Subject, checks: Checks) -> None:
    base = {name: as_cupy(value) for name, value in _tiny(under).items()}
    out = under.kernel(**base)
    checks.at_most("median seconds of a warm call", _median_seconds(under, base, out), _OVERHEAD_SECONDS)


def _median_seconds(under: Subject, arguments: Arguments, out: Any) -> float:
    """Median over the calls; the queue is emptied in between, so that it never fills up."""
    kernel, seconds = under.kernel, []
    for call in range(_CALLS + 100):
        start = time.perf_counter()
        kernel(**arguments, out=out)
        seconds.append(time.perf_counter() - start)
        if call % 50 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return statistics.median(seconds[100:])


def _many_launches(under: Subject, checks: Checks) -> None:
    """Other lengths, capacities and outputs all the time; memory stays what it is after the first third."""
    problems = [
        harness.problem(under, f"many launches {length}", [length, 3], [2 * length, 5])
        for length in (1, 64, 129, 200)
    ]
    wanted = [under.kernel(**arguments) for arguments in problems]
    pool = [torch.empty_like(out) for out in wanted for _ in range(2)]
    memory = []
    differing = 0
    for launch in range(_LAUNCHES):
        index = launch % len(problems)
        arguments = {**problems[index], "max_seqlen_q": 200 + launch % 700}
        if launch % 2:
            out = under.kernel(**arguments)
        else:
            out = under.kernel(**arguments, out=pool[2 * index + launch // 2 % 2])
        if launch % 50 == 0:
            differing += not batches.same_bits(out, wanted[index])
        if launch in (_LAUNCHES // 3, _LAUNCHES - 1):
            torch.cuda.synchronize()
            memory.append((torch.cuda.mem_get_info()[0], _resident_bytes()))
    checks.equal("launches with other bits", differing, 0)
    (device_before, host_before), (device_after, host_after) = memory
    checks.equal("free bytes on the device", device_after, device_before)
    checks.at_most("bytes that the process has grown by", host_after - host_before, 8 * 2**20)


def _resident_bytes() -> int:
    return int(_PAGES.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
