"""The comparison of a compiled kernel with its plan."""

from __future__ import annotations

from collections.abc import Iterator

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.model import Variant
from mla_codegen.runtime.elf import CubinEntry, read_cubin
from mla_codegen.runtime.nvrtc import CompileResult
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.tensormap import TENSOR_MAP_ALIGN_BYTES, TENSOR_MAP_BYTES


def check_against_plan(variant: Variant, result: CompileResult) -> tuple[Diagnostic, ...]:
    """Every difference between the compiled kernel of `variant` and the plan; empty where they agree."""
    entries = read_cubin(result.cubin)
    if variant.entry not in entries:
        names = ", ".join(entries) or "none"
        return (_fault("cubin-entry", f"the cubin has no kernel {variant.entry}, it has {names}"),)
    entry = entries[variant.entry]
    figures = result.entry(variant.entry)
    launch = variant.launch
    faults = []
    frame_bytes = 0 if variant.features.debug else entry.frame_bytes  # a debug build may spill
    for code, what, found, planned in (
        ("cubin-registers", "registers per thread", entry.registers, launch.launch_registers),
        ("cubin-barriers", "barriers", figures.barriers, launch.reported_barriers),
        ("cubin-smem", "B of static shared memory", figures.static_smem_bytes, 0),
        ("cubin-frame", "B of stack frame", frame_bytes, 0),
    ):
        if found != planned:
            faults.append(_fault(code, f"kernel {entry.name} has {found} {what}, the plan says {planned}"))
    return (*faults, *_parameter_faults(variant, entry))


def _parameter_faults(variant: Variant, entry: CubinEntry) -> Iterator[Diagnostic]:
    maps = len(variant.tensor_maps)
    planned = (*(TENSOR_MAP_BYTES for _ in range(maps)), params_layout(variant.params).size_bytes)
    found = tuple(parameter.size for parameter in entry.parameters)
    if found != planned:
        yield _fault(
            "cubin-parameters",
            f"kernel {entry.name} takes parameters of {list(found)} B, the plan says {list(planned)} B",
        )
        return
    for tensor_map, parameter in zip(variant.tensor_maps, entry.parameters, strict=False):
        if parameter.address % TENSOR_MAP_ALIGN_BYTES:
            yield _fault(
                "cubin-alignment",
                f"tensor map {tensor_map.name} of kernel {entry.name} stands at constant-bank address "
                f"{parameter.address}, a multiple of {TENSOR_MAP_ALIGN_BYTES} is needed",
            )


def _fault(code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, help="planner and compiler disagree: build the spec again")
