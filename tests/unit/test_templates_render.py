"""What every rendered source keeps to, and that what a kernel does not do leaves no trace in it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mla_codegen.plan import Plan, make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec
from tests.forms import WIDENED, form

SPECS = Path(__file__).parents[2] / "specs"
COLUMNS = 110
MOST_LINES = 1500
"""Of a source that is committed."""
MOST_LINES_OF_A_VARIANT = 1660
"""Not of a debug build: its longer wait is among the primitives, and the rest is the release's."""
LARGEST_NUMBER = 448
"""The largest number that a body may print: the largest e4m3; sizes and bytes come from the constants."""
SELECTORS = {0x6420, 0x7531, 0xFFFF}
"""Byte selectors of prmt and the mask of one of two halves: patterns, not numbers."""

FP8, BF16 = "dsv3_fp8_sm90", "dsv3_bf16_sm90"
BASE = (FP8, "dsv3_fp8_full_sm90", BF16, "dsv3_bf16_full_sm90")
OTHERS = [path.stem for path in sorted(SPECS.glob("*_sm90.yaml")) if path.stem not in BASE]
"""Shipped specs of other ropes, layouts, outputs and dimensions."""
VARIANTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    **{name: (name, {}, False) for name in BASE},
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
    "bf16_online": (BF16, {"softmax": {"variant": "online"}}, False),
    "bf16_debug": (BF16, {}, True),
}
FP8_NAMES = [name for name in VARIANTS if "fp8" in name]
BF16_NAMES = [name for name in VARIANTS if "bf16" in name]
ONLINE_NAMES = [name for name in VARIANTS if "online" in name]
"""All others have the lazy softmax."""
LAZY_NAMES = [name for name in FP8_NAMES if name not in ONLINE_NAMES]
PAIRED_NAMES = [name for name in BF16_NAMES if name not in ONLINE_NAMES]
"""Of 16 bits with the lazy softmax, whose unmasked blocks go in pairs."""
DEBUG_NAMES = [name for name in VARIANTS if "debug" in name]
EVERYTHING = [*VARIANTS, *WIDENED, *OTHERS]
"""Also ropes, scales, sizes and layouts that no shipped spec has."""


@functools.cache
def plan(name: str) -> Plan:
    if name in WIDENED:
        return make_plan(form(name))
    if name in OTHERS:
        return make_plan(load_spec(SPECS / f"{name}.yaml"))
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


def glued(text: str) -> str:
    """The code alone, however it is wrapped: without comments, pragmas and blanks that mean nothing."""
    code = re.sub(r"//.*|#pragma.*|\bMLA_UNROLL\b", "", text)
    return re.sub(r" ?([^\w ]) ?", r"\1", " ".join(code.split()))


def tidy(text: str) -> str:
    """Glued, without the braces of conditions and loops that hold one statement only."""
    text = glued(text)
    while True:
        shorter = re.sub(r"(?<=\))\{([^{};]*;)\}", r"\1", text)
        shorter = re.sub(r"\belse\{([^{};]*;)\}", r"else \1", shorter)
        if shorter == text:
            return text
        text = shorter


@functools.cache
def tidy_body(text: str) -> str:
    return tidy(text)


def code(name: str) -> str:
    return tidy_body(body(name))


@functools.cache
def glued_body(text: str) -> str:
    return glued(text)


