"""Plans of Blackwell specs: what the seed's struct becomes, which body runs, and what cannot be asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_codegen.emulator.names import PlanNames
from mla_codegen.errors import PlanError
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan, Sm100Body, Sm100Variant
from mla_codegen.render import render
from mla_codegen.resources import specs_folder
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec
from tests.emulator.sm100_forms import FORMS, plan_of

SEED_FIELDS = (
    "q_smem",
    "kv_smem",
    "q_scale_smem",
    "k_scale_smem",
    "correction_smem",
    "mbar_base",
    "tmem_addr",
)
SEED_CONSTANTS = (
    "q_nope_bytes",
    "q_rope_bytes",
    "q_bytes",
    "num_kv_stages",
    "kv_nope_bytes",
    "kv_rope_bytes",
    "kv_bytes",
    "q_scale_bytes",
    "k_scale_bytes",
    "correction_smem_size",
)


def plan(name: str = "dsv3_fp8_sm100", **changes: dict[str, Any] | str) -> Plan:
    """The plan of a shipped spec with some fields changed."""
    data = load_spec(specs_folder() / f"{name}.yaml").to_mapping()
    for section, change in changes.items():
        data[section] = {**data[section], **change} if isinstance(change, dict) else change
    return make_plan(Spec.from_mapping(data))


def variant(made: Plan) -> Sm100Variant:
    (found,) = made.variants
    assert isinstance(found, Sm100Variant)
    return found


def bodies(made: Plan) -> list[str]:
    return [body.name for body in variant(made).bodies]


# Stages, sizeof of the fields before the barriers, num_mbars: the seed's 13 + 2 stages (2Q) and 12 + 2 stages
# (1Q), and ours: the cleared tail of V, the scales of Q, and a full and an empty one of the key scales.
@pytest.mark.parametrize(
    ("rows", "body", "stages", "before_barriers", "mbars"),
    [(256, "two_q", 5, 231936, 13 + 10 + 4), (128, "one_q", 6, 230912, 12 + 12 + 4)],
)
def test_the_seeds_struct_field_for_field(
    rows: int, body: str, stages: int, before_barriers: int, mbars: int
) -> None:
    made = plan("dsv3_fp8_seed_sm100", tile={"block_m": rows})
    assert bodies(made) == [body]
    smem = variant(made).smem
    assert tuple(field.name for field in smem.fields) == SEED_FIELDS
    assert tuple(constant.name for constant in smem.constants) == SEED_CONSTANTS
    value = {constant.name: constant.value for constant in smem.constants}
    assert value["num_kv_stages"] == stages
    assert value["kv_bytes"] == stages * (16384 + 16384)
    assert value["q_bytes"] == rows * (128 + 64 * 2)
    assert (value["q_scale_bytes"], value["k_scale_bytes"]) == (rows * 4, 512)
    assert value["correction_smem_size"] == rows
    assert smem.fields[-2].offset_bytes == before_barriers
    assert smem.fields[-2].count == mbars
    assert smem.used_bytes == before_barriers + 8 * mbars + 4 <= 232448
    barriers = {barrier.name: barrier.stages for barrier in variant(made).mbarriers}
    assert (barriers["k_scale_full"], barriers["k_scale_empty"]) == (1, 1)
    assert variant(made).bodies[0].features.shares_factors is (rows == 128)


def test_the_struct_of_auto_has_the_same_fields_in_the_order_of_the_newest_kernel() -> None:
    for body in variant(plan()).bodies:
        names = [field.name for field in body.smem.fields]
        assert sorted(names) == sorted(SEED_FIELDS)
        assert names[2:5] == ["correction_smem", "q_scale_smem", "k_scale_smem"]
        assert tuple(constant.name for constant in body.smem.constants) == SEED_CONSTANTS


def test_which_bodies_there_are() -> None:
    assert bodies(plan()) == ["two_q", "one_q"]
    assert bodies(plan(tile={"block_m": 128})) == ["one_q"]
    assert bodies(plan("glm_fp8_sm100")) == ["single_o"]
    assert bodies(plan(smem={"layout": "seed"})) == ["two_q"]
    assert variant(plan()).launch.block_m == 256
    assert variant(plan(tile={"block_m": 128})).launch.block_m == 128


def test_rows_that_the_shape_does_not_have_are_refused() -> None:
    with pytest.raises(PlanError, match=r"tile\.block_m is 256, allowed with a single O: 128"):
        plan("glm_fp8_sm100", tile={"block_m": 256})


def test_scales_of_v_by_token_narrow_the_block_and_lie_beside_those_of_keys() -> None:
    made = plan(scales={"v": "token"})
    assert variant(made).launch.block_n == 96
    for body in variant(made).bodies:
        fields = {field.name: field for field in body.smem.fields}
        keys = fields["k_scale_smem"].count
        assert fields["v_scale_smem"].count == 2 * keys and keys % 96 == 0
        assert body.smem.sizeof_bytes <= 232448
    with pytest.raises(PlanError, match=r"scales\.v is token, this version makes kernels with"):
        plan(scales={"v": "token"}, smem={"layout": "seed"})


@pytest.mark.parametrize("name", FORMS)
def test_plans_come_back_from_their_json(name: str) -> None:
    made = plan_of(name)
    assert Plan.from_json(made.to_json()) == made


def named_once(body: Sm100Body) -> bool:
    indices = [barrier.first_index + stage for barrier in body.mbarriers for stage in range(barrier.stages)]
    return indices == list(range(body.num_mbars))


@pytest.mark.parametrize("name", FORMS)
def test_every_barrier_has_one_name_and_known_constants(name: str) -> None:
    for body in variant(plan_of(name)).bodies:
        assert named_once(body)
        literals = {item.name: item.literal for group in body.constants for item in group.constants}
        for barrier in body.mbarriers:
            assert literals.get(barrier.stages_constant, barrier.stages_constant) == str(barrier.stages)
            assert literals[barrier.arrivals_constant] == str(barrier.arrivals)


def test_arrivals_of_p_are_those_of_softmax_and_correction() -> None:
    barriers = {barrier.name: barrier for barrier in variant(plan()).mbarriers}
    assert (barriers["p_first_0"].arrivals, barriers["p_rest_0"].arrivals) == (256, 128)
    assert barriers["p_first_1"].first_index - barriers["p_first_0"].first_index == 2
    assert (barriers["k_full"].tx_bytes, barriers["v_full"].tx_bytes) == (32768, 16384)


def test_one_source_for_all_targets_of_the_family() -> None:
    texts = set()
    for arch in ("sm_100a", "sm_100f", "sm_103a"):
        source = render(plan(arch=arch))
        texts.add(re.sub(r"^// Architecture .*$", "", source, flags=re.M))
    assert len(texts) == 1


def test_the_emulator_names_roles_and_barriers() -> None:
    names = PlanNames(variant(plan()), ["q_nope"])
    assert [names.role(warp) for warp in (0, 4, 8, 12, 13, 15)] == [
        "softmax 0",
        "softmax 1",
        "correction",
        "mma",
        "load",
        "tail",
    ]


def test_nothing_of_the_family_says_that_it_ran_on_hardware() -> None:
    for path in specs_folder().glob("*_sm100.yaml"):
        assert make_plan(load_spec(path)).validated == ("ptxas", "emulator")


_DEPTHS = st.integers(1, 16).map(lambda count: 16 * count)
_FORMS = st.sampled_from(["none", "tensor", "head", "token", "token_head"])


@st.composite
def drawn_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of this family that the schema takes; whether a kernel can be made of them is to be seen."""
    qkv = draw(st.sampled_from(["e4m3", "bf16", "f16"]))
    stored = draw(st.sampled_from(["bf16", "f16", "e4m3"]))
    consumed = draw(st.sampled_from(["bf16", "e4m3"])) if stored == "e4m3" else stored
    rope = draw(st.integers(0, 8).map(lambda count: 16 * count))
    scales = {side: draw(_FORMS) if qkv == "e4m3" else "none" for side in ("q", "k", "v")}
    if rope and (scales["q"], scales["k"]) != ("none", "none"):
        scales["rope"] = "prescaled"
        if scales["k"] in ("head", "token_head"):
            scales["k"] = "token"
    return {
        "name": "drawn",
        "arch": draw(st.sampled_from(["sm_100a", "sm_100f", "sm_103a"])),
        "dtypes": {
            "qkv": qkv,
            "rope_gmem": stored,
            "rope_mma": consumed,
            "out": draw(st.sampled_from(["bf16", "f16", "f32"])),
        },
        "dims": {"nope": draw(_DEPTHS), "rope": rope, "v": draw(_DEPTHS)},
        "heads": {"group": draw(st.sampled_from([1, 2, 128]))},
        "scales": scales,
        "mask": draw(st.sampled_from(["full", "causal"])),
        "layout": {side: draw(st.sampled_from(["ragged", "dense"])) for side in ("q", "kv")},
        "tile": {"block_m": draw(st.sampled_from(["auto", 128, 256]))},
        "smem": {"layout": draw(st.sampled_from(["auto", "seed"]))},
        "softmax": {"lse": draw(st.sampled_from(["none", "natural", "log2"]))},
    }


@settings(max_examples=300, deadline=None)
@given(drawn_specs())
def test_every_spec_is_planned_within_the_limits_or_refused(data: dict[str, Any]) -> None:
    try:
        made = make_plan(Spec.from_mapping(data))
    except PlanError as error:
        assert all(fault.field and fault.help for fault in error.diagnostics)
        return
    assert Plan.from_json(made.to_json()) == made
    for body in variant(made).bodies:
        assert body.smem.sizeof_bytes <= variant(made).launch.smem_bytes <= 232448
        assert body.tmem.used_cols <= body.tmem.alloc_cols <= 512
        assert named_once(body) and body.num_mbars <= 64
        stages = next(item.value for item in body.smem.constants if item.name == "num_kv_stages")
        assert stages >= 2
    source = render(made)
    assert not [line for line in source.splitlines() if len(line) > 110]
