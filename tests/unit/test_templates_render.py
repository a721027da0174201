"""What every rendered source keeps to, and that what a kernel does not do leaves no trace in it."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mla_codegen.plan import Plan, make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec

SPECS = Path(__file__).parents[2] / "specs"
COLUMNS = 110
MOST_LINES = 1500
"""Of a source that is committed."""
MOST_LINES_OF_A_VARIANT = 1520
DEBUG_LINES = 42
"""A debug build's wait has so many lines more; such sources are not committed."""
LARGEST_NUMBER = 448
"""The largest number that a body may print: the largest e4m3; sizes and bytes come from the constants."""
SELECTORS = {0x6420, 0x7531, 0xFFFF}
"""Byte selectors of prmt and the mask of one of two halves: patterns, not numbers."""

SHIPPED: dict[str, dict[str, Any]] = {path.stem: {} for path in sorted(SPECS.glob("*_sm90.yaml"))}
FP8, BF16 = "dsv3_fp8_sm90", "dsv3_bf16_sm90"
VARIANTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    **{name: (name, {}, False) for name in SHIPPED},
    "fp8_64": (FP8, {"tile": {"block_n": 64}}, False),
    "fp8_128": (FP8, {"tile": {"block_n": 128}, "schedule": {"consumers": 2}}, False),
    "fp8_160": (FP8, {"tile": {"block_n": 160}, "schedule": {"consumers": 2}}, False),
    "fp8_two_consumers": (FP8, {"schedule": {"consumers": 2}}, False),
    "fp8_one_stage": (FP8, {"pipeline": {"kv_stages": 1, "v_stages": 1, "v_raw_stages": 1}}, False),
    "fp8_online": (FP8, {"softmax": {"variant": "online"}}, False),
    "fp8_online_160": (
        FP8,
        {"softmax": {"variant": "online"}, "tile": {"block_n": 160}, "schedule": {"consumers": 2}},
        False,
    ),
    "fp8_flush_1": (FP8, {"accumulation": {"flush_blocks": 1}}, False),
    "fp8_debug": (FP8, {}, True),
    "fp8_online_debug": (FP8, {"softmax": {"variant": "online"}}, True),
    "bf16_64": (BF16, {"tile": {"block_n": 64}}, False),
    "bf16_80": (BF16, {"tile": {"block_n": 80}}, False),
    "bf16_three_consumers": (BF16, {"schedule": {"consumers": 3}}, False),
    "bf16_debug": (BF16, {}, True),
}
FP8_NAMES = [name for name in VARIANTS if "fp8" in name]
BF16_NAMES = [name for name in VARIANTS if "bf16" in name]
ONLINE_NAMES = [name for name in VARIANTS if "online" in name]
"""Of e4m3; all others of it have the lazy softmax."""
LAZY_NAMES = [name for name in FP8_NAMES if name not in ONLINE_NAMES]
DEBUG_NAMES = [name for name in VARIANTS if "debug" in name]


@functools.cache
def plan(name: str) -> Plan:
    base, changes, debug = VARIANTS[name]
    spec = load_spec(SPECS / f"{base}.yaml")
    return make_plan(Spec.from_mapping(spec.to_mapping() | changes), debug=debug)


@functools.cache
def source(name: str) -> str:
    return render(plan(name))


def part(name: str, first: str, last: str | None = None) -> str:
    """The text from the section called `first` to the one called `last`, or to the end."""
    text = source(name)
    start = text.index(f"// ---- {first}")
    return text[start : text.index(f"// ---- {last}", start) if last else None]


def body(name: str) -> str:
    """Everything that is the kernel's own: what follows the primitives."""
    return part(name, "constants")


def without_comments(text: str) -> str:
    return re.sub(r"//.*", "", text)