def past(text: str, start: int) -> int:
    """Where the bracket that opens at `start` has been closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "({[") - (text[place] in ")}]")
        if depth == 0:
            return place + 1
    raise AssertionError(f"never closed: {text[start : start + 40]}")


def split_at_commas(text: str) -> list[str]:
    """The arguments or parameters in a text, each as it stands."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({[<") - (letter in ")}]>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


@functools.cache
def definition(text: str, called: str) -> tuple[list[str], str]:
    """Parameters and body of a function in a glued text."""
    for match in re.finditer(rf"\b{called}\(", text):
        end = past(text, match.end() - 1)
        if text[end : end + 1] == "{":
            return split_at_commas(text[match.end() : end - 1]), tidy(text[end + 1 : past(text, end) - 1])
    raise AssertionError(f"no function {called}")


def function(name: str, called: str) -> str:
    """The body of one function, tidied."""
    return definition(glued_body(body(name)), called)[1]


def parameters(name: str, called: str) -> list[str]:
    """The names of a function's parameters."""
    return [re.findall(r"\w+", item.split("[")[0])[-1] for item in parameter_texts(name, called)]


def parameter_texts(name: str, called: str) -> list[str]:
    return definition(glued_body(body(name)), called)[0]


class Call(NamedTuple):
    callee: str
    """With the object before it, if there is one."""
    template: str
    arguments: list[str]


def calls(text: str) -> Iterator[Call]:
    """Every call in a tidied text, in its order; a call comes before those among its arguments."""
    for match in re.finditer(r"(?<![\w.])([a-zA-Z_][\w.]*)((?:<!?\w+>)?)\(", text):
        if match[1] not in ("if", "for", "while", "sizeof", "return", "MLA_OFFSETOF", "MLA_SMEM"):
            inside = text[match.end() : past(text, match.end() - 1) - 1]
            yield Call(match[1], match[2], split_at_commas(inside))


VERBS = {
    "mbarrier_wait": "wait",
    "mbarrier_arrive": "arrive",
    "mbarrier_arrive_expect_tx": "expect",
    "release_slot": "release",
}
STEPS = {
    *("cta_sync", "warp_sync", "bar_sync", "bar_arrive", "pass_turn", "fence_proxy_async_shared"),
    *("wgmma_fence", "wgmma_commit_group", "wgmma_wait_group", "issue_qk", "issue_pv", "store_output"),
    *("elect_sync", "load_q_tile", "load_k_block", "load_v_block", "copy_tile", "k.advance", "v.advance"),
    *("q.advance", "read_work_tile", "write_work_tile", "next_head", "skip_blocks", "release_keys"),
    *("issue_in_turn", "kv_step_lazy", "finish_rows", "transpose_block", "transpose_piece"),
    *(
        "fetch_scales",
        "load_row_scales",
        "store_key_scales",
        "hand_over_scales",
        "raw.advance",
        "st_shared_f32",
        "st_shared_v4_u32",
    ),
    *("scale_scores", "mask_scores", "raise_row_max", "exponentiate", "lower_lift", "add_to_row_sum"),
    *("pack_p", "rescale_output", "flush_output", "clear_master", "add_master", "online_softmax"),
    *("lazy_softmax", "vote_any", "finish_scores", "kv_step", "skip_block", "find_work", "store_empty_rows"),
    *("role_of", "setmaxnreg_inc", "setmaxnreg_dec", "load_warp", "transpose_warp", "tail_warp"),
    *("consumer_warpgroup", "prefetch_tensormap", "fence_mbarrier_init", "add_rope", "fold_v_scales"),
    *(
        "read_factors",
        "write_factors",
        "sum_without_v_scales",
        "store_v_scales",
        "keep_valid_bytes",
        "ld_shared_v4_u32",
    ),
    *("cp_async_bulk_tensor_3d", "cp_async_bulk_tensor_4d"),
}
"""What others can notice, and the parts of the work: their order is what these tests hold fast."""


def flow(text: str) -> list[str]:
    """The steps of a tidied text in its order, waits and arrivals with the barrier that they name."""
    found = []
    for call in calls(text):
        if verb := VERBS.get(call.callee):
            barrier = re.match(r"(\w+)\(", call.arguments[0])
            found.append(f"{verb} {barrier[1]}" if barrier else verb)
        elif call.callee in STEPS or re.match(r"wgmma_\w+_[sr]s", call.callee):
            found.append(call.callee + call.template)
    return found


@pytest.mark.parametrize("name", EVERYTHING)
def test_layout(name: str) -> None:
    _, changes, debug = VARIANTS.get(name, (name, {"form": name}, False))
    lines = source(name).split("\n")
    most = MOST_LINES_OF_A_VARIANT if changes else MOST_LINES
    assert debug or len(source(name).splitlines()) <= most
    for number, line in enumerate(lines, start=1):
        assert len(line) <= COLUMNS, f"line {number} has {len(line)} columns: {line}"
        assert "\t" not in line
        assert line == line.rstrip()
        assert line.isascii()
    assert lines[-1] == "" and lines[-2] != ""
    assert "\n\n\n" not in source(name)


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_of_the_templates_is_left(name: str) -> None:
    for mark in ("{{", "{% ", "{%-", "{#", "None", "Undefined", "[]", "MappingProxyType"):
        text = source(name).replace("dynamic_smem[]", "")
        assert mark not in text, f"{mark} in {[line for line in text.splitlines() if mark in line]}"
    assert not re.search(r"\b(True|False)\b", without_comments(source(name)))


@pytest.mark.parametrize("name", EVERYTHING)
def test_assembly_is_in_the_device_branch_only(name: str) -> None:
    text = source(name)
    first = text.index("#if defined(__CUDACC__) || defined(__CUDACC_RTC__)\n")
    last = text.index('#else\n#include "mla_host_model.hpp"')
    places = [match.start() for match in re.finditer(r"\basm\b", text)]
    assert len(places) > 20
    assert first < min(places) and max(places) < last
    assert text.count("mla_host_model.hpp") == 1
    assert re.findall(r"#include.*", text) == re.findall(r'#include "mla_host_model.hpp".*', text)


BULK_COPIES = ("cp_async_bulk_tensor_3d", "cp_async_bulk_tensor_4d")


def accessors(name: str) -> set[str]:
    (variant,) = plan(name).variants
    return {barrier.name for barrier in variant.mbarriers}


def takers(name: str) -> dict[str, int]:
    """Functions that get a barrier from their caller, and as which argument."""
    found = {}
    for called in functions(name) - {"mbarrier_at"}:
        for place, text in enumerate(parameter_texts(name, called)):
            if re.fullmatch(r"u32 \w*barrier", text):
                found[called] = place
    return found


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_wait_and_arrival_names_its_barrier(name: str) -> None:
    named = (
        rf"({'|'.join(sorted(accessors(name)))})"
        + r"\((?:|0|stage|\w+\.stage|\w+_stage|consumer|self\.index)\)"
    )
    handed = takers(name)
    primitives = dict.fromkeys(VERBS, 0) | dict.fromkeys(BULK_COPIES, 2)
    found = []
    for called in functions(name):
        own = parameters(name, called)[handed[called]] if called in handed else None
        for call in calls(function(name, called)):
            if call.callee in primitives | handed:
                barrier = call.arguments[(primitives | handed)[call.callee]]
                assert barrier == own or re.fullmatch(named, barrier), (
                    f"{called}: {call} has no named barrier"
                )
                found.append(call.callee)
    assert len(found) >= 15
    assert set(handed) <= set(found), "what takes a barrier is used"


ROLES = {
    "load": "load_warp",
    "transpose": "transpose_warp",
    "tail": "tail_warp",
    "consumer": "consumer_warpgroup",
}


def reached(name: str, first: str) -> set[str]:
    """The function and all functions of the kernel that it calls, also through others."""
    known, todo, found = functions(name), [first], set()
    while todo:
        called = todo.pop()
        if called not in found:
            found.add(called)
            todo += [call.callee for call in calls(function(name, called)) if call.callee in known]
    return found


def arrivals(name: str, role: str, barrier: str) -> list[str]:
    """The calls of a role that arrive at a barrier by its name."""
    places = {"mbarrier_arrive": 0, "mbarrier_arrive_expect_tx": 0}
    for called, place in takers(name).items():
        own = parameters(name, called)[place]
        if f"mbarrier_arrive({own}" in function(name, called):
            places[called] = place
    return [
        call.callee
        for called in reached(name, ROLES[role])
        for call in calls(function(name, called))
        if call.callee in places and call.arguments[places[call.callee]].startswith(f"{barrier}(")
    ]


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_barrier_is_waited_on_and_arrived_at_by_the_roles_of_the_plan(name: str) -> None:
    (variant,) = plan(name).variants
    for item in variant.mbarriers:
        barrier = item.name
        (parameter,) = parameter_texts(name, barrier) or ("",)
        assert parameter == item.parameter
        assert function(name, barrier) == f"return mbarrier_at(Mbarrier::{barrier},{item.stage});"
        for role in item.waits.split(" and "):
            waits = [step for called in reached(name, ROLES[role]) for step in flow(function(name, called))]
            assert f"wait {barrier}" in waits, f"{role} does not wait on {barrier}"
        found = arrivals(name, item.arrives, barrier)
        assert found, f"{item.arrives} does not arrive at {barrier}"
        assert ("mbarrier_arrive_expect_tx" in found) is (item.tx_bytes > 0)
        if item.arrives in ("load", "tail"):  # one warp: each arrival stands in the source by itself
            assert len(found) == item.arrivals


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_barrier_is_set_up_as_planned(name: str) -> None:
    (variant,) = plan(name).variants
    rows = re.findall(r"\b(\w+)\(Mbarrier::(\w+),(\w+),(\w+)[,)]", code(name))
    assert [row[1:] for row in rows] == [
        (item.name, item.stages_constant, item.arrivals_constant) for item in variant.mbarriers
    ]
    (helper,) = {row[0] for row in rows}
    first, stages, count = parameters(name, helper)[:3]
    each = rf"for\(u32 (\w+)=0;\1<{stages};(?:\+\+\1|\1\+\+)\)"
    assert re.search(rf"{each}mbarrier_init\(mbarrier_at\({first},\1\),{count}\);", function(name, helper))


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_barrier_lies_at_its_index_in_the_map(name: str) -> None:
    first, stage = parameters(name, "mbarrier_at")
    place = f"return MLA_SMEM(mbar_base)+((u32){first}+{stage})*(u32)sizeof(u64);"
    assert function(name, "mbarrier_at") == place
    assert "MLA_SMEM(field)(smem_base()+(u32)MLA_OFFSETOF(MLASmemStorage,field))" in code(name)


def entry(name: str) -> str:
    (variant,) = plan(name).variants
    return function(name, variant.entry)


@pytest.mark.parametrize("name", EVERYTHING)
def test_barriers_are_set_up_before_anyone_can_meet_them(name: str) -> None:
    # Also before the CTA finds out whether it has work; those without leave before they meet the others.
    (setter,) = (
        item for item in functions(name) if "(Mbarrier::q_full," in function(name, item) and item != "q_full"
    )
    assert [call.callee for call in calls(function(name, setter))][-1] == "fence_mbarrier_init"
    text = entry(name)
    assert re.search(rf"if\(thread_index\(\)==0\)\{{[^{{}}]*\b{setter}\(\)", text)
    assert text.index(f"{setter}(") < text.index("find_work(")
    assert re.search(r"if\(!find_work\([^;{}]*\)\)return;", text)
    empty = r"if\(tile\.num_blocks==0\)\{do store_empty_rows\([^;{}]*\);while\(next_head\(tile\)\);return;\}"
    writes = r"if\(thread_index\(\)==0\)write_work_tile\(tile\);cta_sync\(\);"
    assert re.search(empty + writes, text)
    transposes = [f"transpose_warp<{warp}>" for warp in range(3)]
    assert list(dict.fromkeys(flow(text))) == [
        *("prefetch_tensormap", "find_work", "store_empty_rows", "next_head"),
        *("write_work_tile", "cta_sync", "role_of"),
        *("setmaxnreg_inc<kConsumerRegisters>", "consumer_warpgroup"),
        *("setmaxnreg_dec<kProducerRegisters>", "load_warp"),
        *(transposes if plan(name).variants[0].features.transposes_v else ["tail_warp"]),
    ]


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_expected_byte_count_is_a_constant_of_the_plan(name: str) -> None:
    counts = [call.arguments[1] for call in calls(code(name)) if call.callee == "mbarrier_arrive_expect_tx"]
    assert sorted(counts) == ["kKTxBytes", "kQTxBytes", "kVTxBytes"]


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_tensor_map_is_prefetched_and_copied_through_by_as_many_boxes_as_planned(name: str) -> None:
    (variant,) = plan(name).variants
    numbers = {item.name: item.literal for group in variant.constants for item in group.constants}
    tiles = [call for call in calls(code(name)) if call.callee == "copy_tile" and call.template]
    boxes = [call for call in calls(function(name, "load_v_block")) if call.callee in BULK_COPIES]
    assert len(tiles) + bool(boxes) * len({call.arguments[1] for call in boxes}) == len(variant.tensor_maps)
    for item in variant.tensor_maps:
        assert f"prefetch_tensormap(maps.{item.name});" in entry(name)
        rank = f"cp_async_bulk_tensor_{len(item.box)}d"
        direct = [call for call in boxes if f"maps.{item.name}" in call.arguments]
        if direct:
            assert ({call.callee for call in direct}, len(direct)) == ({rank}, item.issues)
            continue
        (copy,) = (call for call in tiles if f"maps.{item.name}" in call.arguments)
        assert int(numbers[copy.template[1:-1]]) == item.issues
        depth = {"q_nope": "kQNope", "q_rope": "kQRope", "k_nope": "kKNope", "k_rope": "kKRope", "v": "kV"}
        assert f"{depth[item.argument]}ChunkBytes" in copy.arguments
        boxes_of_chunk = 1
        if item.argument.startswith("q_"):  # a box for each consumer, one behind the other
            boxes_of_chunk = int(numbers["kNumConsumers"])
            rows_of_consumer = f"{depth[item.argument].replace('kQ', 'k')}ConsumerBytes"
            assert int(numbers[rows_of_consumer]) == item.issue_bytes
            assert f"{item.argument}_tile()+consumer*{rows_of_consumer}" == copy.arguments[0]
        assert int(numbers[f"{depth[item.argument]}ChunkBytes"]) == boxes_of_chunk * item.issue_bytes
        assert len(copy.arguments) == 5 + len(item.box) - 1  # a coordinate for each axis but the depth
    ranks = {len(item.box) for item in variant.tensor_maps if item.axes[0] == "depth"}
    overloads = [text for text in re.findall(r"for\(i32 \w+=0;\w+<kChunks;[^{}]*\{([^{}]*)\}", code(name))]
    assert sorted(f"_{rank}d(" in text for text in overloads for rank in ranks).count(True) == len(ranks)
    assert len(overloads) == len(ranks)


@pytest.mark.parametrize("name", EVERYTHING)
def test_bodies_print_no_magic_numbers(name: str) -> None:
    text = without_comments(part(name, "barriers", "shared memory") + part(name, "arguments"))
    for literal in re.findall(r"(?<![\w.])(?:0x[0-9a-fA-F]+|\d+)", text):
        number = int(literal, 0)
        assert number <= LARGEST_NUMBER or number in SELECTORS, f"{literal} has no name"


@pytest.mark.parametrize("name", EVERYTHING)
def test_numbers_of_the_map_are_in_the_struct_and_its_assertions_only(name: str) -> None:
    text = without_comments(part(name, "shared memory", "arguments"))
    text = re.sub(r"(static_assert|MLA_ASSERT_FIELD)\(.*?\);", "", text, flags=re.DOTALL)
    text = re.sub(r"struct alignas.*?\n};", "", text, flags=re.DOTALL)
    assert "__device__" in text
    assert {int(literal) for literal in re.findall(r"(?<![\w.])\d+", text)} <= {0}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_field_of_the_map_is_asserted(name: str) -> None:
    (variant,) = plan(name).variants
    text = glued(part(name, "shared memory", "arguments"))
    for field in variant.smem.fields:
        place = f"MLASmemStorage,{field.name},{field.offset_bytes},{field.size_bytes}"
        assert text.count(f"MLA_ASSERT_FIELD({place});") == 1
        assert f"alignas({field.align_bytes})" + f"{field.element} {field.name}[{field.count}];" in text
    assert text.count("MLA_ASSERT_FIELD(") == len(variant.smem.fields)
    size, align = variant.smem.sizeof_bytes, variant.smem.align_bytes
    whole = f"sizeof(MLASmemStorage)=={size}&&alignof(MLASmemStorage)=={align}"
    assert f"static_assert({whole}," in text
    for constant in variant.smem.constants:
        compared = f"static_assert(MLASmemStorage::{constant.name}==sizeof(MLASmemStorage::{constant.field}),"
        assert text.count(compared) == (constant.field is not None)
        assert f"static constexpr u32 {constant.name}={constant.value};" in text
    last = variant.smem.last_field
    end = f"MLA_OFFSETOF(MLASmemStorage,{last})+sizeof(MLASmemStorage::{last})"
    assert f"static_assert({end}=={variant.smem.used_bytes}," in text
    assert f"static_assert(sizeof(MLASmemStorage)<={variant.smem.limit_bytes}," in text


def test_a_field_is_where_both_its_offset_and_its_size_say() -> None:
    macro = glued(source(FP8).replace("\\\n", "")).partition("#define MLA_ASSERT_FIELD")[2]
    both = "MLA_OFFSETOF(type,member)==(offset)&&sizeof(type::member)==(bytes)"
    assert macro.startswith(f"(type,member,offset,bytes)static_assert({both},")


@pytest.mark.parametrize("name", EVERYTHING)
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


@functools.cache
def functions_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"__device__ __forceinline__ [\w ]+?[*& ]+(\w+)\(", glued(text)))


