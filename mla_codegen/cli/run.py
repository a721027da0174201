"""Commands that run a kernel on a random problem: run, emulate and demo."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mla_codegen import emit
from mla_codegen.build import compile_plan, plan_spec
from mla_codegen.cli.build import SPEC, print_figures, report_changes
from mla_codegen.cli.options import problem_options
from mla_codegen.cli.output import print_diagnostics, print_json
from mla_codegen.cli.plan_text import print_plan
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.emulator.compiler import find_compiler
from mla_codegen.errors import CompileError, LaunchError
from mla_codegen.judge import Launch, Problem, Verdict, judge
from mla_codegen.loading import load
from mla_codegen.machine import find_driver, gpu_for
from mla_codegen.plan.model import Plan
from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.render import render
from mla_codegen.resources import specs_folder
from mla_codegen.runtime.host_arrays import launch_on_host_arrays
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec

DEMO_SPEC = "dsv3_fp8_sm90"
POLICIES = ("late", "early", "random")
"""When emulated copies complete; schedules take them in rotation."""

_DEMO_GPU = Problem(q_lens=(300, 1, 777), kv_lens=(1000, 513, 777))
_DEMO_EMULATED = Problem(q_lens=(130,), kv_lens=(200,), heads=1)
_DEMO_SCHEDULES = 6
_BAR_SECONDS = 1.0


@click.command()
@click.argument("spec", type=SPEC)
@problem_options(schedules=2, schedules_help="Launches; their results must be equal bit by bit.")
@click.option("--debug", is_flag=True, help="Use the debug build, which explains a hang.")
def run(
    spec: Path,
    problem: Problem,
    schedules: int,
    as_json: bool,
    debug: bool,
) -> None:
    """Run a kernel on the GPU and compare it with float64."""
    loaded = load_spec(spec)
    plan = plan_spec(loaded, debug=debug)
    _require_gpu(plan)
    launches = max(2, schedules)
    _report(judge(plan, problem, gpu_launch(loaded, debug=debug), launches=launches), as_json=as_json)


@click.command()
@click.argument("spec", type=SPEC)
@problem_options(schedules=1, schedules_help="Interleavings, of seeds seed, seed + 1 and so on.")
@click.option("--workers", type=click.IntRange(min=1), help="CTAs at a time [default: the processors].")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for what CTA 0 does in the first schedule, for ui.perfetto.dev.",
)
def emulate(
    spec: Path,
    problem: Problem,
    schedules: int,
    as_json: bool,
    workers: int | None,
    trace: Path | None,
) -> None:
    """Run a kernel on the CPU, compare it with float64 and report hazards."""
    plan = plan_spec(load_spec(spec))
    with _progress_bar(schedules, shown=not as_json) as bar:
        launch = emulated_launch(plan, render(plan), seed=problem.seed, workers=workers, trace=trace, bar=bar)
        verdict = judge(plan, problem, launch, launches=schedules)
    _report(verdict, as_json=as_json)


@click.command()
def demo() -> None:
    """Build the default kernel and run it: on the GPU where there is one, else emulated."""
    path = specs_folder() / f"{DEMO_SPEC}.yaml"
    spec = load_spec(path)
    plan = plan_spec(spec)
    out = emit.default_out(path)
    files = emit.products(plan, plan_quantizer(spec))
    report_changes(emit.write(files, out))
    source = files[0].text
    compiled = _demo_compile(plan, source)
    if compiled and gpu_for(plan.arch) is not None:
        _report(judge(plan, _DEMO_GPU, gpu_launch(spec)), as_json=False)
    elif _has_host_compiler():
        click.echo(f"no GPU for {plan.arch} with all it needs: emulating on the CPU")
        launch = emulated_launch(plan, source, seed=_DEMO_EMULATED.seed)
        _report(judge(plan, _DEMO_EMULATED, launch, launches=_DEMO_SCHEDULES), as_json=False)
    else:
        print_plan(plan)
        click.echo(f"not run: no GPU for {plan.arch} here; `mla-codegen doctor` says what is missing")
        click.echo(f"on a machine with one: pip install 'mla-codegen[cuda13]' && mla-codegen run {path}")


def gpu_launch(spec: Spec, *, debug: bool = False) -> Launch:
    """Launches of the kernel of `spec` on the GPU, from and to NumPy arrays."""
    kernel = load(spec, debug=debug)

    def launch(
        arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int
    ) -> tuple[str, ...] | None:
        launch_on_host_arrays(kernel, arguments, out, lse)
        return None

    return launch


Bar: TypeAlias = "Callable[[int, int, int], None]"
"""Takes the number of a launch from 0, its CTAs done and its CTAs in all."""


def emulated_launch(
    plan: Plan,
    source: str,
    *,
    seed: int,
    workers: int | None = None,
    trace: Path | None = None,
    bar: Bar | None = None,
) -> Launch:
    """Launches of the generated source on the CPU, each a schedule of its own; `trace` shows the first."""
    kernel = EmulatedKernel(plan, source)

    def launch(
        arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int
    ) -> tuple[str, ...] | None:
        policy = POLICIES[number % len(POLICIES)]
        results = {"out": out} if lse is None else {"out": out, "lse": lse}
        report = kernel.run(
            **arguments,
            **results,
            seed=seed + number,
            policy=policy,
            workers=workers or os.cpu_count() or 1,
            trace=trace if number == 0 else None,
            progress=None if bar is None else functools.partial(bar, number),
        )
        return tuple(hazard.render(report.source_name) for hazard in report.hazards)

    return launch


def _has_host_compiler() -> bool:
    """Whether a C++ compiler is found; says on stderr what to install where it is not."""
    try:
        find_compiler()
    except CompileError as error:
        print_diagnostics(error.diagnostics)
        return False
    return True


@contextlib.contextmanager
def _progress_bar(schedules: int, *, shown: bool) -> Iterator[Bar | None]:
    """A bar on stderr from the second second on, where that is a terminal; gone at the end."""
    console = Console(stderr=True)
    if not (shown and console.file.isatty()):
        yield None
        return
    columns = (TextColumn("emulating"), BarColumn(), MofNCompleteColumn(), TextColumn("CTAs"))
    progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    begin = time.perf_counter()

    def bar(number: int, done: int, total: int) -> None:
        if not progress.tasks:
            if time.perf_counter() - begin < _BAR_SECONDS:
                return
            progress.add_task("emulating", total=schedules * total)
            progress.start()
        progress.update(progress.task_ids[0], completed=number * total + done)

    try:
        yield bar
    finally:
        if progress.tasks:
            progress.stop()


def _require_gpu(plan: Plan) -> None:
    if gpu_for(plan.arch) is not None:
        return
    driver = find_driver()
    gpus = () if driver is None else driver.gpus
    found = ", ".join(gpu.name for gpu in gpus) or ("no CUDA driver" if driver is None else "no GPU")
    help = "run on a machine with such a GPU; `mla-codegen build` needs none"
    raise LaunchError.single("no-gpu", f"{plan.name} needs a GPU for {plan.arch}, found {found}", help=help)


def _demo_compile(plan: Plan, source: str) -> bool:
    """Compiles and prints the figures; prints why and gives False where there is no NVRTC for it."""
    try:
        result = compile_plan(plan, source)
    except CompileError as error:
        if any(fault.code not in ("nvrtc-missing", "nvrtc-too-old") for fault in error.diagnostics):
            raise
        reason = error.diagnostics[0]
        click.echo(f"not compiled: {reason.message}" + (f"; {reason.help}" if reason.help else ""))
        return False
    print_figures([(plan, plan.arch, result)])
    return True


def _report(verdict: Verdict, *, as_json: bool) -> None:
    """Prints the verdict; exits with 1 where it is not clean."""
    if as_json:
        print_json(verdict.to_mapping())
    else:
        _print_verdict(verdict)
    if not verdict.clean:
        raise click.exceptions.Exit(1)


def _print_verdict(verdict: Verdict) -> None:
    error, bound = verdict.error, verdict.bound
    lengths = zip(("q", "kv"), (verdict.problem.q_lens, verdict.problem.kv_lens), strict=True)
    shape = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in lengths)
    click.echo(
        f"{verdict.spec} on {verdict.arch}: {shape}, data {verdict.problem.data}, seed {verdict.problem.seed}"
    )
    click.echo(f"  relative error {error.rel_frobenius:.2e} (allowed {bound.rel_frobenius:.2e})")
    click.echo(f"  worst row {error.worst_row:.2e} at {error.worst_row_coordinate}")
    if error.lse_abs is not None:
        click.echo(f"  LSE error {error.lse_abs:.2e} (allowed {bound.lse_abs:.0e} + 2^-21 |LSE|)")
    for name, places in (("output", error.nonfinite_mismatch), ("LSE", error.lse_nonfinite_mismatch)):
        if places:
            click.echo(f"  {name} has inf or NaN in the wrong place, first at {places[0]}")
    if verdict.launches > 1:
        click.echo(f"  {verdict.launches} launches, bits {'equal' if verdict.same_bits else 'differ'}")
    for hazard in verdict.hazards or ():
        click.echo(f"  hazard: {hazard}")
    click.echo(f"  {verdict.seconds:.3f} s in the kernel's calls")
    kept = "kept" if verdict.contract_kept else "broken"
    count = "" if verdict.hazards is None else _counted(len(verdict.hazards), "hazard") + ", "
    click.echo(f"{count}error {error.rel_frobenius:.1e}, contract {kept}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


COMMANDS = (run, emulate, demo)
