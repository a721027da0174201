"""A compiled kernel loaded on one device."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.arch import ARCHS
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Variant
from mla_codegen.runtime.debug import DebugRecord
from mla_codegen.runtime.driver import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedKernel:
    """Handles of a kernel on one device; the module stays loaded, since a captured graph may hold it."""

    context: int
    module: int
    function: int
    record: DebugRecord | None


def load_on_device(driver: Driver, device: int, cubin: bytes, variant: Variant) -> LoadedKernel:
    """Loads the cubin on `device`, with its shared memory; the current device stays what it was."""
    with driver.on_device(device):
        module = driver.load_module(cubin)
        function = driver.function(module, variant.entry)
        driver.allow_dynamic_smem(function, variant.launch.smem_bytes)
        record = DebugRecord(driver, module) if variant.features.debug else None
    return LoadedKernel(
        context=driver.primary_context(device), module=module, function=function, record=record
    )


def check_device(driver: Driver, device: int, name: str, arch: str) -> None:
    """LaunchError where `device` cannot run a cubin for `arch`."""
    found = driver.compute_capability(device)
    if found in ARCHS[arch].compute_capabilities:
        return
    fitting = [other.name for other in ARCHS.values() if found in other.compute_capabilities]
    listed = ", ".join(f"{arch_name} ({_capabilities(arch_name)})" for arch_name in ARCHS)
    raise LaunchError.single(
        "unsupported-gpu",
        f"device {device} has compute capability {found[0]}.{found[1]}, kernel {name} is built for {arch}, "
        f"which needs {_capabilities(arch)}",
        notes=(f"supported are {listed}",),
        help=f"build a spec with arch: {fitting[0]}"
        if fitting
        else "load with backend='emulator', or use another GPU",
    )


def _capabilities(arch: str) -> str:
    return " or ".join(f"{major}.{minor}" for major, minor in ARCHS[arch].compute_capabilities)
