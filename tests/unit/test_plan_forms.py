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
from tests.forms import FORMS, TYPES_AND_SCALES, form
from tests.pairs import pairwise_specs

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

# Type, name and axis of what Params has of scales and log-sum-exp: pointers, then the strides that are read.
# A kernel reads q_scale row by row in every form, so its token stride is always there, and 0 (no axis) where
# rows share it.
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
    "fp8_v_only": [V],
    "fp8_tensor": [
        *(Q, K, V),
        stride("q_scale_token", None),
    ],
    "fp8_head": [Q, V, stride("q_scale_token", None), stride("q_scale_head", 0), stride("v_scale_head", 0)],
    "fp8_token_head": [Q, K, Q_TOKEN, stride("q_scale_head", 1), K_TOKEN],
    "fp8_all_group": [Q, K, V, Q_TOKEN, stride("q_scale_head", 1), K_TOKEN, stride("v_scale_head", 0)],
    "fp8_lse": [Q, K, Q_TOKEN, K_TOKEN, *TOKEN_HEAD],
    "fp8_full_lse": [Q, K, Q_TOKEN, K_TOKEN, *HEAD_TOKEN],
    "fp8_tensor_lse": [
        *(Q, K, V),
        stride("q_scale_token", None),
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
OF_EVERY_CALL += ["query_tiles", "run_heads", "head_runs"]
OF_EVERY_CALL += ["q_nope_head_step", "q_rope_head_step", "k_nope_head_step", "v_head_step"]


def test_every_form_is_judged_here() -> None:
    assert set(PARAMS) == set(TYPES_AND_SCALES)
    assert set(SCALES) == set(FORMS)


@pytest.mark.parametrize("name", TYPES_AND_SCALES)
def test_params(name: str) -> None:
    params = variant(name).params
    assert [item.name for item in params[: len(OF_EVERY_CALL)]] == OF_EVERY_CALL
    assert params[-1].name == "scale_log2"
    found = [(item.ctype, item.name, item.axis) for item in params[len(OF_EVERY_CALL) : -1]]
    assert found == PARAMS[name]


# All members of Params after the addresses of outputs and lengths, with their axes.
WHOLE_PARAMS: dict[str, list[tuple[str, int | None]]] = {
    # out, q [batch, q_len, heads, ...], k [batch, kv_len, heads, ...]: axes 1, 2 and 0; k_rope has no heads.
    "bf16_dense": [
        *(("out", None), ("out_token_stride", 1), ("out_head_stride", 2), ("out_batch_stride", 0)),
        *(("batch", None), ("heads", None), ("q_len", None), ("kv_len", None), ("query_tiles", None)),
        *(("run_heads", None), ("head_runs", None)),
        *(("q_nope_head_step", 2), ("q_nope_batch_step", 0), ("q_rope_head_step", 2)),
        *(("q_rope_batch_step", 0), ("k_nope_head_step", 2), ("k_nope_batch_step", 0)),
        *(("k_rope_batch_step", 0), ("v_head_step", 2), ("v_batch_step", 0)),
        # [batch, heads, q_len]
        *(("lse", None), ("lse_token_stride", 2), ("lse_head_stride", 1), ("lse_batch_stride", 0)),
    ],
    "bf16_dense_queries": [
        *(("out", None), ("cu_seqlens_k", None)),
        *(("out_token_stride", 1), ("out_head_stride", 2), ("out_batch_stride", 0)),
        *(("batch", None), ("heads", None), ("q_len", None), ("query_tiles", None)),
        *(("run_heads", None), ("head_runs", None)),
        *(("q_nope_head_step", 2), ("q_nope_batch_step", 0), ("q_rope_head_step", 2)),
        *(("q_rope_batch_step", 0), ("k_nope_head_step", 1), ("v_head_step", 1)),
    ],
    "fp8_dense_keys": [
        *(("out", None), ("cu_seqlens_q", None), ("out_token_stride", 0), ("out_head_stride", 1)),
        *(("batch", None), ("heads", None), ("kv_len", None), ("query_tiles", None)),
        *(("run_heads", None), ("head_runs", None)),
        *(("q_nope_head_step", 1), ("q_rope_head_step", 1), ("k_nope_head_step", 2)),
        *(("k_nope_batch_step", 0), ("k_rope_batch_step", 0), ("v_head_step", 2), ("v_batch_step", 0)),
        *(("q_scale", None), ("k_scale", None), ("v_scale", None)),
        # q [total_q]; k [batch, kv_len, heads]; v [batch, kv_len]
        *(("q_scale_token_stride", 0), ("k_scale_token_stride", 1), ("k_scale_head_stride", 2)),
        *(("k_scale_batch_stride", 0), ("v_scale_token_stride", 1), ("v_scale_batch_stride", 0)),
        # [heads, total_q]
        *(("lse", None), ("lse_token_stride", 1), ("lse_head_stride", 0)),
    ],
    "transposed_dense": [
        *(("out", None), ("out_token_stride", 1), ("out_head_stride", 2), ("out_batch_stride", 0)),
        *(("batch", None), ("heads", None), ("q_len", None), ("kv_len", None), ("query_tiles", None)),
        *(("run_heads", None), ("head_runs", None)),
        *(("q_nope_head_step", 2), ("q_nope_batch_step", 0), ("q_rope_head_step", 2)),
        *(("q_rope_batch_step", 0), ("k_nope_head_step", 2), ("k_nope_batch_step", 0)),
        # v [batch, heads, v, columns]
        *(("k_rope_batch_step", 0), ("v_head_step", 1), ("v_batch_step", 0)),
        *(("q_scale", None), ("k_scale", None), ("v_scale", None)),
        *(("q_scale_token_stride", 1), ("q_scale_head_stride", 2), ("q_scale_batch_stride", 0)),
        *(("k_scale_token_stride", 1), ("k_scale_batch_stride", 0)),
        *(("v_scale_token_stride", 1), ("v_scale_head_stride", 2), ("v_scale_batch_stride", 0)),
    ],
    # v [heads, v, columns]; no q_rope, no k_rope
    "fp8_48_0_112": [
        *(("out", None), ("cu_seqlens_q", None), ("cu_seqlens_k", None)),
        *(("out_token_stride", 0), ("out_head_stride", 1)),
        *(("batch", None), ("heads", None), ("query_tiles", None)),
        *(("run_heads", None), ("head_runs", None)),
        *(("q_nope_head_step", 1), ("k_nope_head_step", 1), ("v_head_step", 0)),
        *(("v_scale", None), ("v_scale_head_stride", 0)),
    ],
}


@pytest.mark.parametrize("name", WHOLE_PARAMS)
def test_params_of_dense_mixed_and_transposed_layouts(name: str) -> None:
    found = [(item.name, item.axis) for item in variant(name).params]
    assert found == [*WHOLE_PARAMS[name], ("scale_log2", None)]


@pytest.mark.parametrize("name", FORMS)
def test_every_stride_goes_along_an_axis_of_its_argument_or_is_said_to_be_0(name: str) -> None:
    plan = make_plan(form(name))
    axes = {argument.name: argument.axes for argument in plan.arguments}
    symbols = {
        "token": ("total_q", "total_k", "q_len", "kv_len"),
        "head": ("heads", "kv_heads"),
        "batch": ("batch",),
    }
    for item in plan.variants[0].params:
        if item.name.endswith("_stride"):
            argument, kind, _ = item.name.rsplit("_", 2)
            if item.axis is None:
                assert not set(axes[argument]) & set(symbols[kind])
                assert item.comment.startswith("0: one for all")
            else:
                assert axes[argument][item.axis] in symbols[kind]


# What has scales: rows of S, columns of S, P. Rows bring q_full a second arrival, columns and P bring k_full
# one.
SCALES = dict.fromkeys(FORMS, (False, False, False)) | {
    "fp8_f16": (True, True, False),
    "fp8_q_only": (True, False, False),
    "fp8_k_only": (False, True, False),
    "fp8_tensor": (True, False, False),  # k_scale goes into the factor of each row
    "fp8_head": (True, False, False),
    "fp8_token_head": (True, True, False),
    "fp8_all_group": (True, True, False),
    "fp8_lse": (True, True, False),
    "fp8_full_lse": (True, True, False),
    "fp8_tensor_lse": (True, False, False),
    "raw_k_none": (True, False, False),
    "raw_k_tensor": (True, False, False),
    "raw_k_head": (True, False, False),
    "raw_k_token": (False, True, False),
    "raw_k_token_head": (True, True, False),
    "e4m3_rope": (True, True, False),
    "e4m3_rope_raw": (True, True, False),
    "fp8_no_rope": (True, True, False),
    "v_token": (True, True, True),
    "v_token_only": (False, False, True),
    "v_token_head": (True, False, True),
    "v_token_online": (True, True, True),
    "v_token_head_raw": (True, True, True),
    "v_token_raw_online": (True, False, True),
    "transposed": (True, True, False),
    "transposed_dense": (True, True, True),
    "transposed_online": (True, True, True),
    "fp8_dense": (True, True, False),
    "fp8_dense_keys": (True, True, True),
    "glm_fp8": (True, True, False),
    "fp8_80_48_80": (True, True, False),
    "fp8_176_16_48": (True, True, True),
    "fp8_16_16_16": (True, True, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_arrivals_and_shared_memory_follow_from_what_is_scaled(name: str) -> None:
    plan, (rows, columns, p) = variant(name), SCALES[name]
    barriers = {item.name: item for item in plan.mbarriers}
    assert barriers["q_full"].arrivals == (2 if rows else 1)
    assert barriers["k_full"].arrivals == (2 if columns or p else 1)
    fields = {item.name: item.size_bytes for item in plan.smem.fields if item.name.endswith("_scale_smem")}
    stages = barriers["k_full"].stages
    expected = {
        **({"q_scale_smem": plan.launch.block_m * 4} if rows else {}),
        **({"k_scale_smem": stages * plan.launch.block_n * 4} if columns else {}),
        **({"v_scale_smem": stages * plan.launch.block_n * 8} if p else {}),  # logarithms and reciprocals
    }
    assert fields == expected
    features = plan.features
    assert (features.scales_rows, features.scales_columns, features.scales_p) == (rows, columns, p)
    assert features.scales_keys is (columns or p)
    assert features.carries_scales is (rows or columns or p)


@pytest.mark.parametrize("name", FORMS)
def test_features_are_those_of_the_form(name: str) -> None:
    spec, features = form(name), variant(name).features
    q_dense, kv_dense = spec.layout.q == "dense", spec.layout.kv == "dense"
    transposed = spec.layout.v == "transposed"
    assert features.folds_k_scale is (spec.scales.k in ("tensor", "head"))
    assert features.scales_output is (spec.scales.v in ("tensor", "head"))
    assert features.groups_heads is (spec.heads.group > 1)
    assert features.writes_lse is (spec.softmax.lse != "none")
    assert features.f32_output is (spec.dtypes.out == "f32")
    assert features.has_rope is (spec.dims.rope > 0)
    assert features.raw_rope is (spec.dims.rope > 0 and spec.scales.rope == "raw")
    assert features.mixed_qk is (spec.dims.rope > 0 and spec.dtypes.qkv != spec.dtypes.rope_mma)
    assert features.transposes_v is (spec.dtypes.qkv == "e4m3" and not transposed)
    assert features.clears_v_tail is not features.transposes_v
    assert (features.q_dense, features.kv_dense) == (q_dense, kv_dense)
    assert features.counts_sequences is (q_dense or kv_dense or transposed)
    assert features.half_output_group is (spec.dims.v % 32 == 16)
    assert features.whole_output_groups is (spec.dims.v > 16)


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
    q = ("batch", "q_len") if spec.layout.q == "dense" else ("total_q",)
    k = ("batch", "kv_len") if spec.layout.kv == "dense" else ("total_k",)
    nope, rope, ov = (str(spec.dims.nope), str(spec.dims.rope), str(spec.dims.v))
    assert {found[key].dtype for key in ("q_nope", "k_nope", "v")} == {spec.dtypes.qkv}
    assert found["q_nope"].axes == (*q, "heads", nope)
    assert found["k_nope"].axes == (*k, "kv_heads", nope)
    if spec.layout.v == "rows":
        assert found["v"].axes == (*k, "kv_heads", ov)
    else:
        assert found["v"].axes == (*k[:-1], "kv_heads", ov, "v_columns")
    if spec.dims.rope:
        assert {found[key].dtype for key in ("q_rope", "k_rope")} == {spec.dtypes.rope_gmem}
        assert (found["q_rope"].axes, found["k_rope"].axes) == ((*q, "heads", rope), (*k, "1", rope))
    else:
        assert not {"q_rope", "k_rope"} & found.keys()
    assert found["out"].dtype == spec.dtypes.out
    assert found["out"].axes == (*q, "heads", ov)
    assert ("cu_seqlens_q" in found, "cu_seqlens_k" in found) == (len(q) == 1, len(k) == 1)
    for key, tokens, heads in (("q", q, "heads"), ("k", k, "kv_heads"), ("v", k, "kv_heads")):
        axes = {"tensor": ("1",), "head": (heads,), "token": tokens, "token_head": (*tokens, heads)}
        scale = found.get(f"{key}_scale")
        assert (scale and scale.axes) == axes.get(getattr(spec.scales, key))
    layouts = {"head_token": (*q[:-1], "heads", q[-1]), "token_head": (*q, "heads")}
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


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ran_on_a_gpu_says_so(name: str) -> None:
    spec = load_spec(GENERATED.parent / "specs" / f"{name}.yaml")
    ran = ("hardware",) if spec.arch == "sm_90a" else ()
    assert make_plan(spec).validated == ("ptxas", "emulator", *ran)


@pytest.mark.parametrize("name", pairwise_specs())
def test_the_specs_of_every_pair_are_what_ran(name: str) -> None:
    assert make_plan(pairwise_specs()[name]).validated == ("ptxas", "emulator", "hardware")


CHANGES: list[dict[str, Any]] = [
    {"dims": {"nope": 112, "rope": 64, "v": 128}},
    {"dims": {"nope": 128, "rope": 48, "v": 128}},
    {"dims": {"nope": 128, "rope": 64, "v": 112}},
    {"dims": {"nope": 128, "rope": 0, "v": 128}},
    {"tile": {"block_n": 64}},
    {"tile": {"block_m": 128}},
    {"schedule": {"consumers": 2}},
    {"pipeline": {"kv_stages": 1}},
    {"accumulation": {"flush_blocks": 3}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_dims_and_tiles_that_did_not_run_on_a_gpu_count(change: dict[str, Any]) -> None:
    data = load_spec(GENERATED.parent / "specs" / "dsv3_fp8_sm90.yaml").to_mapping()
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