def one_line(text: str) -> str:
    """The text with every run of blanks and line ends as one blank."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", VARIANTS)
def test_layout(name: str) -> None:
    _, changes, debug = VARIANTS[name]
    lines = source(name).split("\n")
    most = (MOST_LINES_OF_A_VARIANT if changes else MOST_LINES) + (DEBUG_LINES if debug else 0)
    assert len(source(name).splitlines()) <= most
    for number, line in enumerate(lines, start=1):
        assert len(line) <= COLUMNS, f"line {number} has {len(line)} columns: {line}"
        assert "\t" not in line
        assert line == line.rstrip()
        assert line.isascii()
    assert lines[-1] == "" and lines[-2] != ""
    assert "\n\n\n" not in source(name)


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_of_the_templates_is_left(name: str) -> None:
    for mark in ("{{", "{% ", "{%-", "{#", "None", "Undefined", "[]", "MappingProxyType"):
        text = source(name).replace("dynamic_smem[]", "")
        assert mark not in text, f"{mark} in {[line for line in text.splitlines() if mark in line]}"
    assert not re.search(r"\b(True|False)\b", without_comments(source(name)))


@pytest.mark.parametrize("name", VARIANTS)
def test_assembly_is_in_the_device_branch_only(name: str) -> None:
    text = source(name)
    first = text.index("#if defined(__CUDACC__) || defined(__CUDACC_RTC__)\n")
    last = text.index('#else\n#include "mla_host_model.hpp"')
    places = [match.start() for match in re.finditer(r"\basm\b", text)]
    assert len(places) > 20
    assert first < min(places) and max(places) < last
    assert text.count("mla_host_model.hpp") == 1
    assert re.findall(r"#include.*", text) == re.findall(r'#include "mla_host_model.hpp".*', text)


def accessors(name: str) -> set[str]:
    (variant,) = plan(name).variants
    return {barrier.name for barrier in variant.mbarriers}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_wait_and_arrival_names_its_barrier(name: str) -> None:
    text = without_comments(body(name))
    named = f"({'|'.join(sorted(accessors(name)))})" + r"\((?:|0|stage|\w+\.stage|\w+_stage)\)"
    helpers = re.findall(r"\bvoid (\w+)\([^{;]*?\bu32 (\w*barrier)\b", text)
    passed_on = {argument for _, argument in helpers}
    calls = re.findall(r"\bmbarrier_(?:wait|arrive|arrive_expect_tx)\((.*)", text)
    assert len(calls) >= 9
    for call in calls:
        plain = re.match(r"\w+", call).group()
        assert re.match(named, call) or plain in passed_on, f"an unnamed barrier: {call}"
    for helper, _ in helpers:
        uses = re.findall(rf"(?<!void )\b{helper}(?:<\w+>)?\(([^;]*);", text)
        assert uses, f"{helper} is not used"
        assert all(re.search(named, use) for use in uses), f"{helper} gets an unnamed barrier: {uses}"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_barrier_is_set_up_waited_on_and_arrived_at(name: str) -> None:
    text = without_comments(body(name))
    (variant,) = plan(name).variants
    code = one_line(text)
    for item in variant.mbarriers:
        barrier = item.name
        init = f"mbarrier_init(mbarrier_at(Mbarrier::{barrier}, i), {item.arrivals_constant});"
        assert text.count(f"mbarrier_init(mbarrier_at(Mbarrier::{barrier},") == 1
        assert f"for (u32 i = 0; i < {item.stages_constant}; ++i) {{ {init} }}" in code
        accessor = (
            f"u32 {barrier}({item.parameter}) {{ return mbarrier_at(Mbarrier::{barrier}, {item.stage}); }}"
        )
        assert text.count(f"__device__ __forceinline__ {accessor}\n") == 1
        assert re.search(rf"\bmbarrier_wait\({barrier}\(", text), f"nobody waits on {barrier}"
        uses = [
            line for line in text.splitlines() if re.search(rf"\b{barrier}\((?!u32|\))|\b{barrier}\(\)", line)
        ]
        others = [line for line in uses if "mbarrier_wait" not in line and "u32 " not in line.split("(")[0]]
        assert others, f"nobody arrives at {barrier}"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_barrier_lies_at_its_index_in_the_map(name: str) -> None:
    first = "smem_base() + (u32)MLA_OFFSETOF(MLASmemStorage, mbar_base)"
    address = f"u32 mbarrier_at(Mbarrier first, u32 stage) {{ return {first} + ((u32)first + stage) * "
    assert address + "(u32)sizeof(u64); }" in one_line(body(name))
    assert f"__device__ __forceinline__ {address}" in one_line(body(name))


@pytest.mark.parametrize("name", VARIANTS)
def test_barriers_are_set_up_before_anyone_can_meet_them(name: str) -> None:
    # Also before the CTA finds out whether it has work; those without leave before they meet the others.
    entry = without_comments(part(name, "entry")).split('extern "C"')[1]
    steps = ("init_barriers", "find_work", "store_empty_rows", "cta_sync", "role_of", "consumer_warpgroup")
    assert order(entry, *steps, "load_warp") == [*steps, "load_warp"]
    code = one_line(entry)
    assert re.search(r"if \(thread_index\(\) == 0\) \{[^{}]* init_barriers\(\); \}", code)
    assert "if (tile.num_blocks == 0) { store_empty_rows(params, tile); return; } cta_sync();" in code
    init = function(name, "init_barriers")
    assert init.rstrip().endswith("fence_mbarrier_init();")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_expected_byte_count_is_a_constant_of_the_plan(name: str) -> None:
    counts = re.findall(r"mbarrier_arrive_expect_tx\(\w+\(\w*\), (\w+)\)", body(name))
    assert sorted(counts) == ["kKTxBytes", "kQTxBytes", "kVTxBytes"]


@pytest.mark.parametrize("name", VARIANTS)
def test_bodies_print_no_magic_numbers(name: str) -> None:
    text = without_comments(part(name, "barriers", "shared memory") + part(name, "arguments"))
    for literal in re.findall(r"(?<![\w.])(?:0x[0-9a-fA-F]+|\d+)", text):
        number = int(literal, 0)
        assert number <= LARGEST_NUMBER or number in SELECTORS, f"{literal} has no name"


@pytest.mark.parametrize("name", VARIANTS)
def test_numbers_of_the_map_are_in_the_struct_and_its_assertions_only(name: str) -> None:
    text = without_comments(part(name, "shared memory", "arguments"))
    text = re.sub(r"static_assert\(.*?\);", "", text, flags=re.DOTALL)
    text = re.sub(r"struct alignas.*?\n};", "", text, flags=re.DOTALL)
    assert "__device__" in text
    assert {int(literal) for literal in re.findall(r"(?<![\w.])\d+", text)} <= {0}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_field_of_the_map_is_asserted(name: str) -> None:
    (variant,) = plan(name).variants
    text = one_line(part(name, "shared memory", "arguments"))
    for field in variant.smem.fields:
        place = f"MLASmemStorage, {field.name}, {field.offset_bytes}, {field.size_bytes}"
        message = f"planner and compiler disagree on MLASmemStorage::{field.name}; regenerate"
        assert text.count(f'static_assert(MLA_FIELD_AT({place}), "{message}");') == 1
        assert f"alignas({field.align_bytes}) {field.element} {field.name}[{field.count}];" in text
    assert text.count("MLA_FIELD_AT(") == len(variant.smem.fields)
    size, align = variant.smem.sizeof_bytes, variant.smem.align_bytes
    whole = f"sizeof(MLASmemStorage) == {size} && alignof(MLASmemStorage) == {align}"
    assert f"static_assert({whole}," in text
    last = variant.smem.last_field
    end = f"MLA_OFFSETOF(MLASmemStorage, {last}) + sizeof(MLASmemStorage::{last})"
    assert f"static_assert({end} == {variant.smem.used_bytes}," in text
    assert f"static_assert(sizeof(MLASmemStorage) <= {variant.smem.limit_bytes}," in text


def test_a_field_is_where_both_its_offset_and_its_size_say() -> None:
    macro = one_line(source(FP8).replace("\\\n", "")).partition("#define MLA_FIELD_AT")[2]
    both = "MLA_OFFSETOF(type, member) == (offset) && sizeof(type::member) == (bytes)"
    assert macro.startswith(f"(type, member, offset, bytes) ({both})")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_constant_is_printed_once_and_used(name: str) -> None:
    (variant,) = plan(name).variants
    text = without_comments(body(name))
    unused: set[str] = set()
    for group in variant.constants:
        assert f"// {group.title}\n" in body(name)
        for item in group.constants:
            line = f"constexpr {item.ctype} {item.name} = {item.literal};"
            assert text.count(line) == 1
            if len(re.findall(rf"\b{item.name}\b", text)) == 1:
                unused.add(item.name)
    assert not unused, f"constants that nothing uses: {sorted(unused)}"


def functions(text: str) -> set[str]:
    return set(re.findall(r"^__device__ __forceinline__ [\w ]+?[\s*&]+(\w+)\(", text, flags=re.MULTILINE))


def unused_functions(name: str) -> set[str]:
    text = without_comments(body(name))
    return {item for item in functions(text) if len(re.findall(rf"\b{item}\b", text)) == 1}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_function_of_the_kernel_is_used(name: str) -> None:
    assert len(functions(body(name))) > 20
    assert unused_functions(name) == set()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_primitive_of_the_plan_is_printed_and_no_other(name: str) -> None:
    ldmatrix, cp_bulk = "void ldmatrix_x4_trans_b16(", "void cp_async_bulk_tensor_3d("
    assert source(name).count(cp_bulk) == 1
    assert source(name).count(ldmatrix) == (name in FP8_NAMES)
    assert source(name).count("void setmaxnreg_dec()") == 1
    assert source(name).count("void ld_shared_v4_u32(") == (name in FP8_NAMES)
    assert source(name).count("void st_shared_v4_u32(") == 1
    assert source(name).count("float float_from_bits(") == (name in FP8_NAMES)
    assert source(name).count("bool vote_any(") == (name in LAZY_NAMES)


FP8_ONLY = ("q_scale", "k_scale", "e4m3", "v_raw", "kVRaw", "transposed", "transpose_", "Transpose")
FP8_ONLY += ("ldmatrix", "stmatrix", "prmt", "kScaled", "store_scales", "swizzle<")
BF16_ONLY = (
    "v_tail_cleared",
    "tail_warp",
    "kTail",
    "kIdle",
    "Role::idle",
    "_rs_mn",
    "kPvSteps",
    "kVRowUnits",
)


@pytest.mark.parametrize("name", BF16_NAMES)
def test_bf16_sources_have_no_trace_of_fp8(name: str) -> None:
    assert [word for word in FP8_ONLY if word in source(name)] == []


@pytest.mark.parametrize("name", FP8_NAMES)
def test_fp8_sources_have_no_trace_of_bf16_v(name: str) -> None:
    assert [word for word in BF16_ONLY if word in source(name)] == []


def test_the_words_looked_for_are_there_where_the_feature_is() -> None:
    assert [word for word in FP8_ONLY if word not in source(FP8)] == []
    assert [word for word in BF16_ONLY if word not in source(BF16)] == []


LAZY_ONLY = ("lazy", "kLazySumLimit", "sum_limit", "vote_any")
FLUSH_ONLY = ("flush", "kFlushBlocks", "kMaster", "o_master", "clear_master", "add_master")
FLUSH_ONLY += ("ld_shared_v4_u32", "float_from_bits", "flush_blocks =")


@pytest.mark.parametrize("name", VARIANTS)
def test_lazy_softmax_and_flush_are_where_the_feature_is_only(name: str) -> None:
    (variant,) = plan(name).variants
    assert variant.features.lazy_softmax is (name in LAZY_NAMES)
    assert variant.features.flushes_output is (name in FP8_NAMES)
    lazy = [word for word in LAZY_ONLY if word in source(name)]
    assert lazy == (list(LAZY_ONLY) if name in LAZY_NAMES else [])
    flush = [word for word in FLUSH_ONLY if word in source(name)]
    assert flush == (list(FLUSH_ONLY) if name in FP8_NAMES else [])
    both = {f"{function}_softmax" for function in ("online", "lazy")}
    assert functions(body(name)) & both == (both if name in LAZY_NAMES else {"online_softmax"})


def function(name: str, called: str) -> str:
    """The body of one function, without comments."""
    text = without_comments(body(name))
    start = re.search(rf"^__device__ __forceinline__ void {called}\(", text, flags=re.MULTILINE)
    assert start, f"no function {called}"
    return text[text.index("{\n", start.end()) : text.index("\n}\n", start.end())]


def order(text: str, *calls: str) -> list[str]:
    """Which of the calls come in the text, in its order."""
    names = "|".join(re.escape(call) for call in calls)
    return re.findall(rf"(?<!\w)({names})(?=\()", text)


STEPS = ("clear_master", "finish_scores<true>", "kv_step<true>", "kv_step<false>", "flush_output")
STEPS += ("issue_pv", "add_master", "store_output", "finish_scores<false>")


@pytest.mark.parametrize("name", FP8_NAMES)
def test_no_masked_step_comes_after_the_first_flush(name: str) -> None:
    # The master is cleared first; masked blocks; then unmasked ones with the flushes; it is added once all
    # products are done.
    found = order(function(name, "consumer_warpgroup"), *STEPS)
    assert found == list(STEPS[:-1])
    assert not order(function(name, "kv_step"), "flush_output", "add_master", "clear_master")


@pytest.mark.parametrize("name", BF16_NAMES)
def test_steps_without_flush(name: str) -> None:
    found = order(function(name, "consumer_warpgroup"), *STEPS)
    assert found == ["finish_scores<true>", "kv_step<true>", "kv_step<false>", "issue_pv", "store_output"]
    assert order(function(name, "online_softmax"), "rescale_output") == ["rescale_output"]


@pytest.mark.parametrize("name", FP8_NAMES)
def test_a_step_in_turns_passes_the_turn_on_after_its_products(name: str) -> None:
    found = order(function(name, "kv_step"), *KV_STEP)
    assert found == [
        *("mbarrier_wait(v_full", "mbarrier_wait(k_full", "bar_sync", "wgmma_fence"),
        *("issue_pv", "issue_qk", "wgmma_commit_group", "wgmma_wait_group<0>"),
        *("pass_turn", "release_slot(v_empty", "finish_scores<kMasked>"),
    ]


@pytest.mark.parametrize("name", BF16_NAMES)
def test_a_ping_pong_step_waits_for_a_barrier_between_softmax_and_the_wait_for_pv(name: str) -> None:
    # Without a wait on a barrier there the compiler moves the wait for P * V up in front of softmax.
    found = order(function(name, "kv_step"), *KV_STEP)
    assert found == [
        *("mbarrier_wait(k_full", "bar_sync", "wgmma_fence", "issue_qk", "wgmma_commit_group"),
        *("mbarrier_wait(v_full", "wgmma_fence", "issue_pv", "wgmma_commit_group", "pass_turn"),
        *("wgmma_wait_group<1>", "release_slot(k_empty", "mask_scores", "raise_row_max", "exponentiate"),
        *("mbarrier_wait(k_full", "wgmma_wait_group<0>", "release_slot(v_empty"),
        *("rescale_output", "pack_p"),
    ]
    code = one_line(function(name, "kv_step"))
    between = "if (block > 0) mbarrier_wait(k_full(k.stage), k.phase); wgmma_wait_group<0>(o);"
    assert f"exponentiate(s, rows); {between}" in code
    # S is ready after the first wait, O after the second: the products were committed in this order.
    assert re.findall(r"wgmma_wait_group<\d>\(.*?\)", code) == [
        "wgmma_wait_group<1>(s)",
        "wgmma_wait_group<0>(o)",
    ]
    assert "k.advance();" in code[: code.index("exponentiate")], "the wait is for the next slot"


KV_STEP = ("mbarrier_wait(k_full", "mbarrier_wait(v_full", "bar_sync", "pass_turn", "wgmma_fence", "issue_qk")
KV_STEP += ("issue_pv", "wgmma_commit_group", "wgmma_wait_group<0>", "wgmma_wait_group<1>", "mask_scores")
KV_STEP += ("release_slot(k_empty", "release_slot(v_empty", "finish_scores<kMasked>", "raise_row_max")
KV_STEP += ("exponentiate", "rescale_output", "pack_p")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_block_of_the_first_rows_last_key_is_masked(name: str) -> None:
    # Against a row without a reference point yet the lazy step would lose scores far below 0. Later rows see
    # more keys, so each of them has seen one, too, when the unmasked blocks come.
    text = one_line(without_comments(body(name)))
    assert "blocks.unmasked = (visible_keys(tile, first_row) - 1) / kBlockN;" in text
    assert "finish_scores<true>(" in text and "finish_scores<false>(" not in text
    assert "for (--block; block >= blocks.unmasked; --block) { kv_step<true>(" in text


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_are_counted_for_the_rows_that_they_are_for(name: str) -> None:
    text = one_line(without_comments(body(name)))
    assert "tile.num_blocks = row_blocks(tile, tile.row_begin, kBlockM).visible;" in text
    assert "const i32 first_row = tile.row_begin + (i32)(consumer * kRowsPerConsumer);" in text
    assert "const RowBlocks blocks = row_blocks(tile, first_row, kRowsPerConsumer);" in text
    assert "num_unmasked_blocks" not in text


@pytest.mark.parametrize("name", FP8_NAMES)
def test_masked_steps_rescale_o_and_leave_the_master_alone(name: str) -> None:
    step = one_line(function(name, "finish_scores"))
    if name in LAZY_NAMES:
        assert "if (kMasked) { online_softmax<false>(s, o, p, rows, o_master); } else { lazy_softmax(" in step
        # The exact step that the lazy one falls back to comes after a flush, perhaps.
        assert order(function(name, "lazy_softmax"), "online_softmax<true>", "online_softmax<false>") == [
            "online_softmax<true>"
        ]
    else:
        assert "online_softmax<!kMasked>(s, o, p, rows, o_master);" in step
    assert len(re.findall(r"\bo_master\b", step)) == (2 if name in LAZY_NAMES else 1)
    exact = one_line(function(name, "online_softmax"))
    branch = "if (kMasterInUse) { flush_output(o, o_master, rescale); } else { rescale_output(o, rescale); }"
    assert branch in exact
    assert "o_master" not in exact.replace(branch, "")


@pytest.mark.parametrize("name", FP8_NAMES)
def test_the_master_is_reached_at_the_vectors_of_the_plan(name: str) -> None:
    text = one_line(without_comments(body(name)))
    assert "o_master_smem) + consumer * kMasterGroupBytes + thread_in_group * kMasterVectorBytes;" in text
    assert "o_master = o_master_words(consumer, warp_in_group * 32 + lane);" in text
    uses = {"flush_output": "ld st", "clear_master": "st", "add_master": "ld"}
    for called, kinds in uses.items():
        code = one_line(function(name, called))
        assert "for (u32 i = 0; i < kOutputRegs / 8; ++i) {" in code
        found = re.findall(r"\b(ld|st)_shared_v4_u32\(o_master \+ i \* kMasterVectorStride,", code)
        assert found == kinds.split()
        assert len(re.findall(r"_shared_\w+\(", code)) == len(found)


@pytest.mark.parametrize("name", VARIANTS)
def test_masks(name: str) -> None:
    bottom_right = "keys = row + 1 + tile.kv_len - tile.q_len" in source(name)
    assert bottom_right is ("full" not in name)
    assert ("every key is visible" in source(name)) is ("full" in name)


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs(name: str) -> None:
    f32 = "full" in name
    stores = set(re.findall(r"\bst_global_\w+", without_comments(source(name))))
    assert stores == ({"st_global_v2_f32"} if f32 else {"st_global_v4_u32"})
    assert "cvt_bf16x2" in source(name)  # P of bf16; the master of e4m3
    assert (" cvt_bf16x2(" in part(name, "consumer steps").split("store_output(")[1]) is not f32
    assert ("cvt_e4m3x4" in source(name)) is (name in FP8_NAMES)


@pytest.mark.parametrize("name", VARIANTS)
def test_debug_waits_are_in_debug_builds_only(name: str) -> None:
    debug = name in DEBUG_NAMES
    assert ("mla_debug_record" in source(name)) is debug
    assert ("trap;" in source(name)) is debug
    assert ("MLA_WAIT_" in source(name)) is not debug


def source_of_release(name: str) -> str:
    """The same kernel without `debug`."""
    base, changes, _ = VARIANTS[name]
    return source(next(other for other, made in VARIANTS.items() if made == (base, changes, False)))


@pytest.mark.parametrize("name", DEBUG_NAMES)
def test_a_debug_build_differs_in_the_primitives_only(name: str) -> None:
    plain = name.removesuffix("_debug")
    assert body(name) == body(plain if plain in VARIANTS else VARIANTS[name][0])
    assert len(source(name).split("\n")) - len(source_of_release(name).split("\n")) == DEBUG_LINES


@pytest.mark.parametrize("name", VARIANTS)
def test_each_shape_has_its_wgmma(name: str) -> None:
    text = source(name)
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k\d+)\.f32\.(\w+)\.\w+", text)
    (variant,) = plan(name).variants
    n = variant.launch.block_n
    if name in FP8_NAMES:
        expected = [(f"m64n{n}k32", "e4m3"), (f"m64n{n}k16", "bf16"), ("m64n128k32", "e4m3")]
    else:
        expected = [(f"m64n{n}k16", "bf16"), ("m64n128k16", "bf16")]
    assert shapes == expected
    for count in re.findall(r"float \(&d\)\[(\d+)\]", text):
        assert int(count) in (n // 2, 64)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_banner_says_where_the_source_comes_from(name: str) -> None:
    head = source(name).splitlines()[:3]
    assert head[0].startswith("// Generated by mla-codegen from specs/")
    assert plan(name).spec_digest in head[2]
    assert "sm_90a" in head[2]


@pytest.mark.parametrize("name", [FP8, BF16])
def test_rendering_depends_on_the_plan_alone(name: str) -> None:
    again = Plan.from_json(plan(name).to_json())
    assert render(again) == source(name)
    renamed = replace(again, formula=("nothing",))
    assert render(renamed) != source(name)