def functions(name: str) -> frozenset[str]:
    return functions_of(body(name))


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_function_of_the_kernel_is_used(name: str) -> None:
    assert len(functions(name)) > 20
    text = code(name)
    assert {item for item in functions(name) if len(re.findall(rf"\b{item}\b", text)) == 1} == set()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_primitive_of_the_plan_is_printed_and_no_other(name: str) -> None:
    ldmatrix, cp_bulk = "void ldmatrix_x4_trans_b16(", "void cp_async_bulk_tensor_3d("
    assert source(name).count(cp_bulk) == 1
    assert source(name).count(ldmatrix) == (name in FP8_NAMES)
    assert source(name).count("void setmaxnreg_dec()") == 1
    assert source(name).count("void ld_shared_v4_u32(") == 1
    assert source(name).count("void st_shared_v4_u32(") == 1
    assert source(name).count("float float_from_bits(") == (name in FP8_NAMES)
    assert source(name).count("bool vote_any(") == (name not in ONLINE_NAMES)


FP8_ONLY = ("q_scale", "k_scale", "e4m3", "v_raw", "kVRaw", "transposed", "transpose_", "Transpose")
FP8_ONLY += ("ldmatrix", "stmatrix", "prmt", "kScaled", "load_row_scales", "swizzle<")
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


