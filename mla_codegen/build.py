"""From spec files to products and cubins: loads, plans, renders, writes and compiles."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mla_codegen import emit
from mla_codegen.arch import ARCHS
from mla_codegen.errors import CompileError, Diagnostic, MlaCodegenError, PlanError
from mla_codegen.files import cache_folder
from mla_codegen.plan.builder import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.runtime.cache import default_cache
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.nvrtc import CompileResult
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec, load_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, that of its quantiser where there is one, and the spec file they came from."""

    path: Path
    plan: Plan
    quantizer: QuantizerPlan | None


def build(spec: Spec | str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None) -> Path:
    """Writes the products of one spec (a Spec or the path of its file) and returns their folder.

    `out` is the folder that holds one folder per kernel; by default `generated` beside the `specs` folder
    that the file is in, else `generated` in the current directory. Nothing is compiled. SpecError or
    PlanError where there is no plan.
    """
    loaded = spec if isinstance(spec, Spec) else load_spec(spec)
    plan = plan_spec(loaded)
    target = Path(emit.OUT_FOLDER)
    if out is not None:
        target = Path(out)
    elif loaded.origin.path:
        target = emit.default_out(Path(loaded.origin.path))
    emit.write(emit.products(plan, plan_quantizer(loaded)), target)
    return target / plan.name


def plan_spec(spec: Spec, *, debug: bool = False) -> Plan:
    """The plan of `spec`; PlanError with every diagnostic placed in the spec's file."""
    try:
        return make_plan(spec, debug=debug)
    except PlanError as error:
        raise PlanError(_placed(spec, fault) for fault in error.diagnostics) from error


def plan_files(paths: Iterable[Path], *, debug: bool = False) -> tuple[Planned, ...]:
    """The plans of all kernels of all files, in order; one error with the faults of every file."""
    planned: list[Planned] = []
    faults: list[Diagnostic] = []
    for path in paths:
        try:
            specs = load_specs(path)
        except MlaCodegenError as error:
            faults += error.diagnostics
            continue
        for spec in specs:
            try:
                plan = plan_spec(spec, debug=debug)
                planned.append(Planned(path=path, plan=plan, quantizer=plan_quantizer(spec)))
            except PlanError as error:
                faults += error.diagnostics
    faults += _same_names(planned)
    if faults:
        raise MlaCodegenError(faults)
    return tuple(planned)


def _same_names(planned: Iterable[Planned]) -> Iterator[Diagnostic]:
    """A fault for each plan whose products would overwrite those of an earlier one."""
    first: dict[str, Path] = {}
    for item in planned:
        other = first.setdefault(item.plan.name, item.path)
        if other is not item.path:
            yield Diagnostic(
                code="same-name",
                message=f"the kernel {item.plan.name} is described by {other} too, allowed: one spec a name",
                path=str(item.path),
                help="rename one of the two specs and its file, or build them one at a time with --out",
            )


def kernel_names(folder: Path) -> frozenset[str]:
    """Names of all kernels that the spec files of `folder` describe."""
    return frozenset(spec.name for path in sorted(folder.glob("*.yaml")) for spec in load_specs(path))


def compile_plan(plan: Plan, source: str, *, arch: str | None = None) -> CompileResult:
    """The cubin of `source` for `arch` (by default the plan's), checked; from the cache or compiled now.

    CompileError where the compiler refuses the source, its log has a spill or a note, or the cubin differs
    from the plan.
    """
    target = plan.arch if arch is None else arch
    _check_family(plan, target)
    result = default_cache(cache_folder()).get(source, arch=target, name=plan.name)
    faults = [fault for variant in plan.variants for fault in check_against_plan(variant, result)]
    if faults:
        raise CompileError(_named(plan, fault) for fault in faults)
    return result


def compile_quantizer(plan: QuantizerPlan, source: str, *, arch: str | None = None) -> CompileResult:
    """The cubin of a quantiser's source as `compile_plan` gives that of a kernel."""
    target = plan.arch if arch is None else arch
    _check_family(plan, target)
    return default_cache(cache_folder()).get(source, arch=target, name=f"{plan.name}_quantize")


def _check_family(plan: Plan | QuantizerPlan, arch: str) -> None:
    family = ARCHS[plan.arch].family
    allowed = [name for name, limits in ARCHS.items() if limits.family == family]
    if arch not in allowed:
        raise CompileError.single(
            "arch-family",
            f"{plan.name} is planned for {plan.arch}, which does not compile for {arch}",
            help=f"give --arch {' or '.join(allowed)}",
        )


def _placed(spec: Spec, fault: Diagnostic) -> Diagnostic:
    return spec.locate(fault) if fault.path is None else fault


def _named(plan: Plan, fault: Diagnostic) -> Diagnostic:
    """The fault with the kernel's source as its path where it has none."""
    return dataclasses.replace(fault, path=f"{plan.name}.cu") if fault.path is None else fault
