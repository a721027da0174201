"""A compiled kernel on one device: whether it can run there, and its handles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.arch import ARCHS
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.debug import DebugRecord
from mla_codegen.runtime.driver import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedKernel:
    """Handles of a kernel on one device, one function per variant by its entry.

    The module stays loaded, since a captured graph may hold it.
    """

    context: int
    functions: Mapping[str, int]
    record: DebugRecord | None


def load_on_device(driver: Driver, device: int, cubin: bytes, plan: Plan) -> LoadedKernel:
    """Loads the cubin on `device`, with its shared memory; the current device stays what it was."""
    functions = {}
    with driver.on_device(device):
        module = driver.load_module(cubin)
        for variant in plan.variants:
            functions[variant.entry] = driver.function(module, variant.entry)
            driver.allow_dynamic_smem(functions[variant.entry], variant.launch.smem_bytes)
        is_debug = any(variant.features.debug for variant in plan.variants)
        record = DebugRecord(driver, module) if is_debug else None
    return LoadedKernel(context=driver.primary_context(device), functions=functions, record=record)


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