LAZY_ONLY = ("lazy", "kLazySumLimit", "vote_any")
LIFT_ONLY = ("kLazySumGoal", "kLiftSteps", "lower_lift", "lazy_softmax")
PAIRED_ONLY = ("kv_step_lazy", "next_p")
FLUSH_ONLY = ("flush", "kMaster", "o_master", "clear_master", "add_master")
FLUSH_ONLY += ("float_from_bits", "flush_blocks =")


@pytest.mark.parametrize("name", VARIANTS)
def test_lazy_softmax_and_flush_are_where_the_feature_is_only(name: str) -> None:
    (variant,) = plan(name).variants
    assert variant.features.lazy_softmax is (name not in ONLINE_NAMES)
    assert variant.features.lowers_lift is (name in LAZY_NAMES)
    assert variant.features.flushes_output is (name in FP8_NAMES)
    for words, names in (
        (LAZY_ONLY, LAZY_NAMES + PAIRED_NAMES),
        (LIFT_ONLY, LAZY_NAMES),
        (PAIRED_ONLY, PAIRED_NAMES),
        (FLUSH_ONLY, FP8_NAMES),
    ):
        assert [word for word in words if word in source(name)] == (list(words) if name in names else [])
    # The online softmax flushes where it rescales O, and nothing else does.
    assert ("kFlushBlocks" in source(name)) is (name in LAZY_NAMES)
    both = {f"{kind}_softmax" for kind in ("online", "lazy")}
    assert functions(name) & both == (both if name in LAZY_NAMES else {"online_softmax"})


FENCED = ("wgmma_fence", "issue_qk", "wgmma_commit_group", "wgmma_wait_group<0>")
TURN_OF_THE_FIRST_BLOCK = (
    *("wait k_full", "bar_sync", *FENCED),
    *("pass_turn", "wait v_full", "release v_empty", "v.advance"),
)
LAST_PRODUCT = (
    *("wait v_full", "wgmma_fence", "issue_pv", "wgmma_commit_group", "wgmma_wait_group<0>"),
    *("release v_empty", "v.advance"),
)
WRITES_ITS_ROWS = ("read_work_tile", "finish_rows")
FLOWS: dict[str, tuple[str, ...]] = {
    "load_q_tile": ("expect q_full", "copy_tile<kNopeChunks>", "copy_tile<kRopeChunks>"),
    "load_k_block": ("expect k_full", "copy_tile<kNopeChunks>", "copy_tile<kRopeChunks>"),
    "release_slot": ("warp_sync", "arrive"),
    # Q is given back with the lowest block's K.
    "release_keys": ("release k_empty", "release q_empty"),
    "pass_turn": ("bar_arrive",),
    "skip_block": (
        *("wait k_full", "release k_empty", "k.advance"),
        *("bar_sync", "pass_turn", "wait v_full", "release v_empty", "v.advance"),
    ),
    "finish_rows": ("store_output",),
    "write_work_tile": ("st_shared_v4_u32", "st_shared_v4_u32"),
    "read_work_tile": ("ld_shared_v4_u32", "ld_shared_v4_u32"),
}
FP8_FLOWS = FLOWS | {
    "load_v_block": ("expect v_raw_full", "copy_tile<kVChunks>"),
    "load_row_scales": ("fetch_scales<kRowsPerConsumer>", "st_shared_f32", "hand_over_scales"),
    "store_key_scales": ("st_shared_f32",),
    "hand_over_scales": ("warp_sync", "arrive"),
    # Q comes behind the first K of a head.
    "load_warp": (
        *("elect_sync", "read_work_tile", "fetch_scales<kBlockN>"),
        *("wait k_empty", "load_k_block", "wait q_empty", "load_q_tile", "load_row_scales", "q.advance"),
        *("store_key_scales", "hand_over_scales", "fetch_scales<kBlockN>", "k.advance"),
        *("wait v_raw_empty", "load_v_block", "v.advance"),
    ),
    # The tensor cores see what ordinary stores wrote behind the fence only.
    "transpose_warp": (
        *("wait v_raw_full", "wait v_empty", "transpose_piece"),
        *("fence_proxy_async_shared", "warp_sync"),
        *("arrive v_full", "arrive v_raw_empty", "raw.advance", "v.advance", "next_head"),
    ),
    "issue_qk": ("wgmma_e4m3_ss<kBlockN>", "wgmma_fence", "wgmma_bf16_ss<kBlockN>"),
    # The turn is passed on after the products.
    "kv_step": (
        *("wait v_full", "wait k_full", "bar_sync", "wgmma_fence", "issue_pv", "issue_qk"),
        *("wgmma_commit_group", "wgmma_wait_group<0>", "pass_turn", "release v_empty", "v.advance"),
        *("finish_scores<kMasked>", "k.advance"),
    ),
    # The master is cleared first; masked blocks; then unmasked ones with the flushes; it is added once all
    # products are done.
    "consumer_warpgroup": (
        *("read_work_tile", "bar_arrive", "clear_master", "wait q_full", "skip_block", "release q_empty"),
        "wait v_full",
        *(*TURN_OF_THE_FIRST_BLOCK, "finish_scores<true>", "k.advance", "read_work_tile"),
        *("kv_step<true>", "kv_step<false>", "flush_output", *LAST_PRODUCT, "add_master", *WRITES_ITS_ROWS),
    ),
}
FP8_ONLINE_FLOWS = FP8_FLOWS | {
    "consumer_warpgroup": tuple(step for step in FP8_FLOWS["consumer_warpgroup"] if step != "flush_output"),
    "finish_scores": ("scale_scores", "release_keys", "mask_scores", "online_softmax<!kMasked>"),
    "online_softmax": (
        *("raise_row_max", "exponentiate", "add_to_row_sum", "pack_p", "flush_output", "rescale_output"),
    ),
}
FP8_LAZY_FLOWS = FP8_FLOWS | {
    "finish_scores": (
        *("scale_scores", "release_keys", "mask_scores", "online_softmax<false>", "lazy_softmax"),
    ),
    # The lift is lowered before the sum is added and P packed.
    "online_softmax": (
        *("raise_row_max", "exponentiate", "lower_lift", "add_to_row_sum", "pack_p"),
        *("flush_output", "rescale_output"),
    ),
    # The exact step that the lazy one falls back to comes after a flush, perhaps.
    "lazy_softmax": ("vote_any", "online_softmax<true>"),
}
BF16_FLOWS = FLOWS | {
    "load_v_block": ("expect v_full", "copy_tile<kVChunks>"),
    "load_warp": (
        *("elect_sync", "read_work_tile", "wait k_empty", "load_k_block"),
        *("wait q_empty", "load_q_tile", "q.advance", "k.advance"),
        *("wait v_empty", "load_v_block", "v.advance"),
    ),
    # The tail of the head before has been seen by all before that of the next is cleared.
    "tail_warp": (
        *("wait q_empty", "q.advance", "wait v_full", "st_shared_v4_u32"),
        *("fence_proxy_async_shared", "warp_sync", "arrive v_tail_cleared", "skip_blocks", "next_head"),
    ),
    "issue_qk": ("wgmma_bf16_ss<kBlockN>", "wgmma_bf16_ss<kBlockN>"),
    "finish_scores": ("release_keys", "mask_scores", "online_softmax"),
    "online_softmax": ("raise_row_max", "exponentiate", "add_to_row_sum", "pack_p", "rescale_output"),
    "issue_in_turn": (
        *("bar_sync", "wgmma_fence", "issue_qk", "wgmma_commit_group"),
        *("wait v_full", "wgmma_fence", "issue_pv", "wgmma_commit_group", "pass_turn"),
        "wgmma_wait_group<1>",
    ),
    # Without a wait on a barrier between softmax and the wait for P * V the compiler moves the latter up.
    "kv_step": (
        *("wait k_full", "issue_in_turn", "release_keys", "k.advance", "mask_scores", "raise_row_max"),
        *("exponentiate", "add_to_row_sum", "wait k_full", "wgmma_wait_group<0>", "release v_empty"),
        *("v.advance", "rescale_output", "pack_p"),
    ),
    # Q is given back where no row sees a key, too, once the tail has been seen. With one slot of K,
    # behind which V comes, it is waited for once K is given back.
    "consumer_warpgroup": (
        *("read_work_tile", "bar_arrive", "wait q_full", "skip_block", "wait v_tail_cleared"),
        *("release q_empty", "wait v_full", *TURN_OF_THE_FIRST_BLOCK),
        *("wait v_tail_cleared", "finish_scores<true>", "read_work_tile", "wait v_tail_cleared", "k.advance"),
        *("read_work_tile", "kv_step<true>", "kv_step<false>", *LAST_PRODUCT, *WRITES_ITS_ROWS),
    ),
}
PAIRED_FLOWS = BF16_FLOWS | {
    # The tensor core still reads P of the block before while this block's is packed; the exact step comes
    # once O is complete.
    "kv_step_lazy": (
        *("wait k_full", "issue_in_turn", "release_keys", "k.advance", "vote_any"),
        *("wgmma_wait_group<0>", "online_softmax", "wait k_full", "wgmma_wait_group<0>"),
        *("release v_empty", "v.advance"),
    ),
    "consumer_warpgroup": tuple(
        part
        for step in BF16_FLOWS["consumer_warpgroup"]
        for part in (
            ("kv_step_lazy", "kv_step_lazy", "kv_step<true>") if step == "kv_step<false>" else (step,)
        )
    ),
}


