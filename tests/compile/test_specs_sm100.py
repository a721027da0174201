"""Every shipped Blackwell spec, and every form: without spills and warnings for each target of the family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mla_codegen.plan.model import Sm100Body
from mla_codegen.render import render
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.nvrtc import compile_options, compile_source
from tests.compile.support import (
    BLACKWELL,
    BLACKWELL_ARCHS,
    assert_as_planned,
    compile_errors,
    compiled,
    compiled_by_nvcc,
    nvrtc_missing,
    opcodes,
    planned,
    wheel_tool,
)
from tests.emulator.sm100_forms import FORMS, plan_of

pytestmark = pytest.mark.skipif(
    nvrtc_missing("sm_103a") is not None, reason=f"needs NVRTC: {nvrtc_missing('sm_103a')}"
)
SM = {"sm_100a": 100, "sm_100f": 100, "sm_103a": 103}
STEMS = ("UTCQMMA", "UTCHMMA", "LDTM", "STTM", "UTCBAR", "UTMALDG", "USETMAXREG", "LDL", "STL")


@pytest.mark.parametrize("arch", BLACKWELL_ARCHS)
@pytest.mark.parametrize("name", BLACKWELL)
def test_it_compiles_as_planned_and_without_a_word(name: str, arch: str) -> None:
    result = compiled(name, arch=arch)
    (variant,) = planned(name)[0].variants
    assert_as_planned(variant, result, sm=SM[arch])
    assert "warning" not in result.log
    assert result.options == compile_options(arch)


@pytest.mark.parametrize("arch", BLACKWELL_ARCHS)
@pytest.mark.parametrize("name", FORMS)
def test_forms_compile_as_planned_and_without_a_word(name: str, arch: str) -> None:
    plan = plan_of(name)
    result = compile_source(render(plan), arch=arch, name=name)
    assert_as_planned(plan.variants[0], result, sm=SM[arch])
    assert "warning" not in result.log


@pytest.mark.parametrize("name", BLACKWELL)
def test_the_debug_build_compiles(name: str) -> None:
    plan, _ = planned(name, debug=True)
    result = compiled(name, debug=True)
    for variant in plan.variants:
        assert variant.features.debug
        assert check_against_plan(variant, result) == ()
    assert b"mla_debug_record" in result.cubin
    assert b"mla_debug_record" not in compiled(name).cubin


@pytest.mark.parametrize("name", BLACKWELL)
def test_it_needs_no_header(name: str) -> None:
    includes = re.findall(r"^\s*#\s*include.*", planned(name)[1], flags=re.M)
    assert [line.split()[1] for line in includes] == ['"mla_host_model.hpp"'], "the emulator's, and no other"


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100", "sm_103", "sm_120a"])
@pytest.mark.parametrize("name", BLACKWELL)
def test_other_targets_stop_with_our_message(name: str, arch: str) -> None:
    plan, source = planned(name)
    assert plan.arch_guard_message in compile_errors(source, arch=arch)
    assert all(target in plan.arch_guard_message for target in BLACKWELL_ARCHS)


@pytest.mark.parametrize("name", BLACKWELL)
def test_a_wrong_offset_or_size_stops_with_our_message(name: str) -> None:
    plan, source = planned(name)
    for body in plan.variants[0].bodies:
        # The namespace of the body: the same line may stand in the other one as well.
        head, begin, tail = source.partition(f"namespace {body.name} {{")
        assert begin
        for field in body.smem.fields:
            offset, size = field.offset_bytes, field.size_bytes
            right = f"(MLASmemStorage, {field.name}, {offset}, {size})"
            assert right in tail
            for wrong in (f"{offset + 16}, {size}", f"{offset}, {size + 16}"):
                changed = tail.replace(right, f"(MLASmemStorage, {field.name}, {wrong})", 1)
                said = compile_errors(head + begin + changed, arch="sm_100a")
                assert f"planner and compiler disagree on MLASmemStorage::{field.name}; regenerate" in said


def issues(body: Sm100Body) -> dict[str, int]:
    """Products of each machine instruction in the source of a body, from its plan.

    Q*K stands once for each side, with the chunks of nope in a loop; P*V stands once for each side and, of
    side 1, once behind the loop. With a single O both stand once.
    """
    constants = {item.name: item.literal for group in body.constants for item in group.constants}
    sides, pv_places = (1, 1) if body.name == "single_o" else (2, 3)
    step = int(constants["kMmaStepBytes"])
    steps = {
        "nope": int(constants["kNopeWidth"]) // step,
        "rope": int(constants["kRopeChunks"]) * int(constants["kRopeWidth"]) // step,
        "pv": int(constants["kPvSteps"]),
    }
    counts = {"UTCQMMA": 0, "UTCHMMA": 0}
    for name, places in (("nope", sides), ("rope", sides), ("pv", pv_places)):
        opcode = "UTCQMMA" if getattr(body.mma, name).endswith("f8f6f4") else "UTCHMMA"
        counts[opcode] += places * steps[name]
    return counts


@pytest.mark.parametrize("name", BLACKWELL)
def test_its_machine_code_has_the_planned_instructions(name: str, tmp_path: Path) -> None:
    cuobjdump = wheel_tool("cuobjdump")
    if cuobjdump is None or wheel_tool("nvdisasm") is None:
        pytest.skip("needs cuobjdump and nvdisasm: install mla-codegen[inspect]")
    (variant,) = planned(name)[0].variants
    (tmp_path / "kernel.cubin").write_bytes(compiled(name).cubin)
    found = opcodes(tmp_path / "kernel.cubin", cuobjdump)
    stems = {stem: sum(n for full, n in found.items() if full.split(".")[0] == stem) for stem in STEMS}
    wanted = {"UTCQMMA": 0, "UTCHMMA": 0}
    for body in variant.bodies:
        for opcode, count in issues(body).items():
            wanted[opcode] += count
    assert {opcode: stems[opcode] for opcode in wanted} == wanted
    bodies = len(variant.bodies)
    # Of each body: S in groups of 32 columns in two loops, O for the correction and the output.
    assert stems["LDTM"] >= bodies * (2 * 4 + 2)
    assert stems["STTM"] >= bodies * (2 * 4 + 1)  # P in groups, O
    assert stems["UTCBAR"] >= bodies * 4  # commits: S, O, K and V given back
    assert stems["UTMALDG"] >= len(variant.tensor_maps)
    assert stems["USETMAXREG"] == bodies * 3
    assert found["MUFU.EX2"] > 0
    assert (stems["LDL"], stems["STL"]) == (0, 0)


@pytest.mark.parametrize("name", BLACKWELL)
def test_nvcc_compiles_it_too(name: str, tmp_path: Path) -> None:
    result = compiled_by_nvcc(name, tmp_path)
    for variant in planned(name)[0].variants:
        assert_as_planned(variant, result, sm=100)
