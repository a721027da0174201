"""The shipped kernels, compiled once for all tests of this folder; and the compilers and tools at hand."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from mla_codegen.build import plan_files
from mla_codegen.errors import CompileError
from mla_codegen.plan.model import Plan, Sm100Variant, Variant
from mla_codegen.render import render
from mla_codegen.resources import specs_folder
from mla_codegen.runtime.compiler_log import judge_log, parse_log
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.elf import read_cubin
from mla_codegen.runtime.nvrtc import CompileResult, compile_source, find_nvrtc
from mla_codegen.runtime.packing import params_layout

SPECS = {path.stem: path for path in sorted(specs_folder().glob("*.yaml"))}
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([^;]*?) *;")
HOPPER = tuple(name for name in SPECS if name.endswith("_sm90"))
BLACKWELL = tuple(name for name in SPECS if name.endswith("_sm100"))
BLACKWELL_ARCHS = ("sm_100a", "sm_100f", "sm_103a")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)")


@functools.cache
def nvrtc_missing(arch: str = "sm_90a") -> str | None:
    """Why nothing can be compiled for `arch` here; None where it can."""
    try:
        find_nvrtc(arch)
    except CompileError as error:
        return error.diagnostics[0].message
    return None


@functools.cache
def planned(name: str, *, debug: bool = False) -> tuple[Plan, str]:
    """Plan and source of a shipped spec."""
    (found,) = plan_files([SPECS[name]], debug=debug)
    return found.plan, render(found.plan)


@functools.cache
def compiled(name: str, *, arch: str | None = None, debug: bool = False) -> CompileResult:
    """The cubin of a shipped spec for its arch or another one of its family; a debug build may spill."""
    plan, source = planned(name, debug=debug)
    return compile_source(source, arch=arch or plan.arch, name=name, strict=not debug)


def compile_errors(source: str, *, arch: str) -> str:
    """What the compiler says about a source that it must refuse."""
    try:
        compile_source(source, arch=arch, name="refused")
    except CompileError as error:
        return str(error)
    raise AssertionError(f"the compiler took the source for {arch}")


def compiled_by_nvcc(name: str, folder: Path) -> CompileResult:
    """The cubin of a shipped spec by the offline compiler, without warnings; skips without nvcc on PATH."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc on PATH")
    plan, source = planned(name)
    path, cubin = folder / f"{name}.cu", folder / f"{name}.cubin"
    path.write_text(source)
    target = f"-gencode=arch=compute_{plan.arch.removeprefix('sm_')},code={plan.arch}"
    done = subprocess.run(
        [compiler, "-cubin", target, "-std=c++17", "-Xptxas=-v", "-o", cubin, path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entries = parse_log(done.stderr)
    assert judge_log(done.stderr, entries, path=path.name) == ()
    return CompileResult(
        cubin=cubin.read_bytes(), log=done.stderr, entries=entries, seconds=0.0, options=(target,),
        nvrtc_version=(0, 0), library_path=compiler,
    )  # fmt: skip


def wheel_tool(name: str) -> Path | None:
    """A tool that the wheels of the extra `inspect` bring, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = (Path(root) / "cu13" / "bin" / name for root in roots)
    return next((path for path in found if path.is_file()), None)


def instructions(cubin: Path, cuobjdump: Path) -> list[str]:
    """The machine instructions of a cubin in their order, without predicates."""
    listing = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    return [match[1] for match in re.finditer(_INSTRUCTION, listing)]


def opcodes(cubin: Path, cuobjdump: Path) -> Counter[str]:
    """How often each machine instruction stands in a cubin, by its full name."""
    done = subprocess.run(
        [cuobjdump, "-sass", cubin], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return Counter(_OPCODE.findall(done.stdout))


def assert_as_planned(variant: Variant | Sm100Variant, result: CompileResult, *, sm: int = 90) -> None:
    """Figures and cubin against the plan, number by number."""
    figures, launch = result.entry(variant.entry), variant.launch
    assert (figures.spill_store_bytes, figures.spill_load_bytes, figures.stack_bytes) == (0, 0, 0)
    assert (figures.registers, figures.barriers) == (launch.launch_registers, launch.reported_barriers)
    assert figures.static_smem_bytes == 0
    entry = read_cubin(result.cubin)[variant.entry]
    assert (entry.sm, entry.registers, entry.frame_bytes) == (sm, launch.launch_registers, 0)
    sizes = [128] * len(variant.tensor_maps) + [params_layout(variant.params).size_bytes]
    assert [parameter.size for parameter in entry.parameters] == sizes
    assert check_against_plan(variant, result) == ()