def flows(name: str) -> dict[str, tuple[str, ...]]:
    if name in FP8_NAMES:
        return FP8_LAZY_FLOWS if name in LAZY_NAMES else FP8_ONLINE_FLOWS
    return PAIRED_FLOWS if name in PAIRED_NAMES else BF16_FLOWS


@pytest.mark.parametrize("name", VARIANTS)
def test_each_part_takes_its_steps_in_order(name: str) -> None:
    for called, steps in flows(name).items():
        assert flow(function(name, called)) == list(steps), called


FOLDED = ("fold_v_scales", "mask_scores", "online_softmax<false>", "lazy_softmax", "release_keys")
CLEARED_TAIL = (
    *("wait q_empty", "q.advance", "wait v_full", "ld_shared_v4_u32", "keep_valid_bytes", "st_shared_v4_u32"),
    *("fence_proxy_async_shared", "warp_sync", "arrive v_tail_cleared", "skip_blocks", "next_head"),
)
# What the wider forms do in another order or beside the rest; K is released once its last reader is through.
WIDER_FLOWS: dict[str, dict[str, tuple[str, ...]]] = {
    "raw_k_token": {
        "issue_qk": ("wgmma_e4m3_ss<kBlockN>",),
        "add_rope": ("wgmma_fence", "wgmma_bf16_ss<kBlockN>", "wgmma_commit_group", "wgmma_wait_group<0>"),
        "finish_scores": (
            *("scale_scores", "add_rope", "release_keys", "mask_scores"),
            *("online_softmax<false>", "lazy_softmax"),
        ),
    },
    "e4m3_rope": {"issue_qk": ("wgmma_e4m3_ss<kBlockN>", "wgmma_e4m3_ss<kBlockN>")},
    "fp8_no_rope": {
        "issue_qk": ("wgmma_e4m3_ss<kBlockN>",),
        "load_q_tile": ("expect q_full", "copy_tile<kNopeChunks>"),
        "load_k_block": ("expect k_full", "copy_tile<kNopeChunks>"),
    },
    "v_token_only": {
        "finish_scores": FOLDED,
        "online_softmax": (
            *("raise_row_max", "exponentiate", "lower_lift", "sum_without_v_scales", "add_to_row_sum"),
            *("pack_p", "flush_output", "rescale_output"),
        ),
        "load_warp": (
            # The tile is read again at every block.
            *("elect_sync", "read_work_tile", "fetch_scales<kBlockN>", "read_work_tile"),
            *("wait k_empty", "load_k_block", "wait q_empty", "load_q_tile", "q.advance"),
            *("store_v_scales", "hand_over_scales"),
            *("fetch_scales<kBlockN>", "k.advance", "wait v_raw_empty", "load_v_block", "v.advance"),
        ),
    },
    "v_token_head_raw": {"finish_scores": ("scale_scores", "add_rope", *FOLDED)},
    "v_token_raw_online": {
        "finish_scores": (
            *("scale_scores", "add_rope", "fold_v_scales", "mask_scores", "online_softmax<!kMasked>"),
            "release_keys",
        ),
    },
    "fp8_48_0_112": {
        "finish_scores": (
            *("read_factors", "release_keys", "mask_scores", "online_softmax<false>", "lazy_softmax"),
        ),
        "write_factors": ("st_shared_f32", "warp_sync"),
    },
    "transposed": {
        # 96 tokens are 64 + 32
        "load_v_block": ("expect v_full", "cp_async_bulk_tensor_3d", "cp_async_bulk_tensor_3d"),
        "tail_warp": CLEARED_TAIL,
    },
    # 64 tokens are one chunk
    "transposed_dense": {
        "load_v_block": ("expect v_full", "cp_async_bulk_tensor_4d"),
        "tail_warp": CLEARED_TAIL,
    },
}


@pytest.mark.parametrize("name", WIDER_FLOWS)
def test_each_part_of_a_wider_form_takes_its_steps_in_order(name: str) -> None:
    for called, steps in WIDER_FLOWS[name].items():
        assert flow(function(name, called)) == list(steps), called


# Words of a feature, and the forms that have it.
TRACES: dict[str, tuple[tuple[str, ...], Callable[[Plan], bool]]] = {
    "rope": (
        ("q_rope_map", "kRopeChunks", "kKRopeOffset", "k_rope_tile", "q.rope"),
        lambda made: made.variants[0].features.has_rope,
    ),
    "raw rope": (("add_rope",), lambda made: made.variants[0].features.raw_rope),
    "row scales of raw rope": (
        ("score_scale",),
        lambda made: made.variants[0].features.raw_rope and made.spec["scales"]["q"] != "none",
    ),
    "scales of P": (
        ("v_scale_smem", "fold_v_scales", "kVScaleStageBytes", "kSmallestVScale", "score_factor"),
        lambda made: made.variants[0].features.scales_p,
    ),
    "factors in shared memory": (
        ("factor_smem", "factor_word", "write_factors", "read_factors"),
        lambda made: rereads_factors(made),
    ),
    "dense": (
        ("cp_async_bulk_tensor_4d", "_batch_step"),
        lambda made: "dense" in (made.spec["layout"]["q"], made.spec["layout"]["kv"]),
    ),
    "ragged": (
        ("cp_async_bulk_tensor_3d", "cu_seqlens"),
        lambda made: "ragged" in (made.spec["layout"]["q"], made.spec["layout"]["kv"]),
    ),
    "a helper that transposes": (
        ("transpose_warp", "ldmatrix", "kVRawStages", "v_raw_smem"),
        lambda made: made.variants[0].features.transposes_v,
    ),
    "half a group of output": (("st_global_u32(",), lambda made: half_stores(made)),
}


