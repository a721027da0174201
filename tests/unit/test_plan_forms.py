"""The plan of every form: Params with the axes of their strides, shared memory, arrivals, validation."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mla_codegen.errors import PlanError, SpecError
from mla_codegen.plan import Plan, make_plan
from mla_codegen.plan.model import Variant
from mla_codegen.render import render
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec
from tests.emulator.support import GENERATED
from tests.forms import FORMS, form

MAX_COLUMNS = 110


def variant(name: str) -> Variant:
    (only,) = make_plan(form(name)).variants
    return only


Q, K, V = (
    ("const float*", "q_scale", None),
    ("const float*", "k_scale", None),
    ("const float*", "v_scale", None),
)


def stride(name: str, axis: int | None) -> tuple[str, str, int | None]:
    return ("i64", f"{name}_stride", axis)


Q_TOKEN, K_TOKEN = stride("q_scale_token", 0), stride("k_scale_token", 0)
HEAD_TOKEN = [("float*", "lse", None), stride("lse_token", 1), stride("lse_head", 0)]
TOKEN_HEAD = [("float*", "lse", None), stride("lse_token", 0), stride("lse_head", 1)]

# Type, name and axis of what Params has of scales and log-sum-exp: pointers, then strides. A kernel reads
# q_scale row by row in every form, so its token stride is always there, and 0 (no axis) where rows share it.
PARAMS: dict[str, list[tuple[str, str, int | None]]] = {
    "f16": [],
    "f16_full_f32": [],
    "f16_bf16": [],
    "f16_lse": HEAD_TOKEN,
    "bf16_f16": [],
    "bf16_lse": HEAD_TOKEN,
    "bf16_lse_group": TOKEN_HEAD,
    "bf16_group": [],
    "fp8_none": [],
    "fp8_f16": [Q, K, Q_TOKEN, K_TOKEN],
    "fp8_q_only": [Q, Q_TOKEN],
    "fp8_k_only": [K, K_TOKEN],
    "fp8_v_only": [V, stride("v_scale_head", None)],
    "fp8_tensor": [
        *(Q, K, V),
        stride("q_scale_token", None),
        stride("k_scale_head", None),
        stride("v_scale_head", None),
    ],
    "fp8_head": [Q, V, stride("q_scale_token", None), stride("q_scale_head", 0), stride("v_scale_head", 0)],
    "fp8_token_head": [Q, K, Q_TOKEN, stride("q_scale_head", 1), K_TOKEN],
    "fp8_all_group": [Q, K, V, Q_TOKEN, stride("q_scale_head", 1), K_TOKEN, stride("v_scale_head", 0)],
    "fp8_lse": [Q, K, Q_TOKEN, K_TOKEN, *TOKEN_HEAD],
    "fp8_full_lse": [Q, K, Q_TOKEN, K_TOKEN, *HEAD_TOKEN],
    "fp8_tensor_lse": [
        *(Q, K, V),
        stride("q_scale_token", None),
        stride("k_scale_head", None),
        stride("v_scale_head", 0),
        *TOKEN_HEAD,
    ],
}
OF_EVERY_CALL = [
    "out",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "out_token_stride",
    "out_head_stride",
    "batch",
    "heads",
]
OF_EVERY_CALL += ["query_tiles", "q_nope_head_step", "q_rope_head_step", "k_nope_head_step", "v_head_step"]


def test_every_form_is_judged_here() -> None:
    assert set(PARAMS) == set(FORMS) == set(SCALES)


@pytest.mark.parametrize("name", FORMS)
def test_params(name: str) -> None:
    params = variant(name).params
    assert [item.name for item in params[: len(OF_EVERY_CALL)]] == OF_EVERY_CALL
    assert params[-1].name == "scale_log2"
    found = [(item.ctype, item.name, item.axis) for item in params[len(OF_EVERY_CALL) : -1]]
    assert found == PARAMS[name]


@pytest.mark.parametrize("name", FORMS)
def test_every_stride_goes_along_an_axis_of_its_argument_or_is_said_to_be_0(name: str) -> None:
    plan = make_plan(form(name))
    axes = {argument.name: argument.axes for argument in plan.arguments}
    symbols = {"token": ("total_q", "total_k"), "head": ("heads", "kv_heads")}
    for item in plan.variants[0].params:
        if item.name.endswith("_stride"):
            argument, kind, _ = item.name.rsplit("_", 2)
            if item.axis is None:
                assert not set(axes[argument]) & set(symbols[kind])
                assert item.comment.startswith("0: one for all")
            else:
                assert axes[argument][item.axis] in symbols[kind]


# Whether q_full and k_full get a second arrival and shared memory has scales of rows, of columns.
SCALES = dict.fromkeys(FORMS, (False, False)) | {
    "fp8_f16": (True, True),
    "fp8_q_only": (True, False),
    "fp8_k_only": (False, True),
    "fp8_tensor": (True, False),  # k_scale goes into the factor of each row
    "fp8_head": (True, False),
    "fp8_token_head": (True, True),
    "fp8_all_group": (True, True),
    "fp8_lse": (True, True),
    "fp8_full_lse": (True, True),
    "fp8_tensor_lse": (True, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_arrivals_and_shared_memory_follow_from_what_is_scaled(name: str) -> None:
    plan, (rows, columns) = variant(name), SCALES[name]
    barriers = {item.name: item for item in plan.mbarriers}
    assert barriers["q_full"].arrivals == (2 if rows else 1)
    assert barriers["k_full"].arrivals == (2 if columns else 1)
    fields = {item.name: item for item in plan.smem.fields}
    assert ("q_scale_smem" in fields, "k_scale_smem" in fields) == (rows, columns)
    if rows:
        assert fields["q_scale_smem"].size_bytes == plan.launch.block_m * 4
    if columns:
        assert fields["k_scale_smem"].size_bytes == barriers["k_full"].stages * plan.launch.block_n * 4
    features = plan.features
    assert (features.scales_rows, features.scales_columns) == (rows, columns)
    assert features.carries_scales is (rows or columns)


@pytest.mark.parametrize("name", FORMS)
def test_features_are_those_of_the_form(name: str) -> None:
    spec, features = form(name), variant(name).features
    assert features.q_scale_per_head is (spec.scales.q in ("head", "token_head"))
    assert features.folds_k_scale is (spec.scales.k == "tensor")
    assert features.scales_output is (spec.scales.v != "none")
    assert features.groups_heads is (spec.heads.group > 1)
    assert features.writes_lse is (spec.softmax.lse != "none")
    assert features.f32_output is (spec.dtypes.out == "f32")
    assert features.mixed_qk is (spec.dtypes.qkv != spec.dtypes.rope_mma)
    assert features.transposes_v is (spec.dtypes.qkv == "e4m3")


@pytest.mark.parametrize("name", FORMS)
def test_constants_are_those_of_the_form(name: str) -> None:
    spec, plan = form(name), variant(name)
    literals = {item.name: item.literal for group in plan.constants for item in group.constants}
    assert literals.get("kGroup") == (str(spec.heads.group) if spec.heads.group > 1 else None)
    # ln 2 = 0.693147..., whose nearest fp32 number is 0x1.62e43p-1.
    factor = {"none": None, "natural": "0x1.62e4300000000p-1f", "log2": "0x1.0000000000000p+0f"}
    assert literals.get("kLsePerLog2") == factor[spec.softmax.lse]
    assert plan.p_rounding.dtype == spec.dtypes.qkv


@pytest.mark.parametrize("name", FORMS)
def test_arguments_have_the_types_and_axes_of_the_form(name: str) -> None:
    spec, plan = form(name), make_plan(form(name))
    found = {item.name: item for item in plan.arguments}
    assert {found[key].dtype for key in ("q_nope", "k_nope", "v")} == {spec.dtypes.qkv}
    assert {found[key].dtype for key in ("q_rope", "k_rope")} == {spec.dtypes.rope_gmem}
    assert found["out"].dtype == spec.dtypes.out
    assert found["k_nope"].axes[:2] == found["v"].axes[:2] == ("total_k", "kv_heads")
    for key, tokens, heads in (
        ("q", "total_q", "heads"),
        ("k", "total_k", "kv_heads"),
        ("v", "total_k", "kv_heads"),
    ):
        axes = {"tensor": ("1",), "head": (heads,), "token": (tokens,), "token_head": (tokens, heads)}
        scale = found.get(f"{key}_scale")
        assert (scale and scale.axes) == axes.get(getattr(spec.scales, key))
    layouts = {"head_token": ("heads", "total_q"), "token_head": ("total_q", "heads")}
    lse = found.get("lse")
    wanted = layouts[spec.softmax.lse_layout] if spec.softmax.lse != "none" else None
    assert (lse and (lse.dtype, lse.axes)) == (wanted and ("f32", wanted))


@pytest.mark.parametrize("name", FORMS)
def test_plans_are_values_and_sources_keep_the_house_style(name: str) -> None:
    plan = make_plan(form(name))
    assert Plan.from_json(plan.to_json()) == plan
    source = render(plan)
    assert [line for line in source.splitlines() if len(line) > MAX_COLUMNS] == []
    assert "\n\n\n" not in source


@pytest.mark.parametrize("qkv", ["bf16", "f16"])
@pytest.mark.parametrize("scale", ["q", "k", "v"])
@pytest.mark.parametrize("layout", ["tensor", "head", "token", "token_head"])
def test_16_bit_types_have_no_scales(qkv: str, scale: str, layout: str) -> None:
    data = form("f16").to_mapping() | {"dtypes": {"qkv": qkv}, "scales": {scale: layout}}
    with pytest.raises(SpecError, match=rf"scales.{scale} is {layout}, allowed with dtypes.qkv {qkv}: none"):
        Spec.from_mapping(data)


SHIPPED = sorted(path.parent.name for path in GENERATED.glob("*/plan.json"))


@pytest.mark.parametrize("name", FORMS)
def test_what_did_not_run_on_a_gpu_does_not_say_so(name: str) -> None:
    assert make_plan(form(name)).validated == ("ptxas", "emulator")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ran_on_a_gpu_says_so(name: str) -> None:
    spec = load_spec(GENERATED.parent / "specs" / f"{name}.yaml")
    assert make_plan(spec).validated == ("ptxas", "emulator", "hardware")


CHANGES: list[dict[str, Any]] = [
    {"dtypes": {"qkv": "e4m3", "rope_gmem": "f16"}},
    {"dtypes": {"qkv": "e4m3", "out": "f16"}},
    {"heads": {"q": "any", "group": 2}},
    {"heads": {"q": 128, "group": 1}},
    {"scales": {"q": "token_head", "k": "token", "rope": "prescaled"}},
    {"scales": {"q": "token", "k": "tensor", "rope": "prescaled"}},
    {"scales": {"q": "token", "k": "token", "v": "head", "rope": "prescaled"}},
    {"dtypes": {"qkv": "e4m3"}, "scales": {}},
    {"softmax": {"lse": "natural"}},
    {"softmax": {"lse": "log2"}},
    {"softmax": {"variant": "online"}},
    {"tile": {"block_n": 64}},
    {"tile": {"block_m": 128}},
    {"schedule": {"consumers": 2}},
    {"pipeline": {"kv_stages": 1}},
    {"accumulation": {"flush_blocks": 3}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_feature_that_did_not_run_on_a_gpu_counts(change: dict[str, Any]) -> None:
    data = load_spec(GENERATED.parent / "specs" / "dsv3_fp8_sm90.yaml").to_mapping()
    for section in change.keys() & {"dtypes", "scales"}:
        data.pop(section)
    assert make_plan(Spec.from_mapping({**data, **change})).validated == ("ptxas", "emulator")


def test_the_online_softmax_flushes_in_its_own_step_only() -> None:
    data = load_spec(GENERATED.parent / "specs" / "dsv3_fp8_sm90.yaml").to_mapping()
    plan = make_plan(Spec.from_mapping({**data, "softmax": {"variant": "online"}}))
    choice = next(item for item in plan.choices if item.field == "accumulation.flush_blocks")
    assert (choice.value, choice.rule) == ("1", "where the online softmax rescales O")
    assert "In every unmasked block the consumers flush O" in "\n".join(plan.variants[0].schedule)
    source = render(plan)
    assert "kFlushBlocks" not in source
    assert source.count("flush_output(") == 2  # its definition and the call of the softmax
    asked = {"softmax": {"variant": "online"}, "accumulation": {"flush_blocks": 12}}
    with pytest.raises(PlanError, match=r"accumulation.flush_blocks is 12, .* with the online softmax"):
        make_plan(Spec.from_mapping({**data, **asked}))


def test_what_the_architecture_does_not_change_is_left_alone() -> None:
    """Plans differ from the shipped ones in nothing but what their form asks for."""
    shipped = load_spec(GENERATED.parent / "specs" / "dsv3_fp8_sm90.yaml")
    lse = dict(shipped.to_mapping(), softmax={"lse": "natural"})
    (one,), (other,) = make_plan(shipped).variants, make_plan(Spec.from_mapping(lse)).variants
    assert one.smem == other.smem and one.mbarriers == other.mbarriers and one.roles == other.roles
    assert dataclasses.replace(one.features, writes_lse=True) == other.features
