"""Commands that need no GPU: init, build, plan, matrix, schema and lint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mla_codegen import emit
from mla_codegen.arch import ARCHS
from mla_codegen.build import (
    Planned,
    compile_plan,
    compile_quantizer,
    kernel_names,
    plan_files,
    plan_spec,
)
from mla_codegen.cli.output import print_diagnostics, print_json, print_table
from mla_codegen.cli.plan_text import print_plan
from mla_codegen.errors import CompileError, Diagnostic
from mla_codegen.files import write_atomically
from mla_codegen.plan.model import Plan
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.resources import package_folder
from mla_codegen.runtime.nvrtc import CompileResult
from mla_codegen.runtime.stored import write_stored
from mla_codegen.spec import json_schema
from mla_codegen.spec_loader import load_spec, load_specs, loads_specs
from mla_codegen.template_lint import lint as lint_all

SPEC = click.Path(path_type=Path, dir_okay=False)
FIGURE_COLUMNS = ("kernel", "arch", "registers", "spill B", "smem B", "barriers", "seconds")


@click.command()
@click.argument("name")
def init(name: str) -> None:
    """Write a commented starter spec: specs/NAME.yaml, or NAME.yaml where there is no folder specs."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise click.BadParameter(f"{name!r} must match [a-z][a-z0-9_]*", param_hint="NAME")
    path = (Path("specs") if Path("specs").is_dir() else Path()) / f"{name}.yaml"
    if path.exists():
        raise click.ClickException(f"{path} exists already: take another name, or remove it")
    starter = (package_folder() / "cli" / "starter_spec.yaml").read_text(encoding="ascii")
    text = starter.replace("NAME", name)
    loads_specs(text, path=str(path))  # refuses names that no spec may have
    write_atomically(path, text.encode("ascii"))
    click.echo(f"wrote {path}")
    click.echo(f"next: mla-codegen plan {path}")


@click.command()
@click.argument("specs", metavar="SPEC...", type=SPEC, nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets a folder per kernel [default: generated/ beside specs/, else ./generated]",
)
@click.option(
    "--arch", type=click.Choice(list(ARCHS)), help="Compile the same source for this arch of its family."
)
@click.option(
    "--check", is_flag=True, help="Write and compile nothing; print what would change and exit 1 if anything."
)
@click.option("--cubin", is_flag=True, help="Write the cubin beside the source as well.")
@click.option("--no-compile", is_flag=True, help="Only render and write.")
def build(
    specs: tuple[Path, ...], out: Path | None, arch: str | None, check: bool, cubin: bool, no_compile: bool
) -> None:
    """Render kernels, write what changed and compile them; needs no GPU."""
    if (check or no_compile) and (cubin or arch):
        raise click.UsageError("--check and --no-compile compile nothing: leave --cubin and --arch out")
    planned = plan_files(specs)
    if check:
        _check(planned, specs, out)
        return
    sources = []
    for item in planned:
        files = emit.products(item.plan, item.quantizer)
        report_changes(emit.write(files, _target(item, out)))
        sources.append({file.path.name: file.text for file in files})
    if not no_compile:
        _compile(planned, sources, arch=arch, cubin_out=out, cubin=cubin)


@click.command()
@click.argument("spec", type=SPEC)
@click.option("--json", "as_json", is_flag=True, help="Print plan.json byte for byte.")
def plan(spec: Path, as_json: bool) -> None:
    """Show the resolved plan: choices, shared memory, barriers, roles and tensor maps."""
    made = plan_spec(load_spec(spec))
    if as_json:
        text = next(product.text for product in emit.products(made) if product.path.name == "plan.json")
        click.echo(text, nl=False)
    else:
        print_plan(made)