def rereads_factors(made: Plan) -> bool:
    """Of e4m3, where nothing else is read between the wait for S and softmax."""
    spec, of_tokens = made.spec, ("token", "token_head")
    reads = spec["scales"]["k"] in of_tokens or spec["scales"]["v"] in of_tokens
    raw = spec["dims"]["rope"] > 0 and spec["scales"]["rope"] == "raw"
    return spec["dtypes"]["qkv"] == "e4m3" and not reads and not raw


def half_stores(made: Plan) -> bool:
    return made.spec["dims"]["v"] % 32 == 16 and made.spec["dtypes"]["out"] != "f32"


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("feature", TRACES)
def test_what_a_kernel_does_not_do_leaves_no_trace(feature: str, name: str) -> None:
    words, has = TRACES[feature]
    found = [word for word in words if word in source(name)]
    assert found == (list(words) if has(plan(name)) else [])


@pytest.mark.parametrize("name", BF16_NAMES)
def test_a_ping_pong_step_waits_for_the_products_that_it_reads(name: str) -> None:
    # S is ready after the first wait, O after the second: the products were committed in this order.
    def waits(called: str) -> list[tuple[str, list[str]]]:
        found = (call for call in calls(function(name, called)) if call.callee == "wgmma_wait_group")
        return [(call.template, call.arguments) for call in found]

    assert waits("issue_in_turn") == [("<1>", ["s"])]
    assert waits("kv_step") == [("<0>", ["o", "s"])]
    steps = ["kv_step"]
    if name in PAIRED_NAMES:
        assert waits("kv_step_lazy") == [("<0>", ["o"])] * 2
        steps.append("kv_step_lazy")
    last = r"if\(block>0\)mbarrier_wait\(k_full\(k\.stage\),k\.phase\);wgmma_wait_group<0>"
    assert all(re.search(last, function(name, called)) for called in steps)


@pytest.mark.parametrize("name", PAIRED_NAMES)
def test_pairs_of_blocks_take_turns_with_p(name: str) -> None:
    # What one step writes the next one multiplies; the block that may be left over goes on with `p`.
    consumer = function(name, "consumer_warpgroup")
    pair = re.search(r"for\(;block>=1;block-=2\)\{(.*?)\}if\(block==0\)kv_step<true>\(s,o,p,", consumer)
    assert pair
    steps = [call.arguments for call in calls(pair[1]) if call.callee == "kv_step_lazy"]
    assert [(step[2:4], step[-1]) for step in steps] == [
        (["p", "next_p"], "block"),
        (["next_p", "p"], "block-1"),
    ]
    step = function(name, "kv_step_lazy")
    assert "issue_in_turn(s,o,p," in step and "next_p[i]=" in step and "online_softmax(s,o,next_p," in step
    assert all(f"sum[{half}]>kLazySumLimit" in step for half in (0, 1))


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_block_of_the_first_rows_last_key_is_masked(name: str) -> None:
    # Against a row without a reference point yet the lazy step would lose scores far below 0. Later rows see
    # more keys, so each of them has seen one, too, when the unmasked blocks come.
    text = code(name)
    assert "blocks.unmasked=(visible_keys(tile,first_row)-1)/kBlockN;" in text
    assert "finish_scores<true>(" in text and "finish_scores<false>(" not in text
    assert "for(--block;block>=unmasked;--block)kv_step<true>(" in text
    again = "unmasked=row_blocks(read_work_tile(done),first_row,kRowsPerConsumer).unmasked;"
    assert again in function(name, "consumer_warpgroup")


@pytest.mark.parametrize("name", EVERYTHING)
def test_rows_in_front_of_the_sequence_decide_nothing(name: str) -> None:
    # They hold the queries of others: sums of NaN vote for no exact step.
    assert function(name, "is_query") == "return row>=0;"
    first = function(name, "first_softmax_rows")
    assert "if(!is_query(tile.row_begin+row_in_tile+8*(i32)half))safe_factor=nan_f32();" in first
    assert "factor[half]=safe_factor;" in first


@pytest.mark.parametrize("name", EVERYTHING)
def test_blocks_are_counted_for_the_rows_that_they_are_for(name: str) -> None:
    text = code(name)
    assert "tile.num_blocks=row_blocks(tile,tile.row_begin,kBlockM).visible;" in text
    assert "first_row=tile.row_begin+(i32)(consumer*kRowsPerConsumer);" in text
    assert "blocks=row_blocks(tile,first_row,kRowsPerConsumer);" in text
    assert "num_unmasked_blocks" not in text


@pytest.mark.parametrize("name", FP8_NAMES)
def test_masked_steps_rescale_o_and_leave_the_master_alone(name: str) -> None:
    step = function(name, "finish_scores")
    if name in LAZY_NAMES:
        assert re.search(r"if\(kMasked\)online_softmax<false>\([^;]*;else lazy_softmax\(", step)
    assert len(re.findall(r"\bo_master\b", step)) == (2 if name in LAZY_NAMES else 1)
    exact = function(name, "online_softmax")
    branch = re.search(r"if\(kMasterInUse\)(flush_output\([^;]*;)else rescale_output\([^;]*;", exact)
    assert branch
    assert "o_master" not in exact.replace(branch[1], "")
    for called in ("flush_output", "rescale_output"):
        (call,) = (call for call in calls(exact) if call.callee == called)
        assert {"o", "rescale"} <= set(call.arguments)


@pytest.mark.parametrize("name", LAZY_NAMES)
def test_a_lowered_lift_takes_p_the_sums_and_o_along(name: str) -> None:
    text = function(name, "lower_lift")
    loop = re.search(r"for\(u32 (\w+)=0;\1<kLiftSteps;\+\+\1\)\{?if\((.*?)>kLazySumGoal\)\{(.*?)\}", text)
    assert loop
    # One step down is half of P, and 1 less in the exponent of the blocks to come.
    assert set(loop[3].split(";")) == {"shrink[half]*=0.5f", "rows.offset[half]-=1.0f", ""}
    for part in ("rescale[half]*=shrink[half];", "sum[half]*=shrink[half];", "s[i]*=shrink[i/2%2];"):
        assert part in text.replace(loop[0], "")
    # The largest sum of the four threads of a row decides, so that all of them decide alike.
    assert [call.arguments[1] for call in calls(text) if call.callee == "shfl_xor_f32"] == ["1", "2"]
    lazy = function(name, "lazy_softmax")
    assert all(f"sum[{half}]>kLazySumLimit" in lazy for half in (0, 1))


