"""What a user reads where there is no plan, against stored texts; and that the way out is one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from mla_codegen.errors import Diagnostic, PlanError
from mla_codegen.plan import make_plan
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import loads_specs

MESSAGES = Path(__file__).parent / "messages"

HEAD = """\
name: k
arch: sm_90a
"""
FP8 = (
    HEAD
    + """\
dtypes: {qkv: e4m3}
dims: {nope: 128, rope: 64, v: 128}
scales: {q: token, k: token, rope: prescaled}
"""
)
BF16 = (
    HEAD
    + """\
dtypes: {qkv: bf16}
dims: {nope: 128, rope: 64, v: 128}
"""
)
WIDE_SCALED_V = FP8.replace("v: 128", "v: 256").replace("k: token,", "k: token, v: token,")
"""Fits with the online softmax only."""

WRONG: dict[str, str] = {
    "smem_one_field": FP8 + "pipeline:\n  kv_stages: 32\n",
    "smem_two_fields": FP8 + "tile: {block_n: 96}\npipeline: {kv_stages: 12}\n",
    "smem_block_n": BF16 + "tile:\n  block_n: 160\npipeline: {kv_stages: 2, v_stages: 2}\n",
    "smem_three_consumers": BF16 + "schedule: {consumers: 3}\npipeline: {v_stages: 9, kv_stages: 1}\n",
    "smem_everything": FP8
    + "tile: {block_m: 192, block_n: 96}\npipeline: {kv_stages: 9, v_stages: 19, v_raw_stages: 19}\n"
    + "schedule: {consumers: 3}\n",
    "registers": FP8 + "tile: {block_n: 128}\nschedule: {consumers: 3}\n",
    "registers_rows": BF16 + "tile: {block_m: 192, block_n: 96}\nschedule: {consumers: 3}\n",
    "registers_two_consumers": FP8
    + "tile: {block_n: 192}\nschedule: {consumers: 2}\npipeline: {kv_stages: 1}\n",
    "registers_and_smem": BF16 + "tile: {block_n: 256}\npipeline: {kv_stages: 3}\n",
    "bad_tiles": FP8 + "tile:\n  block_m: 64\n  block_n: 80\nschedule: {consumers: 8}\n",
    "bad_block_n": BF16 + "tile: {block_n: 272}\n",
    "consumers_conflict": BF16 + "tile: {block_m: 192}\nschedule: {consumers: 2}\n",
    "no_raw_v": BF16 + "pipeline: {v_raw_stages: 2}\n",
    "other_arch": FP8.replace("sm_90a", "sm_100a") + "tile: {block_n: 80}\n",
    "rope_mma": FP8.replace("{qkv: e4m3}", "{qkv: e4m3, rope_gmem: e4m3, rope_mma: bf16}"),
    "f16_p_bf16": BF16.replace("{qkv: bf16}", "{qkv: f16, p: bf16}"),
    "one_unsupported_and_one_wrong": FP8 + "mask: {window: [128, 0]}\ntile: {block_n: 80}\n",
    "all_unsupported": """\
name: k
arch: sm_90a
dtypes: {qkv: e4m3, p: bf16, rope_gmem: e4m3, rope_mma: bf16, out: f16}
dims: {nope: 192, rope: 32, v: 192}
heads: {q: 128, group: 8}
scales: {q: tensor, k: head, v: token, rope: raw, rope_k: token}
mask: {prefix_lm: true}
layout: {q: dense, kv: {paged: 64}, rope: {paged: 16}}
pipeline: {qk_stages: 2, pv_stages: 4, kv_ring: unified}
accumulation: {flush_blocks: 16}
softmax: {lse: natural, variant: lazy, sink: true, softcap: 30.0}
smem: {layout: seed}
schedule: {order: free, transpose_warps: 4, persistent: true, longest_first: false}
""",
    "16_bit_flush": BF16 + "softmax: {variant: lazy}\naccumulation:\n  flush_blocks: 12\n",
    "all_unsupported_sm100": """\