@click.command()
@click.argument("specs", metavar="SPEC...", type=SPEC, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON in the form of a CI matrix.")
def matrix(specs: tuple[Path, ...], as_json: bool) -> None:
    """List every kernel that the specs describe."""
    entries = [
        {"spec": path.as_posix(), "name": spec.name, "arch": spec.arch}
        for path in specs
        for spec in load_specs(path)
    ]
    if as_json:
        print_json({"include": entries}, one_line=True)
    else:
        print_table("kernels", ("name", "arch", "spec"), [(e["name"], e["arch"], e["spec"]) for e in entries])


@click.command()
def schema() -> None:
    """Print the JSON Schema of a spec."""
    print_json(json_schema())


@click.command()
def lint() -> None:
    """Report logic in templates and hardware access outside the primitives."""
    faults = lint_all()
    print_diagnostics(faults)
    if faults:
        raise click.exceptions.Exit(1)
    click.echo("templates and primitives: no fault")


def report_changes(changes: Sequence[emit.Change]) -> None:
    """One line per file on stdout."""
    for change in changes:
        click.echo(f"{change.verb} {change.path}")


def print_figures(results: Sequence[tuple[Plan | QuantizerPlan, str, CompileResult]]) -> None:
    """What the compiler made of each kernel, as a table."""
    rows = []
    for made, arch, result in results:
        for entry, smem in _entries(made):
            figures = result.entry(entry)
            spilled = figures.spill_store_bytes + figures.spill_load_bytes
            seconds = f"{result.seconds:.2f}"
            rows.append((entry, arch, figures.registers, spilled, smem, figures.barriers, seconds))
    print_table("compiled", FIGURE_COLUMNS, rows)


def _entries(plan: Plan | QuantizerPlan) -> list[tuple[str, int]]:
    """Kernels of a source and their shared memory in bytes."""
    if isinstance(plan, QuantizerPlan):
        return [(entry, plan.smem_bytes) for entry in plan.entries()]
    return [(variant.entry, variant.launch.smem_bytes) for variant in plan.variants]


def _target(item: Planned, out: Path | None) -> Path:
    return emit.default_out(item.path) if out is None else out


def _compile(
    planned: Sequence[Planned],
    sources: Sequence[Mapping[str, str]],
    *,
    arch: str | None,
    cubin_out: Path | None,
    cubin: bool,
) -> None:
    """Compiles every kernel, prints the figures of those that do, then raises the faults of the others."""
    results: list[tuple[Plan | QuantizerPlan, str, CompileResult]] = []
    faults: list[Diagnostic] = []
    for item, files in zip(planned, sources, strict=True):
        target, name = arch or item.plan.arch, item.plan.name
        source = files[f"{name}.cu"]
        try:
            result = compile_plan(item.plan, source, arch=target)
            results.append((item.plan, target, result))
            if item.quantizer is not None:
                made = compile_quantizer(item.quantizer, files[f"{name}_quantize.cu"], arch=target)
                results.append((item.quantizer, target, made))
        except CompileError as error:
            faults += error.diagnostics
            continue
        if cubin:
            _write_cubin(item.plan, target, source, result, _target(item, cubin_out))
    if results:
        print_figures(results)
    if faults:
        raise CompileError(faults)


def _write_cubin(plan: Plan, arch: str, source: str, result: CompileResult, out: Path) -> None:
    stem = plan.name if arch == plan.arch else f"{plan.name}.{arch}"
    write_stored(out / plan.name, stem, source, result)
    click.echo(f"wrote {out / plan.name / stem}.cubin")


def _check(planned: Sequence[Planned], specs: Sequence[Path], out: Path | None) -> None:
    """Prints drift and orphans; exits with 1 where there is any."""
    stale = False
    for item in planned:
        changes = emit.check(emit.products(item.plan, item.quantizer), _target(item, out))
        stale = stale or any(change.diff for change in changes)
        report_changes(changes)
        for change in changes:
            if change.diff:
                click.echo(change.diff)
    faults = _orphan_faults(planned, specs, out)
    print_diagnostics(faults)
    if stale or faults:
        raise click.exceptions.Exit(1)


def _orphan_faults(
    planned: Sequence[Planned], specs: Sequence[Path], out: Path | None
) -> tuple[Diagnostic, ...]:
    """A fault for each product folder that belongs to no spec of the `specs` folders that the specs are in.

    Products of specs that lie elsewhere share a folder with whatever else is built from there.
    """
    folders = sorted({path.resolve().parent for path in specs})
    if any(folder.name != "specs" for folder in folders):
        return ()
    names = {item.plan.name for item in planned}
    for folder in folders:
        names |= kernel_names(folder)
    targets = sorted({_target(item, out) for item in planned})
    return tuple(
        Diagnostic(
            code="orphan",
            message=f"no spec describes {path.name}",
            path=str(path),
            help="remove the folder, or bring its spec back",
        )
        for target in targets
        for path in emit.orphans(target, names)
    )


COMMANDS = (init, build, plan, matrix, schema, lint)
