"""Every shipped Hopper spec: it compiles without spills, as its plan says, from nothing but its own text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mla_codegen.plan.model import Variant
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.elf import read_cubin
from mla_codegen.runtime.nvrtc import compile_options
from tests.compile.support import (
    HOPPER,
    assert_as_planned,
    compile_errors,
    compiled,
    compiled_by_nvcc,
    nvrtc_missing,
    opcodes,
    planned,
    wheel_tool,
)

pytestmark = [
    pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}"),
    pytest.mark.parametrize("name", HOPPER),
]


def test_it_compiles_as_planned(name: str) -> None:
    plan, _ = planned(name)
    result = compiled(name)
    assert sorted(read_cubin(result.cubin)) == sorted(variant.entry for variant in plan.variants)
    for variant in plan.variants:
        assert_as_planned(variant, result)


def test_it_needs_no_header_and_no_include_path(name: str) -> None:
    _, source = planned(name)
    includes = re.findall(r"^\s*#\s*include.*", source, flags=re.M)
    assert [line.split()[1] for line in includes] == ['"mla_host_model.hpp"'], "the emulator's, and no other"
    options = compiled(name).options
    assert options == compile_options("sm_90a")
    assert not [option for option in options if "include" in option or option.startswith("-I")]


def test_the_debug_build_compiles(name: str) -> None:
    plan, _ = planned(name, debug=True)
    result = compiled(name, debug=True)
    assert all(variant.features.debug for variant in plan.variants)
    for variant in plan.variants:
        assert check_against_plan(variant, result) == ()
    assert b"mla_debug_record" in result.cubin
    assert b"mla_debug_record" not in compiled(name).cubin


def test_plain_sm_90_stops_with_our_message(name: str) -> None:
    plan, source = planned(name)
    said = compile_errors(source, arch="sm_90")
    assert plan.arch_guard_message in said
    assert "sm_90a" in plan.arch_guard_message


def test_a_wrong_offset_or_size_stops_with_our_message(name: str) -> None:
    plan, source = planned(name)
    for field in plan.variants[0].smem.fields:
        offset, size = field.offset_bytes, field.size_bytes
        right = f"(MLASmemStorage, {field.name}, {offset}, {size})"
        assert source.count(right) == 1
        for wrong_offset, wrong_size in ((offset + 16, size), (offset, size + 16)):
            wrong = f"(MLASmemStorage, {field.name}, {wrong_offset}, {wrong_size})"
            said = compile_errors(source.replace(right, wrong), arch="sm_90a")
            assert said.count("planner and compiler disagree") == 1
            assert f"planner and compiler disagree on MLASmemStorage::{field.name}; regenerate" in said


def test_a_struct_that_differs_from_the_plan_stops_with_our_message(name: str) -> None:
    plan, source = planned(name)
    field = plan.variants[0].smem.fields[0]
    wrong, changed = re.subn(rf"(\b{field.name})\[\w+\];", rf"\1[{field.count + 16}];", source)
    assert changed == 1
    said = compile_errors(wrong, arch="sm_90a")
    assert f"planner and compiler disagree on MLASmemStorage::{field.name}; regenerate" in said


def gmma_counts(variant: Variant) -> dict[str, int]:
    """How many products of each machine instruction the consumer holds, from the plan's constants.

    Q*K is inlined for the last block, the masked and the unmasked loop; P*V for both loops and at the end.
    Where unmasked blocks go in pairs, their loop has two and there is one for the block that is left over.
    """
    copies = 5 if variant.features.lazy_softmax and not variant.features.lowers_lift else 3
    constants = {item.name: item.literal for group in variant.constants for item in group.constants}
    nope = int(constants["kNopeChunks"]) * int(constants["kNopeWidth"]) // int(constants["kKStepBytes"])
    rope = int(constants["kRopeChunks"]) * int(constants["kRopeWidth"]) // int(constants["kKStepBytes"])
    pv = sum(chunk.steps for chunk in variant.v_transposed_chunks) or int(constants["kPvSteps"])
    counts = {"QGMMA": 0, "HGMMA": 0}
    mma = variant.mma
    for function, steps in ((mma.qk_nope, nope), (mma.qk_rope, rope), (mma.pv, pv)):
        counts["QGMMA" if "_e4m3_" in function else "HGMMA"] += copies * steps
    return counts


def test_its_machine_code_has_the_planned_instructions(name: str, tmp_path: Path) -> None:
    cuobjdump = wheel_tool("cuobjdump")
    if cuobjdump is None or wheel_tool("nvdisasm") is None:
        pytest.skip("needs cuobjdump and nvdisasm: install mla-codegen[inspect]")
    plan, _ = planned(name)
    (variant,) = plan.variants
    (tmp_path / "kernel.cubin").write_bytes(compiled(name).cubin)
    found = opcodes(tmp_path / "kernel.cubin", cuobjdump)
    stems = {stem: sum(n for full, n in found.items() if full.split(".")[0] == stem) for stem in STEMS}
    assert {stem: stems[stem] for stem in ("QGMMA", "HGMMA")} == gmma_counts(variant)
    # Each tensor map is copied from; boxes of a tile may share a loop.
    assert stems["UTMALDG"] >= len(variant.tensor_maps)
    assert found["MUFU.EX2"] > 0
    assert (stems["LDL"], stems["STL"]) == (0, 0)


STEMS = ("QGMMA", "HGMMA", "UTMALDG", "LDL", "STL")


def test_nvcc_compiles_it_too(name: str, tmp_path: Path) -> None:
    result = compiled_by_nvcc(name, tmp_path)
    for variant in planned(name)[0].variants:
        assert_as_planned(variant, result)
