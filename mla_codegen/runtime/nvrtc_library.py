"""The NVRTC library: found among wheels and toolkits, and called by ctypes."""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
from collections.abc import Iterator

from mla_codegen.arch import ARCHS
from mla_codegen.errors import CompileError

INSTALL_HELP = "install the extra mla-codegen[cuda13] (or mla-codegen[cuda12] for a driver of CUDA 12)"
_WHEEL_FOLDERS = ("cu13/lib", "cuda_nvrtc/lib", "cu13/bin", "cuda_nvrtc/bin")
_NO_CACHE_SINCE = (12, 9)
"""Versions that keep a cache of their own where there is a driver: a hit has no log of ptxas, so off."""
_TOOLKIT_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/lib")


class Nvrtc:
    """One loaded libnvrtc."""

    def __init__(self, path: str) -> None:
        """Loads the library; OSError where it cannot be loaded."""
        # NVRTC opens its builtins by soname, not beside itself: they must be in the process before.
        for builtins in sorted(glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so*"))):
            ctypes.CDLL(builtins)
        self.path = path
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._library.nvrtcGetErrorString.argtypes = (ctypes.c_int,)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def describe(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]} ({self.path})"

    def compile(self, source: str, file_name: str, options: tuple[str, ...]) -> tuple[int, bytes, str]:
        """(status, cubin, log); the cubin is empty where the status is not 0."""
        library = self._library
        program = ctypes.c_void_p()
        created = library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), file_name.encode(), 0, None, None
        )
        self._check("nvrtcCreateProgram", created)
        try:
            given = (*options, "--no-cache") if self.version >= _NO_CACHE_SINCE else options
            values = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
            status = library.nvrtcCompileProgram(program, len(given), values)
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            cubin = self._read(program, "nvrtcGetCUBIN") if status == 0 else b""
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))
        return status, cubin, log

    def error_name(self, status: int) -> str:
        return self._library.nvrtcGetErrorString(status).decode()

    def _read(self, program: ctypes.c_void_p, function: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"{function}Size", getattr(self._library, f"{function}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(function, getattr(self._library, function)(program, buffer))
        return buffer.raw

    def _check(self, function: str, status: int) -> None:
        if status != 0:
            raise CompileError.single(
                "nvrtc-failed", f"{function} of {self.path} gave {self.error_name(status)}"
            )


def find_nvrtc(arch: str) -> Nvrtc:
    """The first NVRTC that knows `arch`; CompileError naming what was found where none does."""
    needed = ARCHS[arch].min_nvrtc_version if arch in ARCHS else (0, 0)
    found = []
    for path in library_paths():
        try:
            nvrtc = _load(path)
        except OSError:
            continue
        if nvrtc.version >= needed:
            return nvrtc
        found.append(nvrtc.describe())
    if found:
        raise CompileError.single(
            "nvrtc-too-old",
            f"{arch} needs NVRTC {needed[0]}.{needed[1]} or newer, found {' and '.join(found)}",
            help=INSTALL_HELP,
        )
    raise CompileError.single(
        "nvrtc-missing", f"no NVRTC library found to compile for {arch}", help=INSTALL_HELP
    )


def library_paths() -> Iterator[str]:
    """Where NVRTC may be: the nvidia wheels, the toolkit, the loader's path; newest first within each."""
    for folder in (*_wheel_folders(), *_TOOLKIT_FOLDERS):
        yield from sorted(
            (
                path
                for path in glob.glob(os.path.join(folder, "libnvrtc.so.*"))
                if re.search(r"\.so\.\d+$", path)
            ),
            key=lambda path: -int(path.rsplit(".", 1)[1]),
        )
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


def _wheel_folders() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in _WHEEL_FOLDERS:
        yield from (os.path.join(root, folder) for root in roots)


@functools.cache
def _load(path: str) -> Nvrtc:
    return Nvrtc(path)