name: k
arch: sm_103a
dtypes: {qkv: e4m3, p: bf16, rope_gmem: e4m3, rope_mma: bf16, out: f16}
dims: {nope: 128, rope: 64, v: 128}
heads: {q: 128, group: 8}
scales: {q: tensor, k: tensor, v: token, rope: raw}
mask: {prefix_lm: true}
layout: {q: dense, kv: {paged: 64}, rope: {paged: 16}}
pipeline: {qk_stages: 2, pv_stages: 4, kv_ring: unified, kv_stages: 3, v_stages: 2, v_raw_stages: 2}
tile: {block_m: 64, block_n: 64}
accumulation: {flush_blocks: 16}
softmax: {lse: natural, variant: online, sink: true, softcap: 30.0}
smem: {layout: seed}
schedule: {order: free, transpose_warps: 4, consumers: 2, persistent: true, longest_first: false}
""",
    "order_fp8": FP8 + "schedule: {order: ping_pong}\n",
    "order_16_bit": BF16 + "schedule:\n  order: turns\n",
    "smem_master": FP8 + "schedule: {consumers: 2}\npipeline: {v_stages: 8}\ntile: {block_n: 128}\n",
    "dims": FP8.replace("128, rope: 64, v: 128", "256, rope: 256, v: 256"),
    "dims_and_stages": FP8.replace("128, rope: 64, v: 128", "256, rope: 256, v: 256")
    + "pipeline: {kv_stages: 2}\n",
    "registers_dims": BF16.replace("128, rope: 64, v: 128", "256, rope: 256, v: 256"),
    "registers_wide_v": FP8.replace("v: 128", "v: 256") + "schedule: {consumers: 3}\n",
    "registers_v_scale": WIDE_SCALED_V + "softmax: {variant: lazy}\n",
    "registers_flush_blocks": WIDE_SCALED_V + "accumulation: {flush_blocks: 6}\n",
    "transposed_raw_v": FP8 + "layout: {v: transposed}\npipeline:\n  v_raw_stages: 2\n",
    "transposed_warps": FP8 + "layout: {v: transposed}\nschedule: {transpose_warps: 3}\n",
}


def diagnostics(text: str) -> tuple[Diagnostic, ...]:
    (spec,) = loads_specs(text, path="specs/k.yaml")
    with pytest.raises(PlanError) as caught:
        make_plan(spec)
    return caught.value.diagnostics


@pytest.mark.parametrize("case", WRONG)
def test_messages(case: str) -> None:
    stored = MESSAGES / f"plan_{case}.txt"
    found = "\n".join(fault.render() for fault in diagnostics(WRONG[case])) + "\n"
    assert stored.is_file(), f"{stored.name} is missing, it should hold:\n{found}"
    assert found == stored.read_text(encoding="ascii")


def test_every_stored_message_has_its_case() -> None:
    stored = [path.stem.removeprefix("plan_") for path in MESSAGES.glob("plan_*.txt")]
    assert sorted(stored) == sorted(WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_every_diagnostic_has_a_place_both_values_and_a_way_out(case: str) -> None:
    lines = WRONG[case].splitlines()
    for fault in diagnostics(WRONG[case]):
        assert fault.path == "specs/k.yaml"
        assert fault.field is not None
        assert fault.line is not None and fault.col is not None
        key = re.match(r"\w+", lines[fault.line - 1][fault.col - 1 :])
        assert key, f"{fault.location()} points at no word"
        assert re.fullmatch(r"[a-z].*[^.]", fault.message), "one sentence, lower case, without full stop"
        assert re.search(r"\d|is .+, ", fault.message), "no value found"
        assert fault.help


@pytest.mark.parametrize("case", WRONG)
def test_diagnostics_point_at_the_value_or_the_key_of_their_field(case: str) -> None:
    lines = WRONG[case].splitlines()
    for fault in diagnostics(WRONG[case]):
        (_, _, name) = fault.field.rpartition(".")
        place = lines[fault.line - 1]
        assert name in place or f"{fault.field.split('.')[0]}:" in place


@pytest.mark.parametrize("qkv", ["bf16", "f16"])
def test_16_bit_kernels_are_refused_the_flush(qkv: str) -> None:
    text = WRONG["16_bit_flush"].replace("bf16", qkv)
    fields = {fault.field for fault in diagnostics(text)} - {"dtypes.qkv"}
    assert fields == {"accumulation.flush_blocks"}


# The order of which a kernel of each type is made; every other one is refused in the type's own words.
@pytest.mark.parametrize(
    ("text", "kind", "made"), [(FP8, "e4m3", "turns"), (BF16, "16-bit", "ping_pong")], ids=["fp8", "bf16"]
)
def test_each_type_has_one_order(text: str, kind: str, made: str) -> None:
    for order in {"turns", "ping_pong", "free"} - {made}:
        (fault,) = diagnostics(f"{text}schedule: {{order: {order}}}\n")
        assert fault.message == (
            f"schedule.order is {order}, this version makes kernels with {kind} qkv for auto and {made}"
        )
        assert fault.help == f"set schedule.order: auto or {made}"
    for order in ("auto", made):
        (spec,) = loads_specs(f"{text}schedule: {{order: {order}}}\n", path="specs/k.yaml")
        make_plan(spec)


def test_every_fault_is_reported_at_once() -> None:
    fields = {fault.field for fault in diagnostics(WRONG["all_unsupported"])}
    assert fields == {
        "dtypes.p",
        "dtypes.rope_mma",
        "scales.rope_k",
        "mask",
        "layout.kv",
        "layout.rope",
        "pipeline.qk_stages",
        "pipeline.pv_stages",
        "pipeline.kv_ring",
        "softmax.sink",
        "softmax.softcap",
        "smem.layout",
        "schedule.order",
        "schedule.transpose_warps",
        "schedule.longest_first",
    }


def test_the_terms_add_up_to_what_is_needed() -> None:
    faults = [
        fault for text in WRONG.values() for fault in diagnostics(text) if fault.code == "smem-overflow"
    ]
    assert len(faults) == 9
    for fault in faults:
        needed, there = map(int, re.findall(r"(\d+) B", fault.message))
        terms = [
            (int(count or 1), int(size))
            for count, size in re.findall(r"\w+ (?:(\d+) x )?(\d+)(?= \+|$)", fault.notes[0])
        ]
        assert len(terms) == fault.notes[0].count(" + ") + 1
        assert sum(count * size for count, size in terms) == needed > there == 232448


SMALLER_DIMS = {"dims.nope": 64, "dims.rope": 64, "dims.v": 64}


def ways_out(fault: Diagnostic) -> list[dict[str, object]]:
    """The changes that a help offers, each as field -> value: `set A or B, or LAST`, or LAST alone."""
    settings, _, last = fault.help.rpartition(", or ")
    if not fault.help.startswith("set "):
        settings, last = "", fault.help
    ways: list[dict[str, object]] = []
    for way in filter(None, settings.removeprefix("set ").split(" or ")):
        pairs = [setting.split(": ") for setting in way.split(" with ")]
        ways.append({field: int(value) if value.isdigit() else value for field, value in pairs})
    if last == "take smaller dims":
        return [*ways, SMALLER_DIMS]
    fields = last.removeprefix("leave ").removesuffix(" to auto")
    assert f"leave {fields} to auto" == last
    return [*ways, dict.fromkeys(re.split(", | and ", fields), "auto")]


def changed(spec: Spec, change: dict[str, object]) -> Spec:
    data = spec.to_mapping()
    for field, value in change.items():
        section, name = field.split(".")
        data[section][name] = value
    return Spec.from_mapping(data)


ALONE = ("smem_one_field", "smem_two_fields", "smem_block_n", "smem_three_consumers", "smem_everything")
ALONE += ("smem_master", "registers", "registers_rows")
ALONE += ("registers_two_consumers", "registers_dims", "registers_wide_v", "registers_v_scale")
ALONE += ("registers_flush_blocks",)


@pytest.mark.parametrize("case", ALONE)
def test_each_way_out_leads_to_a_plan(case: str) -> None:
    (spec,) = loads_specs(WRONG[case], path="specs/k.yaml")
    (fault,) = diagnostics(WRONG[case])
    for way in ways_out(fault):
        make_plan(changed(spec, way))


def test_ways_out_are_the_nearest_ones() -> None:
    (fault,) = diagnostics(WRONG["smem_two_fields"])
    # Two consumers, one-stage rings of V: 65536 + kv x 24576 + 2 x 12288: 5 stages are 212992, 6 are 237568.
    assert ways_out(fault)[0] == {"pipeline.kv_stages": 5}
    (fault,) = diagnostics(WRONG["smem_master"])
    # Q and master 2 x 32768 + 32768 + v x 16384 + 16384: 7 stages are 229376, 8 are 245760. With 8 of them,
    # 96 keys: 65536 + 24576 + 8 x 12288 + 12288 = 200704.
    assert ways_out(fault)[:2] == [{"pipeline.v_stages": 7}, {"tile.block_n": 96}]


def test_what_cannot_fit_at_all_has_ways_out_beyond_the_sizes_of_tiles() -> None:
    """Where no tile is small enough, leaving a field to auto is no way out, and is not offered."""
    # V that comes transposed would need no ring of raw V, 246784 - 16384 - 2 barriers, but as many registers.
    for case in ("dims", "dims_and_stages"):
        faults = diagnostics(WRONG[case])
        assert [fault.code for fault in faults] == ["register-overflow", "smem-overflow"]
        assert {fault.help for fault in faults} == {"take smaller dims"}
    (fault,) = diagnostics(WRONG["registers_dims"])
    # S 32 + O 128 + P 16 + 52 + 8 x (32 steps of Q*K - 24) + 10 = 302
    assert (fault.help, "needs 302 registers" in fault.message) == ("take smaller dims", True)
    (fault,) = diagnostics(WRONG["registers_v_scale"])
    # S 32 + O 128 + P 8 + 52 + 12 for O with a master + 8 for the lazy softmax = 240 of 232
    assert ways_out(fault)[0] == {"softmax.variant": "online"}


def test_the_online_softmax_is_a_way_out_only_where_auto_may_not_take_it() -> None:
    # The number of blocks was asked for, and only the lazy softmax flushes after several.
    (fault,) = diagnostics(WRONG["registers_flush_blocks"])
    assert (fault.message[:19], fault.help) == ("needs 240 registers", "take smaller dims")
    # 192 keys: auto went on to the online softmax, S 96 + O 64 + P 24 + 52 = 236 of 224
    (fault,) = diagnostics(WRONG["registers_two_consumers"])
    assert {"softmax.variant": "online"} not in ways_out(fault)
    # Lazy, 24 more: 260; online would be too many as well
    (fault,) = diagnostics(WRONG["registers_two_consumers"] + "softmax: {variant: lazy}\n")
    assert fault.message[:19] == "needs 260 registers"
    assert {"softmax.variant": "online"} not in ways_out(fault)


AXES = {
    "schedule.consumers": ("auto", 2, 3),
    "tile.block_n": ("auto", 64, 96, 128, 192, 256),
    "pipeline.kv_stages": ("auto", 1, 4, 12),
    "pipeline.v_stages": ("auto", 1, 9),
}


WIDE = {
    "v_256": "128, rope: 64, v: 256",
    "glm": "192, rope: 64, v: 256",
    "just_fits": "256, rope: 192, v: 192",  # 230 registers of 232, and 238 of 240
    "just_not": "256, rope: 208, v: 192",  # a step of Q*K more: 233, and 246
    "all_256": "256, rope: 256, v: 256",
}
TEXTS = {"fp8": FP8, "bf16": BF16} | {
    f"{name}_{dims}": text.replace("128, rope: 64, v: 128", numbers)
    for name, text in (("fp8", FP8), ("bf16", BF16))
    for dims, numbers in WIDE.items()
}
TEXTS |= {
    "scaled_v": FP8.replace("k: token,", "k: token, v: token,"),
    "wide_scaled_v": WIDE_SCALED_V,
    "wide_scaled_v_lazy": WRONG["registers_v_scale"],
    "wide_scaled_v_flushed": WRONG["registers_flush_blocks"],
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_ways_out_work_wherever_sizes_are_wrong(text: str) -> None:
    (spec,) = loads_specs(text, path="specs/k.yaml")
    tried = 0
    for values in itertools.product(*AXES.values()):
        asked = changed(spec, dict(zip(AXES, values, strict=True)))
        try:
            make_plan(asked)
        except PlanError as error:
            for fault in error.diagnostics:
                others = {other.code for other in error.diagnostics} - {fault.code}
                for way in ways_out(fault):
                    leads_to_a_plan(changed(asked, way), way, others)
                    tried += 1
    assert tried > 10


def leads_to_a_plan(spec: Spec, way: dict[str, object], others: set[str]) -> None:
    """Or leaves other faults only. Smaller dims are the user's choice: with set sizes 64 may be too many."""
    try:
        make_plan(spec)
    except PlanError as error:
        assert way == SMALLER_DIMS or {fault.code for fault in error.diagnostics} <= others


@pytest.mark.parametrize("case", ["all_unsupported", "all_unsupported_sm100"])
def test_following_all_advice_about_unsupported_fields_gives_a_plan(case: str) -> None:
    (spec,) = loads_specs(WRONG[case], path="specs/k.yaml")
    data = spec.to_mapping()
    for fault in diagnostics(WRONG[case]):
        field, _, values = fault.help.removeprefix("set ").partition(": ")
        value = re.split(r",? or |, ", values)[0]
        known = {"null": None, "true": True, "false": False}
        section, _, name = field.partition(".")
        target = data[section] if name else data
        target[name or section] = known.get(value, int(value) if value.isdigit() else value)
    make_plan(Spec.from_mapping(data))