@pytest.mark.parametrize("name", FP8_NAMES)
def test_the_master_is_reached_at_the_vectors_of_the_plan(name: str) -> None:
    text = code(name)
    assert "MLA_SMEM(o_master_smem)+consumer*kMasterGroupBytes+thread_in_group*kMasterVectorBytes;" in text
    assert "o_master=o_master_words(consumer,warp_in_group*32+lane);" in text
    uses = {"flush_output": "ld st", "clear_master": "st", "add_master": "ld"}
    for called, kinds in uses.items():
        inside = function(name, called)
        assert "for(u32 i=0;i<kOutputRegs/8;++i)" in inside
        found = re.findall(r"\b(ld|st)_shared_v4_u32\(o_master\+i\*kMasterVectorStride,", inside)
        assert found == kinds.split()
        assert len(re.findall(r"_shared_\w+\(", inside)) == len(found)


@pytest.mark.parametrize("name", EVERYTHING)
def test_masks(name: str) -> None:
    bottom_right = "keys = row + 1 + tile.kv_len - tile.q_len" in source(name)
    causal = plan(name).spec["mask"] == "causal"
    assert bottom_right is causal
    assert ("every key is visible" in source(name)) is not causal


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs(name: str) -> None:
    f32 = "full" in name
    stores = set(re.findall(r"\bst_global_\w+", without_comments(source(name))))
    assert stores == ({"st_global_v2_f32"} if f32 else {"st_global_v4_u32"})
    assert "cvt_bf16x2" in source(name)  # P of bf16; the master of e4m3
    assert ("cvt_bf16x2(" in function(name, "store_output")) is not f32
    assert ("cvt_e4m3x4" in source(name)) is (name in FP8_NAMES)


@pytest.mark.parametrize("name", VARIANTS)
def test_debug_waits_are_in_debug_builds_only(name: str) -> None:
    debug = name in DEBUG_NAMES
    assert ("mla_debug_record" in source(name)) is debug
    assert ("trap;" in source(name)) is debug
    assert ("MLA_WAIT_" in source(name)) is not debug


def device_primitives(name: str) -> str:
    return source(name).partition("#if defined(__CUDACC__)")[2].partition("\n#else\n")[0]


def device_functions(name: str) -> set[str]:
    """Every primitive, whole."""
    found = set()
    for text in glued(device_primitives(name)).split("__device__")[1:]:
        end = re.search(r"[;{]", text).start()
        found.add(text[: past(text, end) if text[end] == "{" else end])
    return found


def source_of_release(name: str) -> str:
    """The same kernel without `debug`."""
    base, changes, _ = VARIANTS[name]
    return next(other for other, made in VARIANTS.items() if made == (base, changes, False))


@pytest.mark.parametrize("name", DEBUG_NAMES)
def test_a_debug_build_differs_in_the_primitives_only(name: str) -> None:
    release = source_of_release(name)
    assert device_primitives(name) and device_primitives(release) in source(release)
    assert source(name).replace(device_primitives(name), "") == source(release).replace(
        device_primitives(release), ""
    )
    (gone,) = device_functions(release) - device_functions(name)
    assert " mbarrier_wait(" in gone


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_shape_has_its_wgmma(name: str) -> None:
    text = source(name)
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k\d+)\.f32\.(\w+)\.\w+", text)
    (variant,) = plan(name).variants
    dtypes, dims = plan(name).spec["dtypes"], plan(name).spec["dims"]
    products = [(dtypes["qkv"], variant.launch.block_n, "ss")]
    products += [(dtypes["rope_mma"], variant.launch.block_n, "ss")] if dims["rope"] else []
    products += [(dtypes["qkv"], dims["v"], "rs")]
    expected = [(f"m64n{n}k{32 if kind == 'e4m3' else 16}", kind) for kind, n, _ in dict.fromkeys(products)]
    assert shapes == expected
    for count in re.findall(r"float \(&d\)\[(\d+)\]", text):
        assert int(count) in (variant.launch.block_n // 2, dims["v"] // 2)


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_banner_says_where_the_source_comes_from(name: str) -> None:
    head = source(name).splitlines()[:3]
    assert head[0].startswith(f"// Generated by mla-codegen from the spec {plan(name).name}. Do not edit")
    assert head[1] == f"// mla-codegen build {plan(name).name}.yaml"
    assert plan(name).spec_digest in head[2]
    assert "sm_90a" in head[2]


@pytest.mark.parametrize("name", [FP8, BF16])
def test_rendering_depends_on_the_plan_alone(name: str) -> None:
    again = Plan.from_json(plan(name).to_json())
    assert render(again) == source(name)
    renamed = replace(again, formula=("nothing",))
    assert render(renamed) != source(name)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str]], None]:
    """Changes every source that the tests of this module see."""

    def change(how: Callable[[str], str]) -> None:
        monkeypatch.setitem(globals(), "source", functools.cache(lambda name, made=source: how(made(name))))

    return change


