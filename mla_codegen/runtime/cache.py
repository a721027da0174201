"""The cache of compiled kernels: one pair of files per source, options and compiler version.

Safe for many processes: a lock of the operating system per entry, files that appear whole or not at all.
Where the folder cannot be written, kernels stay in the memory of the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mla_codegen.digest import sha256
from mla_codegen.runtime.nvrtc import CompileResult, compile_options, compile_source, find_nvrtc
from mla_codegen.runtime.stored import STORED_FORMAT, read_stored, write_stored

_LOCK_POLL_SECONDS = 0.02


class CompileFunction(Protocol):
    """What compiles where the cache has nothing: `nvrtc.compile_source` or a stand-in."""

    def __call__(
        self, source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
    ) -> CompileResult:
        """See `nvrtc.compile_source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """What is in the cache; `folder` is None where there is no home directory to keep it in."""

    folder: Path | None
    entries: int
    bytes: int


def nvrtc_version(arch: str) -> str:
    """Version of the compiler that would compile for `arch`, as text."""
    return "nvrtc {}.{}".format(*find_nvrtc(arch).version)


class CubinCache:
    """Compiled kernels in one folder; tests pass stand-ins for the compiler and its version."""

    def __init__(
        self,
        folder: Path | None,
        *,
        compile_function: CompileFunction = compile_source,
        version_function: Callable[[str], str] = nvrtc_version,
        lock_seconds: float = 120.0,
    ) -> None:
        self.folder = folder
        self._compile = compile_function
        self._version = version_function
        self._lock_seconds = lock_seconds
        self._memory: dict[str, CompileResult] = {}
        self._warned = False

    def key(
        self, source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
    ) -> str:
        """64 hex digits over everything that decides the cubin."""
        return sha256(
            {
                "format": STORED_FORMAT,
                "compiler": self._version(arch),
                "options": compile_options(arch, extra_options),
                "strict": strict,
                "name": name,
                "source": source,
            }
        )

    def find(
        self, source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
    ) -> CompileResult | None:
        """The compiled kernel if it is there already; never compiles."""
        key = self.key(source, arch=arch, name=name, extra_options=extra_options, strict=strict)
        return self._read(key, source)

    def get(
        self, source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
    ) -> CompileResult:
        """The compiled kernel, from the cache or compiled now and put there; CompileError as compiling."""
        key = self.key(source, arch=arch, name=name, extra_options=extra_options, strict=strict)
        found = self._read(key, source)
        if found is not None:
            return found
        with self._locked(key):
            # Another process may have compiled it while this one waited.
            found = self._read(key, source)
            if found is None:
                found = self._compile(
                    source, arch=arch, name=name, extra_options=extra_options, strict=strict
                )
                self._write(key, source, found)
        return found

    def info(self) -> CacheInfo:
        """Number of the compiled kernels on disk, and the size of all files, the emulator's included."""
        entries = size = 0
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # another process may clear the cache
                size += path.stat().st_size
                entries += path.suffix == ".cubin"
        return CacheInfo(folder=self.folder, entries=entries, bytes=size)

    def clear(self) -> int:
        """Removes all but lock files, which another process may hold; returns how many kernels there were."""
        removed = 0
        for path in list(self._files()):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                removed += path.suffix == ".cubin"
        self._memory.clear()
        return removed

    def _files(self) -> Iterator[Path]:
        if self.folder is not None and self.folder.is_dir():
            yield from sorted(self.folder.glob("*.cubin"))
            yield from sorted(self.folder.glob("*.cubin.json"))
            yield from sorted(self.folder.glob("emulator/*.so"))

    def _read(self, key: str, source: str) -> CompileResult | None:
        if key in self._memory:
            return self._memory[key]
        return None if self.folder is None else read_stored(self.folder, key, source)

    def _write(self, key: str, source: str, result: CompileResult) -> None:
        reason = "there is no home directory"
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_stored(self.folder, key, source, result)
                return
            except OSError as error:
                reason = f"{self.folder} cannot be written ({error.strerror or error})"
        self._memory[key] = result
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"compiled kernels are kept in memory only, since {reason}; "
                "set MLA_CODEGEN_CACHE_DIR to a folder",
                RuntimeWarning,
                stacklevel=4,
            )

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Holds the entry's lock; after `lock_seconds`, or where there can be no lock, goes on without it."""
        if self.folder is None:
            yield
            return
        try:
            import fcntl

            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (ImportError, OSError):
            yield
            return
        try:
            give_up = time.monotonic() + self._lock_seconds
            while time.monotonic() < give_up:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(handle)


@functools.cache
def default_cache(folder: Path | None) -> CubinCache:
    """The process's cache in `folder`, so that its memory and its one warning are shared."""
    return CubinCache(folder)
