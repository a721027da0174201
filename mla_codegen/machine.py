"""What this machine can do: Python packages, compilers, driver and GPUs, and what to install for the rest.

Asks the driver through ctypes, so that nothing here needs CuPy, CUDA or a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mla_codegen.arch import ARCHS
from mla_codegen.emulator.compiler import find_compiler
from mla_codegen.errors import CompileError
from mla_codegen.runtime.driver import (
    DEVICE_ATTRIBUTE_MAJOR,
    DEVICE_ATTRIBUTE_MINOR,
    DRIVER_LIBRARY,
)
from mla_codegen.runtime.nvrtc import find_nvrtc


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device that the driver shows."""

    name: str
    compute_capability: tuple[int, int]

    def archs(self) -> tuple[str, ...]:
        """Targets whose cubins it runs."""
        return tuple(
            arch.name for arch in ARCHS.values() if self.compute_capability in arch.compute_capabilities
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The CUDA driver: newest CUDA version (major, minor) that it runs, and its devices."""

    cuda_version: tuple[int, int]
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a machine may have; `help` says what to install where it is missing."""

    name: str
    found: str | None
    needed_to: str
    help: str

    @property
    def present(self) -> bool:
        return self.found is not None


def findings(cache_folder: Path | None) -> tuple[Finding, ...]:
    """Everything that matters here, present or not."""
    driver = find_driver()
    return (
        Finding(
            name="Python", found=platform.python_version(), needed_to="build", help="Python 3.10 or newer"
        ),
        *(_package(name) for name in ("click", "Jinja2", "ml_dtypes", "numpy", "pydantic", "PyYAML", "rich")),
        _nvrtc(),
        _cupy(),
        Finding(
            name="CUDA driver",
            found=None if driver is None else f"runs CUDA {driver.cuda_version[0]}.{driver.cuda_version[1]}",
            needed_to="run",
            help="install the NVIDIA driver, 580 or newer for CUDA 13",
        ),
        _gpus(driver),
        _host_compiler(),
        _cache(cache_folder),
    )


def can_build(found: tuple[Finding, ...]) -> bool:
    """Whether everything is there that building a cubin needs."""
    return all(finding.present for finding in found if finding.needed_to == "build")


def find_driver() -> Driver | None:
    """The CUDA driver and its devices, or None where there is no driver or it does not start."""
    try:
        library = ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return None
    if library.cuInit(0) != 0:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    library.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_gpu(library, index) for index in range(count.value))
    return Driver(cuda_version=(version.value // 1000, version.value % 1000 // 10), gpus=gpus)


def gpu_for(arch: str) -> Gpu | None:
    """The first GPU that runs cubins of `arch`."""
    driver = find_driver()
    gpus = () if driver is None else driver.gpus
    return next((gpu for gpu in gpus if arch in gpu.archs()), None)


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, value = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (DEVICE_ATTRIBUTE_MAJOR, DEVICE_ATTRIBUTE_MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Gpu(name=name.value.decode(), compute_capability=(capability[0], capability[1]))


def _package(name: str) -> Finding:
    return Finding(name=name, found=_version(name), needed_to="build", help=f"pip install {name}")


def _nvrtc() -> Finding:
    try:
        found = find_nvrtc("sm_90a").describe()
    except CompileError:
        found = None
    help = "pip install 'mla-codegen[cuda13]', or nvidia-cuda-nvrtc==13.0.* alone to build without running"
    return Finding(name="NVRTC", found=found, needed_to="build", help=help)


def _cupy() -> Finding:
    installed = {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if re.fullmatch(r"cupy(-cuda\d+x)?", name := (distribution.metadata["Name"] or "").lower())
    }
    found = ", ".join(f"{name} {version}" for name, version in sorted(installed.items())) or None
    help = "pip install 'mla-codegen[cuda13]', or [cuda12] for a driver of CUDA 12; torch arrays need none"
    return Finding(name="CuPy", found=found, needed_to="run", help=help)


def _host_compiler() -> Finding:
    try:
        found, help = find_compiler().name, ""
    except CompileError as error:
        found, help = None, error.diagnostics[0].help or ""
    return Finding(name="C++ compiler", found=found, needed_to="emulate", help=help)


def _gpus(driver: Driver | None) -> Finding:
    usable = () if driver is None else tuple(gpu for gpu in driver.gpus if gpu.archs())
    others = () if driver is None else tuple(gpu.name for gpu in driver.gpus if not gpu.archs())
    found = "; ".join(f"{gpu.name} ({', '.join(gpu.archs())})" for gpu in usable) or None
    help = "a GPU of compute capability 9.0 (Hopper) is needed to run the kernels of this version"
    if others:
        help += f", found {', '.join(others)}"
    return Finding(name="GPU", found=found, needed_to="run", help=help)


def _cache(folder: Path | None) -> Finding:
    place = "the home directory" if folder is None else str(folder)
    help = f"{place} cannot be written: set MLA_CODEGEN_CACHE_DIR to a folder that can"
    writable = folder is not None and _is_writable(folder)
    return Finding(name="cache folder", found=place if writable else None, needed_to="keep cubins", help=help)


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or where it would be made."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