FLOW = "test_each_part_takes_its_steps_in_order"
NAMED = "test_every_wait_and_arrival_names_its_barrier"
SETUP = "test_every_barrier_is_set_up_as_planned"
BARRIERS = "test_every_barrier_is_waited_on_and_arrived_at_by_the_roles_of_the_plan"
BEFORE = "test_barriers_are_set_up_before_anyone_can_meet_them"
COUNTS = "test_every_expected_byte_count_is_a_constant_of_the_plan"
BOXES = "test_every_tensor_map_is_prefetched_and_copied_through_by_as_many_boxes_as_planned"
PAIRS = "test_pairs_of_blocks_take_turns_with_p"
PING_PONG = "test_a_ping_pong_step_waits_for_the_products_that_it_reads"
MASKED = "test_the_block_of_the_first_rows_last_key_is_masked"
ROWS = "test_blocks_are_counted_for_the_rows_that_they_are_for"
BEFORE_THE_FIRST = "test_rows_in_front_of_the_sequence_decide_nothing"
MASTER = "test_masked_steps_rescale_o_and_leave_the_master_alone"
LIFTED = "test_a_lowered_lift_takes_p_the_sums_and_o_along"
# The test, the source, what is replaced in it where it comes first, and by what.
FAULTS: list[tuple[str, str, str, str]] = [
    (FLOW, FP8, r"(void kv_step\([^{]*\{\n)  mbarrier_wait\(v_full.*?\n", r"\1"),
    (FLOW, FP8, r"  bar_sync\(turn_barrier.*?\n", ""),
    (FLOW, BF16, r"    bar_sync\(turn_barrier.*?\n", ""),
    (FLOW, FP8, r"  pass_turn\(self.*?\n", ""),
    (FLOW, FP8, r"  release_slot\(k_empty.*?\n", ""),
    (FLOW, FP8, r"  if \(block == 0\) release_slot\(q_empty.*?\n", ""),
    (FLOW, FP8, r"      release_slot\(q_empty.*?\n", ""),
    (FLOW, FP8, r"            mbarrier_wait\(q_empty.*?\n", ""),
    (FLOW, FP8, r"          q.advance\(\);\n", ""),
    (FLOW, BF16, r"    for \(u32 consumer = 0;[^\n]*mbarrier_wait\(q_empty.*?\n", ""),
    (FLOW, BF16, r"    skip_blocks\(v, .*?\n", ""),
    (FLOW, BF16, r"    wgmma_wait_group<0>\(o\);\n    online_softmax", "    online_softmax"),
    (FLOW, BF16, r"  release_slot\(v_empty.*?\n", ""),
    (FLOW, FP8, r"  fence_proxy_async_shared\(\);.*?\n", ""),
    (FLOW, BF16, r"  fence_proxy_async_shared\(\);.*?\n", ""),
    (FLOW, FP8, r"  warp_sync\(\);\n(  if \(lane == 0\) mbarrier_arrive\(empty)", r"\1"),
    (FLOW, FP8, r"  lower_lift\(s, rows.*?\n", ""),
    (FLOW, BF16, r"  add_to_row_sum\(rows, .*?\n", ""),
    (FLOW, BF16, r"wgmma_wait_group<1>", "wgmma_wait_group<0>"),
    (FLOW, BF16, r"  wgmma_fence\(\);\n  issue_pv", "  issue_pv"),
    (FLOW, FP8, r"  wgmma_fence\(\);  // the next.*?\n", ""),
    (FLOW, FP8, r"(  scale_scores\(s, .*?\n)(  release_keys.*?\n)", r"\2\1"),
    (FLOW, BF16, r"    if \(has_tail\(tile\)\) mbarrier_wait.*?\n", ""),
    (FLOW, FP8, r"    add_master\(o, self.o_master\);\n", ""),
    (FLOW, FP8, r"      if \(block < end\) flush_output.*?\n", ""),
    (FLOW, FP8, r"online_softmax<true>\(s", "online_softmax<false>(s"),
    (FLOW, FP8, r"            load_row_scales\(params.*?\n", ""),
    (BARRIERS, FP8, r"  hand_over_scales\(q_full.*?\n", ""),
    (BARRIERS, FP8, r"      mbarrier_arrive\(v_raw_empty.*?\n", ""),
    (BARRIERS, FP8, r"mbarrier_wait\(v_raw_empty", "mbarrier_wait(v_empty"),
    (BARRIERS, BF16, r"mbarrier_arrive\(v_tail_cleared", "mbarrier_arrive(v_full"),
    (BARRIERS, BF16, r"  mbarrier_arrive_expect_tx\(q_full.*?\n", ""),
    (BARRIERS, BF16, r"mbarrier_at\(Mbarrier::k_full", "mbarrier_at(Mbarrier::k_empty"),
    (NAMED, FP8, r"mbarrier_wait\(k_full\(k.stage\)", "mbarrier_wait(q_nope"),
    (NAMED, FP8, r"mbarrier_wait\(k_full\(k.stage\)", "mbarrier_wait(k_full(1)"),
    (SETUP, FP8, r"  init_barriers\(Mbarrier::v_empty.*?\n", ""),
    (SETUP, FP8, r"(init_barriers\(Mbarrier::k_full, kKStages, )\w+", r"\1kConsumerArrivals"),
    (SETUP, BF16, r"i < stages; ", "i < 1; "),
    (BEFORE, BF16, r"  cta_sync\(\);\n", ""),
    (BEFORE, FP8, r"  fence_mbarrier_init\(\);\n", ""),
    (BEFORE, FP8, r"(    while \(next_head\(tile\)\);\n)    return;\n", r"\1"),
    (BEFORE, FP8, r"  if \(thread_index\(\) == 0\) write_work_tile.*?\n(  cta_sync.*?\n)", r"\1"),
    (PAIRS, BF16, r"kv_step_lazy\(s, o, next_p, p,", "kv_step_lazy(s, o, p, next_p,"),
    (PAIRS, BF16, r"v, self, block - 1\);", "v, self, block);"),
    (PAIRS, BF16, r"next_p\[i\] = ", "p[i] = "),
    (BEFORE, FP8, r"    setmaxnreg_inc.*?\n", ""),
    (BOXES, BF16, r"copy_tile<kNopeChunks>", "copy_tile<kRopeChunks>"),
    (COUNTS, BF16, r"kVTxBytes\);", "kKTxBytes);"),
    (PING_PONG, BF16, r"wgmma_wait_group<1>\(s\)", "wgmma_wait_group<1>(o)"),
    (PING_PONG, BF16, r"if \(block > 0\) mbarrier_wait", "mbarrier_wait"),
    (MASKED, FP8, r"block >= unmasked", "block > unmasked"),
    (BEFORE_THE_FIRST, FP8, r"    if \(!is_query\(tile.row_begin \+ row_in_tile.*?\n", ""),
    (BEFORE_THE_FIRST, BF16, r"return row >= 0;", "return row >= -1;"),
    (ROWS, BF16, r"first_row, kRowsPerConsumer", "first_row, kBlockM"),
    (MASTER, FP8, r"if \(kMasterInUse\)", "if (!kMasterInUse)"),
    (LIFTED, FP8, r"        rows.offset\[half\] -= 1.0f;\n", ""),
    (LIFTED, FP8, r"    sum\[half\] \*= shrink\[half\];\n", ""),
    (LIFTED, FP8, r" s\[i\] \*= shrink\[i / 2 % 2\];", " s[i] *= 1.0f;"),
    (LIFTED, FP8, r" \|\| sum\[1\] > kLazySumLimit", ""),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[2]}")
def test_these_tests_notice_what_is_missing(
    fault: tuple[str, str, str, str], changed: Callable[[Callable[[str], str]], None]
) -> None:
    test, name, pattern, replacement = fault
    first = source(name).index("// ---- constants")

    def spoil(text: str) -> str:
        kept, kernel = text[:first], text[first:]
        spoilt, count = re.subn(pattern, replacement, kernel, count=1)
        assert count == 1 and spoilt != kernel
        return kept + spoilt

    assert spoil(source(name))
    changed(spoil)
    with pytest.raises(AssertionError):
        globals()[test](name)


def in_kernel(how: Callable[[str], str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        first = text.index("// ---- barriers")
        return text[:first] + how(text[first:])

    return change


CALL_IN_ITS_LINE = re.compile(r"^( +(?!//)[^/\n\"]*?), (?=\w)(?![^\n]*(//|\{$))", re.MULTILINE)
SHORT_IF = re.compile(r"^( *)(if \([^;{}\n]*\)) ([a-z]\w+\([^;{}\n]*;)$", re.MULTILINE)
COSMETICS: dict[str, Callable[[str], str]] = {
    "without comments": lambda text: re.sub(r" *//(?! ----).*", "", text),
    "wrapped at brackets": lambda text: re.sub(r"(?<= )(\w+)\((?=\w)(?!.*//)", r"\1(\n      ", text),
    "wrapped at commas": lambda text: CALL_IN_ITS_LINE.sub(r"\1,\n      ", text),
    "braced": lambda text: SHORT_IF.sub(r"\1\2 {\n\1  \3\n\1}", text),
    "another argument": lambda text: re.sub(r", (u32 )?lane\)", r", \1lane, \1extra)", text),
}
READERS = [FLOW, SETUP, BARRIERS, BEFORE, LIFTED, *(fault[0] for fault in FAULTS)]
READERS += [
    "test_the_master_is_reached_at_the_vectors_of_the_plan",
    "test_every_function_of_the_kernel_is_used",
]
READERS += [
    "test_blocks_are_counted_for_the_rows_that_they_are_for",
    "test_a_barrier_lies_at_its_index_in_the_map",
]


@pytest.mark.parametrize("name", [FP8, BF16, "fp8_online"])
@pytest.mark.parametrize("how", COSMETICS)
def test_these_tests_do_not_mind_how_the_source_is_written(
    how: str, name: str, changed: Callable[[Callable[[str], str]], None]
) -> None:
    plain = source(name)
    changed(in_kernel(COSMETICS[how]))
    assert source(name) != plain
    for test in dict.fromkeys(READERS):
        marks = {mark.args[0]: mark.args[1] for mark in globals()[test].pytestmark}
        if name in marks["name"]:
            globals()[test](name)
