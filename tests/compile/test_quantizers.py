"""Quantisers of the shipped specs and of every form: they compile without spills, as their plans say."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.render import render_quantizer
from mla_codegen.runtime.elf import read_cubin
from mla_codegen.runtime.nvrtc import CompileResult, compile_source
from mla_codegen.runtime.packing import params_layout
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec
from mla_codegen.template_lint import MAX_COLUMNS
from tests.compile.support import SPECS, compile_errors, nvrtc_missing, opcodes, wheel_tool

pytestmark = pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}")

SHIPPED = [name for name, path in SPECS.items() if plan_quantizer(load_spec(path)) is not None]
FORMS = ("none", "tensor", "head", "token", "token_head")
_SM_REGISTERS = 65536


def spec_of(**changes: dict[str, Any]) -> Spec:
    mapping: dict[str, Any] = {
        "name": "form",
        "arch": "sm_90a",
        "dtypes": {"qkv": "e4m3"},
        "dims": {"nope": 128, "rope": 64, "v": 128},
        **changes,
    }
    return Spec.from_mapping(mapping)


def planned(spec: Spec) -> tuple[QuantizerPlan, str]:
    plan = plan_quantizer(spec)
    assert plan is not None
    return plan, render_quantizer(plan)


def constant(plan: QuantizerPlan, name: str) -> int:
    (value,) = (one.literal for group in plan.constants for one in group.constants if one.name == name)
    return int(value)


def assert_compiles(spec: Spec) -> CompileResult:
    """Strictly: a spill, local memory, or a warning is a CompileError."""
    plan, source = planned(spec)
    assert [line for line in source.splitlines() if len(line) > MAX_COLUMNS] == []
    result = compile_source(source, arch=plan.arch, name=plan.name)
    entries = read_cubin(result.cubin)
    assert sorted(entries) == sorted(plan.entries())
    for name, entry in entries.items():
        figures = result.entry(name)
        assert (figures.spill_store_bytes, figures.spill_load_bytes, figures.stack_bytes) == (0, 0, 0)
        assert (figures.static_smem_bytes, entry.frame_bytes) == (0, 0)
        assert [parameter.size for parameter in entry.parameters] == [params_layout(plan.params).size_bytes]
        ctas = constant(plan, "kMinCtas")
        assert -(-entry.registers // 8) * 8 * plan.threads * ctas <= _SM_REGISTERS
    return result


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_specs(name: str, tmp_path: Path) -> None:
    spec = load_spec(SPECS[name])
    result = assert_compiles(spec)
    cuobjdump = wheel_tool("cuobjdump")
    if cuobjdump is None or wheel_tool("nvdisasm") is None:
        pytest.skip("needs cuobjdump and nvdisasm: install mla-codegen[inspect]")
    (tmp_path / "quantizer.cubin").write_bytes(result.cubin)
    found = opcodes(tmp_path / "quantizer.cubin", cuobjdump)
    stems = {stem: sum(n for full, n in found.items() if full.startswith(stem)) for stem in ("LDL", "STL")}
    assert stems == {"LDL": 0, "STL": 0}
    # Inputs are read 16 bytes at a time and in no other way; two e4m3 numbers are made at a time.
    assert found["LDG.E.128.CONSTANT"] > 0
    assert not [full for full in found if re.match(r"LDG\.E(\.64|\.U|\.S)", full)]
    assert any(full.startswith("F2FP.SATFINITE.E4M3") for full in found)


@pytest.mark.parametrize(("form", "rope"), list(itertools.product(FORMS, ("prescaled", "raw"))))
def test_every_form(form: str, rope: str) -> None:
    k_form = "token" if rope == "prescaled" and form in ("head", "token_head") else form
    scales = {"q": form, "k": k_form, "v": form, **({} if form == "none" else {"rope": rope})}
    for layout in (
        {"q": "ragged", "kv": "ragged", "v": "rows"},
        {"q": "dense", "kv": "dense", "v": "transposed"},
    ):
        assert_compiles(spec_of(scales=scales, layout=layout))


@pytest.mark.parametrize("rope", ["f16", "e4m3"])
def test_other_rope(rope: str) -> None:
    dtypes = {"qkv": "e4m3", "rope_gmem": rope, "rope_mma": rope}
    for q in ("token", "none"):
        assert_compiles(spec_of(dtypes=dtypes, scales={"q": q, "k": "tensor", "rope": "prescaled"}))


@pytest.mark.parametrize(
    ("nope", "rope", "v"),
    [(192, 64, 256), (16, 16, 16), (256, 64, 208), (240, 16, 176), (64, 0, 96), (144, 112, 16)],
)
@pytest.mark.parametrize("v_layout", ["rows", "transposed"])
def test_other_dimensions(nope: int, rope: int, v: int, v_layout: str) -> None:
    scales = {"q": "token", "k": "token", "v": "token", **({"rope": "prescaled"} if rope else {})}
    dims = {"nope": nope, "rope": rope, "v": v}
    assert_compiles(spec_of(dims=dims, scales=scales, layout={"v": v_layout}))


def test_rows_that_fit_no_registers_have_no_quantiser() -> None:
    assert plan_quantizer(spec_of(dims={"nope": 256, "rope": 240, "v": 128})) is None
    assert plan_quantizer(spec_of(dims={"nope": 240, "rope": 144, "v": 128})) is not None


def test_threads_of_a_cta() -> None:
    """As many as 64 registers a thread allow; either number can be asked for."""
    default = spec_of(scales={"q": "token", "k": "token", "rope": "prescaled"})
    assert (planned(default)[0].threads, planned(load_spec(SPECS["glm_fp8_sm90"]))[0].threads) == (512, 256)
    few = plan_quantizer(default, threads=256)
    assert few is not None
    assert (few.threads, constant(few, "kQSteps"), constant(few, "kQRows")) == (256, 4, 128)
    assert [constant(planned(default)[0], name) for name in ("kQSteps", "kQRows")] == [2, 128]
    result = compile_source(render_quantizer(few), arch=few.arch, name=few.name)
    assert all(figures.registers <= 128 for figures in result.entries)


def test_a_wrong_offset_stops_with_our_message() -> None:
    _, source = planned(load_spec(SPECS["dsv3_fp8_vt_sm90"]))
    right = "(QuantizeSmem, v_smem, 2048, 32768)"
    assert source.count(right) == 1
    said = compile_errors(source.replace(right, "(QuantizeSmem, v_smem, 2064, 32768)"), arch="sm_90a")
    assert "planner and compiler disagree on QuantizeSmem::v_smem; regenerate" in said


def test_plain_sm_90_stops_with_our_message() -> None:
    plan, source = planned(load_spec(SPECS["dsv3_fp8_sm90"]))
    assert plan.arch_guard_message in compile_errors(source, arch="sm_90")
