"""How far a run is, told while it goes on."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from mla_codegen.emulator.native import RunConfig

Progress: TypeAlias = Callable[[int, int], None]
"""Takes the CTAs done and the CTAs in all."""

_INTERVAL_SECONDS = 0.2


@contextlib.contextmanager
def reported(progress: Progress | None, config: RunConfig, *, total: int) -> Iterator[None]:
    """Counts the CTAs that end inside, and tells `progress` from a thread of its own."""
    if progress is None:
        yield
        return
    done, ended = ctypes.c_uint64(0), threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            progress(done.value, total)

    config.ctas_done = ctypes.pointer(done)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        progress(done.value, total)
