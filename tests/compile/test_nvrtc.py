"""The real compiler: what it is given, what is refused, what the cubin says. Needs NVRTC, no GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mla_codegen.errors import CompileError
from mla_codegen.plan.model import ParamField, Variant
from mla_codegen.resources import primitives_folder
from mla_codegen.runtime import nvrtc_library
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.elf import read_cubin
from mla_codegen.runtime.nvrtc import compile_options, compile_source
from tests.compile.support import nvrtc_missing
from tests.unit.plan_fixture import make_plan

TYPES = primitives_folder() / "device" / "types.cuh"


pytestmark = pytest.mark.skipif(
    nvrtc_missing("sm_100f") is not None, reason=f"needs NVRTC: {nvrtc_missing('sm_100f')}"
)

TINY = """
struct Params { float* out; i64 stride; u32 count; };
extern "C" __global__ void __launch_bounds__(128, 1) tiny(
    const __grid_constant__ TensorMap first, const __grid_constant__ TensorMap second,
    const __grid_constant__ Params params) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&first));
  asm volatile("prefetch.tensormap [%0];" ::"l"(&second));
  asm volatile("bar.sync 5, 128;" ::: "memory");
  if (threadIdx.x < params.count) params.out[threadIdx.x * params.stride] = 1.0f;
}
"""
# 8 + 8 + 4 bytes, rounded to the alignment of 8.
TINY_PARAMS = (("float*", "out"), ("i64", "stride"), ("u32", "count"))

SPILLING = """
extern "C" __global__ void __maxnreg__(32) spilling(float* values) {
  float kept[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) kept[i] = values[i * 7];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = kept[i] * kept[63 - i];
}
"""

LOCAL = """
extern "C" __global__ void local(float* values, int count) {
  float kept[640];
  for (int i = 0; i < count; ++i) kept[i] = values[i * 7];
  values[0] = kept[count];
}
"""

SERIALISED = """
extern "C" __global__ void __launch_bounds__(128, 1) serialised(
    float* out, unsigned long long a, unsigned long long b, int steps) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < steps; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
                 "%4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;");
    d[0] += 1.0f;
    asm volatile("wgmma.wait_group.sync.aligned 0;");
  }
  out[0] = d[0] + d[1] + d[2] + d[3];
}
"""


def tiny_source() -> str:
    return TYPES.read_text() + TINY


@pytest.mark.parametrize(
    ("arch", "sm"), [("sm_90a", 90), ("sm_100a", 100), ("sm_100f", 100), ("sm_103a", 103)]
)
def test_a_kernel_compiles_without_any_header(arch: str, sm: int) -> None:
    result = compile_source(tiny_source(), arch=arch, name="tiny")
    figures = result.entry("tiny")
    assert (figures.barriers, figures.stack_bytes, figures.spill_store_bytes) == (6, 0, 0)
    assert not any(option.startswith(("-I", "--include-path")) for option in result.options)
    assert result.options == compile_options(arch)
    entry = read_cubin(result.cubin)["tiny"]
    assert (entry.sm, entry.registers, entry.frame_bytes) == (sm, figures.registers, 0)
    assert [parameter.size for parameter in entry.parameters] == [128, 128, 24]
    assert all(parameter.address % 64 == 0 for parameter in entry.parameters[:2])


def test_there_is_no_include_path() -> None:
    with pytest.raises(CompileError) as caught:
        compile_source("#include <cuda_fp16.h>\n", arch="sm_90a", name="header")
    assert any("could not open source file" in note for note in caught.value.diagnostics[0].notes)


def test_the_same_source_gives_the_same_bytes() -> None:
    first, second = (compile_source(tiny_source(), arch="sm_90a", name="tiny") for _ in range(2))
    assert first.cubin == second.cubin


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (SPILLING, "register-spill", "kernel spilling spills"),
        (LOCAL, "local-memory", "kernel local uses 2560 B of local memory, 0 B are allowed"),
        (SERIALISED, "ptxas-note", "wgmma.mma_async instructions are serialized"),
    ],
)
def test_what_costs_speed_is_refused(source: str, code: str, said: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_source(source, arch="sm_90a", name="bad")
    assert {fault.code for fault in caught.value.diagnostics} == {code}
    assert said in str(caught.value)
    assert compile_source(source, arch="sm_90a", name="bad", strict=False).cubin


def test_errors_name_place_compiler_and_options() -> None:
    with pytest.raises(CompileError) as caught:
        compile_source('extern "C" __global__ void k() { missing(); }\n', arch="sm_90a", name="wrong")
    (fault,) = caught.value.diagnostics
    assert (fault.code, fault.path) == ("nvrtc-compile", "wrong.cu")
    assert any("wrong.cu(1): error" in note for note in fault.notes)
    assert any("-arch=sm_90a" in note for note in fault.notes)


def test_an_unknown_target_is_named_with_the_library() -> None:
    with pytest.raises(CompileError) as caught:
        compile_source(tiny_source(), arch="sm_77z", name="tiny")
    message = caught.value.diagnostics[0].message
    assert "sm_77z" in message and "libnvrtc" in message and message.startswith("NVRTC ")


def test_a_compiler_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvrtc_library.find_nvrtc("sm_90a")

    class Old(nvrtc_library.Nvrtc):
        def __init__(self, path: str) -> None:
            self.path, self.version = path, (12, 8)

    monkeypatch.setattr(nvrtc_library, "library_paths", lambda: iter([real.path]))
    monkeypatch.setattr(nvrtc_library, "_load", Old)
    with pytest.raises(CompileError) as caught:
        nvrtc_library.find_nvrtc("sm_100f")
    assert str(caught.value).startswith(
        f"error[nvrtc-too-old]: sm_100f needs NVRTC 12.9 or newer, found NVRTC 12.8 ({real.path})\n"
    )


def test_a_missing_compiler_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_library, "library_paths", lambda: iter(["libnvrtc_that_is_not_there.so"]))
    with pytest.raises(CompileError) as caught:
        nvrtc_library.find_nvrtc("sm_90a")
    assert str(caught.value) == (
        "error[nvrtc-missing]: no NVRTC library found to compile for sm_90a\n"
        "  help: install the extra mla-codegen[cuda13] (or mla-codegen[cuda12] for a driver of CUDA 12)"
    )


def tiny_variant(*, registers: int, barriers: int, params: tuple[tuple[str, str], ...]) -> Variant:
    variant = make_plan().variants[0]
    launch = dataclasses.replace(variant.launch, launch_registers=registers, reported_barriers=barriers)
    fields = tuple(ParamField(ctype=ctype, name=name, comment="") for ctype, name in params)
    return dataclasses.replace(variant, tensor_maps=variant.tensor_maps[:2], params=fields, launch=launch)


def test_cubin_is_compared_with_the_plan() -> None:
    result = compile_source(tiny_source(), arch="sm_90a", name="tiny")
    registers = result.entry("tiny").registers
    right = tiny_variant(registers=registers, barriers=6, params=TINY_PARAMS)
    assert not check_against_plan(right, result)
    wrong = tiny_variant(registers=registers + 8, barriers=7, params=TINY_PARAMS[:2])
    faults = {fault.code: fault.message for fault in check_against_plan(wrong, result)}
    assert faults == {
        "cubin-registers": f"kernel tiny has {registers} registers per thread, the plan says {registers + 8}",
        "cubin-barriers": "kernel tiny has 6 barriers, the plan says 7",
        "cubin-parameters": "kernel tiny takes parameters of [128, 128, 24] B, "
        "the plan says [128, 128, 16] B",
    }


def test_a_damaged_cubin_is_refused() -> None:
    with pytest.raises(CompileError, match="cannot be read as a CUDA ELF file"):
        read_cubin(b"\x7fELF\x02 and no more")


WORKER = """
import sys
from pathlib import Path
from mla_codegen.runtime import nvrtc
from mla_codegen.runtime.cache import CubinCache
from tests.compile.test_nvrtc import tiny_source
def counted(source, *, arch, name, extra_options=(), strict=True):
    with open(sys.argv[2], "a") as log:
        log.write("compiled\\n")
    return nvrtc.compile_source(source, arch=arch, name=name, extra_options=extra_options, strict=strict)
cache = CubinCache(Path(sys.argv[1]), compile_function=counted)
assert cache.get(tiny_source(), arch="sm_90a", name="tiny").cubin.startswith(b"\\x7fELF")
"""


def test_sixteen_cold_processes_compile_once(tmp_path: Path) -> None:
    if os.name != "posix":
        pytest.skip("needs the file locks of a Unix system")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WORKER, str(tmp_path / "cache"), str(tmp_path / "log")]
    workers = [subprocess.Popen(command, cwd=root) for _ in range(16)]
    assert [worker.wait(timeout=300) for worker in workers] == [0] * 16
    assert (tmp_path / "log").read_text() == "compiled\n"
