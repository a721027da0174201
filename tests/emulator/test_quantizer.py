"""Generated quantisers under the emulator: bit for bit what `quantize` makes of NumPy arrays, no hazard."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.emulator.quantizer import EmulatedQuantization, EmulatedQuantizer
from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.quantize import quantize
from mla_codegen.render import render_quantizer
from mla_codegen.spec import Spec
from tests.emulator.small import KERNELS, aligned, run_small

BF16 = ml_dtypes.bfloat16
FORMS = ("none", "tensor", "head", "token", "token_head")
SPREAD_LOG2 = 12


def make_spec(**changes: Any) -> Spec:
    """A small e4m3 spec; `scales_q=...` changes one field."""
    spec: dict[str, Any] = {
        "name": "small",
        "arch": "sm_90a",
        "dtypes": {"qkv": "e4m3"},
        "dims": {"nope": 128, "rope": 64, "v": 128},
        "heads": {"q": "any", "group": 1},
        "scales": {"q": "token", "k": "token", "v": "none", "rope": "prescaled"},
        "layout": {"q": "ragged", "kv": "ragged", "v": "rows"},
    }
    for name, value in changes.items():
        section, _, field = name.partition("_")
        spec[section][field] = value
    scaled = {spec["scales"][name] for name in ("q", "k")} != {"none"}
    if not (scaled and spec["dims"]["rope"]):
        del spec["scales"]["rope"]
    return Spec.from_mapping(spec)


@functools.cache
def emulated(spec: Spec) -> EmulatedQuantizer:
    plan = plan_quantizer(spec)
    assert plan is not None
    return EmulatedQuantizer(plan, render_quantizer(plan))


def inputs_of(
    spec: Spec, *, q_tokens: int, lens: tuple[int, ...], heads: int, dtype: Any = BF16, behind: int = 0
) -> dict[str, np.ndarray]:
    """True q, kv and k_rope of very different sizes, with zeros of either sign, zero rows and large rope.

    Dense layouts take as many sequences as `lens` has, all of the first length.
    """
    rng = np.random.default_rng(heads + q_tokens)
    dims, kv_heads = spec.dims, heads // spec.heads.group
    dense_q, dense_kv = spec.layout.q == "dense", spec.layout.kv == "dense"

    def tokens(count: int, *shape: int) -> np.ndarray:
        spread = np.exp2(rng.uniform(-SPREAD_LOG2, SPREAD_LOG2, (count, *[1] * len(shape))))
        values = rng.standard_normal((count, *shape)) * spread
        values[rng.random(values.shape) < 0.05] = -0.0
        return values.astype(np.float32)

    total_k = sum(lens) + behind
    q = tokens(q_tokens * (len(lens) if dense_q else 1), heads, dims.nope + dims.rope)
    kv = tokens(lens[0] * len(lens) if dense_kv else total_k, kv_heads, dims.nope + dims.v)
    k_rope = tokens(kv.shape[0], dims.rope)
    q[-1, :, : dims.nope] = 0
    kv[0] = 0
    if q.shape[0] > 2:
        q[1] = 0
        q[2, 0, dims.nope :] *= 2.0**8
    k_rope[-1] *= 2.0**8
    arrays = {"q": q, "kv": kv, **({"k_rope": k_rope} if dims.rope else {})}
    batch = len(lens)
    shaped = {}
    for name, array in arrays.items():
        dense = dense_q if name == "q" else dense_kv
        array = array.reshape(batch, -1, *array.shape[1:]) if dense else array
        shaped[name] = aligned(np.clip(array, -60000, 60000).astype(dtype))
    return shaped


def lengths_of(spec: Spec, inputs: dict[str, np.ndarray], lens: tuple[int, ...]) -> dict[str, np.ndarray]:
    lengths = {}
    if spec.layout.q == "ragged":
        lengths["cu_seqlens_q"] = np.array(
            [0, inputs["q"].shape[0], *[inputs["q"].shape[0]] * (len(lens) - 1)]
        )
    if spec.layout.kv == "ragged":
        lengths["cu_seqlens_k"] = np.cumsum([0, *lens])
    return {name: value.astype(np.int32) for name, value in lengths.items()}


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def assert_twins(
    spec: Spec, inputs: dict[str, np.ndarray], lens: tuple[int, ...], *, seed: int = 0, policy: int = 2
) -> EmulatedQuantization:
    """The emulated kernels give the very bits of `quantize`, write everything once and meet no hazard."""
    lengths = lengths_of(spec, inputs, lens)
    expected = quantize(spec, inputs["q"], inputs["kv"], inputs.get("k_rope"), **lengths)
    cu = lengths.get("cu_seqlens_k")
    result = emulated(spec).run(inputs, cu_seqlens_k=cu, seed=seed, policy=policy, workers=2)
    assert [hazard.text for hazard in result.hazards] == []
    for name, found in result.outputs.items():
        wanted = expected[name]
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
        differing = np.argwhere(bits(found).reshape(found.size, -1) != bits(wanted).reshape(wanted.size, -1))
        assert not len(differing), (
            f"{name}: {len(differing)} bytes differ, the first of element "
            f"{np.unravel_index(differing[0][0], found.shape)}: "
            f"{found.flat[differing[0][0]]} instead of {wanted.flat[differing[0][0]]}"
        )
    assert set(result.unwritten.values()) == {0}
    return result


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_scales(form: str) -> None:
    k_form = "token" if form in ("head", "token_head") else form
    spec = make_spec(scales_q=form, scales_k=k_form, scales_v=form)
    assert_twins(spec, inputs_of(spec, q_tokens=3, lens=(5,), heads=3), (5,))


@pytest.mark.parametrize("rope", ["raw", "prescaled"])
@pytest.mark.parametrize("rope_dtype", ["bf16", "f16", "e4m3"])
@pytest.mark.parametrize("form", ["tensor", "token", "none"])
def test_rope_of_all_dtypes(form: str, rope_dtype: str, rope: str) -> None:
    spec = make_spec(
        scales_q="token_head",
        scales_k=form,
        scales_rope=rope,
        dtypes_rope_gmem=rope_dtype,
        dtypes_rope_mma=rope_dtype,
    )
    assert_twins(spec, inputs_of(spec, q_tokens=4, lens=(3, 2), heads=2), (3, 2))


@pytest.mark.parametrize("form", ["tensor", "head", "token"])
def test_large_rope_raises_scales(form: str) -> None:
    """Rope of e4m3 many times as large as nope: the scale is the rope's."""
    k_form = "tensor" if form == "tensor" else "token"
    rope = {"dtypes_rope_gmem": "e4m3", "dtypes_rope_mma": "e4m3"}
    spec = make_spec(scales_q=form, scales_k=k_form, scales_v="head", **rope)
    inputs = inputs_of(spec, q_tokens=3, lens=(4,), heads=2)
    inputs["q"][..., 128:] = inputs["q"][..., 128:] * 2.0**20
    inputs["k_rope"][...] = inputs["k_rope"] * 2.0**20
    result = assert_twins(spec, inputs, (4,))
    for name, tensor in (("q_scale", inputs["q"]), ("k_scale", inputs["kv"])):
        largest = np.abs(tensor[..., :128].astype(np.float32)).max() / 448
        assert (result.outputs[name] > 100 * largest).any()


@pytest.mark.parametrize("form", ["head", "token_head"])
def test_scales_of_k_per_head_with_raw_rope(form: str) -> None:
    spec = make_spec(scales_q=form, scales_k=form, scales_v="tensor", scales_rope="raw", heads_group=2)
    assert_twins(spec, inputs_of(spec, q_tokens=2, lens=(3, 3), heads=4), (3, 3))


@pytest.mark.parametrize("tiny", [2.0**-133, 2.0**-120, 2.0**-70, 2.0**100])
def test_numbers_at_the_ends_of_the_range(tiny: float) -> None:
    """Scales at their floor, just lifted, and larger than the reciprocal of any subnormal."""
    spec = make_spec(scales_q="token_head", scales_v="token")
    inputs = inputs_of(spec, q_tokens=3, lens=(4,), heads=2)
    for name, array in inputs.items():
        with np.errstate(under="ignore"):
            inputs[name] = aligned((array.astype(np.float64) * tiny).astype(np.float32).astype(BF16))
    assert_twins(spec, inputs, (4,))


@pytest.mark.parametrize("form", ["token", "tensor"])
def test_rope_far_smaller_than_nope(form: str) -> None:
    """Quotients of every size down to the smallest bf16, beside some of usual size."""
    spec = make_spec(scales_q=form, scales_k=form)
    inputs = inputs_of(spec, q_tokens=5, lens=(6,), heads=2)
    for rope in (inputs["q"][..., 128:], inputs["k_rope"]):
        shrunk = np.exp2(np.random.default_rng(7).integers(-135, -20, rope.shape))
        rope[...] = (rope.astype(np.float64) * np.where(shrunk < 2.0**-100, shrunk, 1.0)).astype(BF16)
    result = assert_twins(spec, inputs, (6,))
    small = np.abs(result.outputs["q_rope"].astype(np.float64))
    assert ((small > 0) & (small < 2.0**-110)).any()


@pytest.mark.parametrize("significand", [1.0, 1.5, 1.9921875])
def test_quotients_next_to_ties(significand: float) -> None:
    """Scales whose significand is all ones, and their neighbours: where a reciprocal is off the most."""
    spec = make_spec(scales_q="token_head", scales_v="token_head", dims_nope=128, dims_v=128)
    inputs = inputs_of(spec, q_tokens=64, lens=(64,), heads=2)
    codes = np.arange(0x3F80, 0x4000, dtype=np.uint16).view(BF16).astype(np.float32)
    rows = significand * codes[:64, None, None] * np.exp2(np.arange(-15, 0).repeat(9)[:128])
    for name in ("q", "kv"):
        inputs[name][..., :128] = rows.astype(BF16)
    inputs["q"][..., 0] = inputs["kv"][..., 0] = codes[64:, None].astype(BF16)
    assert_twins(spec, inputs, (64,))


TIES = {
    "rope": [(-55, 0x100, [(-128, 0x28), (-128, 0x48), (-126, 0x88), (-124, 0x68)])],
    "nope": [
        (-117, 0x188, [(-125, 0x0A)]),
        (-116, 0x180, [(-132, 0x80)]),
        (-113, 0x130, [(-129, 0x30)]),
        (-113, 0x170, [(-129, 0x70)]),
    ],
}
"""Exponent and significand in 256ths of a largest element, and of elements whose quotient is next to a tie:
pairs of bf16 numbers where the residual is too small for a float32, and that decides."""


@pytest.mark.parametrize("part", sorted(TIES))
def test_quotients_whose_residual_is_too_small(part: str) -> None:
    spec = make_spec(scales_q="token_head", scales_v="token_head")
    inputs = inputs_of(spec, q_tokens=2, lens=(2,), heads=2)
    for exponent, significand, elements in TIES[part]:
        for array in inputs.values():
            array[...] = 0
        row = inputs["q"][0, 1]
        row[128:] = np.ldexp(1.0, exponent - 5)
        row[5] = np.ldexp(significand / 256, exponent)
        for index, (low, fraction) in enumerate(elements):
            place = 128 + 2 * index if part == "rope" else 9 + index
            row[place] = np.ldexp(1 + fraction / 256, low)
        result = assert_twins(spec, inputs, (2,))
        assert np.count_nonzero(result.outputs["q_rope" if part == "rope" else "q_nope"])


def test_f16_inputs() -> None:
    spec = make_spec(scales_v="token_head", dtypes_rope_gmem="f16", dtypes_rope_mma="f16")
    assert_twins(spec, inputs_of(spec, q_tokens=3, lens=(5,), heads=3, dtype=np.float16), (5,))


def test_f16_rope_saturates() -> None:
    spec = make_spec(scales_rope="raw", dtypes_rope_gmem="f16", dtypes_rope_mma="f16")
    inputs = inputs_of(spec, q_tokens=2, lens=(3,), heads=2)
    inputs["k_rope"][0, :3] = (3e38, -1e5, 65520)
    assert_twins(spec, inputs, (3,))


@pytest.mark.parametrize(
    ("nope", "rope", "v"), [(192, 64, 256), (16, 16, 16), (48, 16, 80), (64, 0, 64), (256, 128, 240)]
)
def test_other_dimensions(nope: int, rope: int, v: int) -> None:
    for layout in ("rows", "transposed"):
        spec = make_spec(dims_nope=nope, dims_rope=rope, dims_v=v, scales_v="token", layout_v=layout)
        assert_twins(spec, inputs_of(spec, q_tokens=3, lens=(4, 1), heads=2), (4, 1))


@pytest.mark.parametrize("form", ["token", "head", "token_head"])
def test_more_heads_than_a_cta_keeps(form: str) -> None:
    """200 heads: rows are read twice where a token has one scale."""
    spec = make_spec(scales_q=form, scales_k="token", scales_v=form, dims_nope=32, dims_rope=32, dims_v=32)
    assert_twins(spec, inputs_of(spec, q_tokens=2, lens=(2,), heads=600), (2,))


@pytest.mark.parametrize("heads", [1, 7, 100, 128])
def test_several_tokens_in_a_cta(heads: int) -> None:
    """One head: 128 tokens in a CTA, the last one with fewer."""
    spec = make_spec(dims_nope=32, dims_rope=16, dims_v=16, scales_v="token")
    tokens = 2 * (128 // heads) + 3
    assert_twins(spec, inputs_of(spec, q_tokens=tokens, lens=(tokens + 1,), heads=heads), (tokens + 1,))


@pytest.mark.parametrize("lens", [(5, 17, 17), (16, 32), (1, 15, 0, 31, 33), (0, 3, 0), (130,)])
@pytest.mark.parametrize("form", ["none", "token"])
def test_transposed_v_of_ragged_keys(form: str, lens: tuple[int, ...]) -> None:
    spec = make_spec(scales_v=form, layout_v="transposed", dims_nope=32, dims_rope=16)
    assert_twins(spec, inputs_of(spec, q_tokens=3, lens=lens, heads=2), lens)


@pytest.mark.parametrize("form", FORMS)
def test_transposed_v_with_tokens_behind_the_last_sequence(form: str) -> None:
    spec = make_spec(scales_v=form, layout_v="transposed", heads_group=2, dims_nope=32, dims_rope=16)
    assert_twins(spec, inputs_of(spec, q_tokens=3, lens=(20, 3), heads=6, behind=19), (20, 3))


@pytest.mark.parametrize("form", ["tensor", "head", "token", "token_head"])
def test_a_nan_shows_in_its_group(form: str) -> None:
    spec = make_spec(scales_q=form, scales_v=form)
    inputs = inputs_of(spec, q_tokens=3, lens=(4,), heads=2)
    inputs["q"][1, 1, 7] = inputs["kv"][2, 0, 130] = np.nan
    outputs = emulated(spec).run(inputs, cu_seqlens_k=np.array([0, 4], np.int32)).outputs
    group = {"tensor": (), "head": (slice(None), 1), "token": (1,), "token_head": (1, 1)}[form]
    v_group = {"tensor": (), "head": (slice(None), 0), "token": (2,), "token_head": (2, 0)}[form]
    for name, where in (("q_nope", group), ("v", v_group)):
        is_nan = np.isnan(outputs[name].astype(np.float32))
        wanted = np.zeros_like(is_nan)
        wanted[where] = True
        np.testing.assert_array_equal(is_nan, wanted)


@pytest.mark.parametrize("v_layout", ["rows", "transposed"])
@pytest.mark.parametrize("form", FORMS)
def test_dense_layouts(form: str, v_layout: str) -> None:
    k_form = "token" if form in ("head", "token_head") else form
    spec = make_spec(
        scales_q=form, scales_k=k_form, scales_v=form, layout_q="dense", layout_kv="dense", layout_v=v_layout
    )
    assert_twins(spec, inputs_of(spec, q_tokens=3, lens=(18, 18), heads=2), (18, 18))


@pytest.mark.parametrize("layout", ["ragged", "dense"])
def test_strides_of_the_inputs(layout: str) -> None:
    """Every second token, heads that lie apart, rope inside a longer row."""
    spec = make_spec(layout_q=layout, layout_kv=layout, scales_q="token_head")
    lens = (4, 4)
    inputs = inputs_of(spec, q_tokens=4, lens=lens, heads=2)
    views = {}
    for name, array in inputs.items():
        padding = [(0, 0), *[(1, 2)] * (array.ndim - 2), (8, 16)]
        if layout == "ragged":
            padding[0] = (0, array.shape[0])
        padded = aligned(np.pad(array.astype(np.float32), padding).astype(BF16))
        cut = tuple(slice(low, low + extent) for (low, _), extent in zip(padding, array.shape, strict=True))
        views[name] = padded[cut]
        assert not views[name].flags.c_contiguous and (views[name] == array).all()
    assert_twins(spec, views, lens)


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_results_do_not_depend_on_the_schedule(policy: int) -> None:
    spec = make_spec(scales_q="head", scales_v="tensor", layout_v="transposed", dims_nope=32, dims_rope=16)
    assert_twins(
        spec, inputs_of(spec, q_tokens=9, lens=(40,), heads=5), (40,), seed=policy + 3, policy=policy
    )


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        (
            "  cta_sync();\n#pragma unroll 1\n  for (u32 index = warp;",
            "#pragma unroll 1\n  for (u32 index = warp;",
            "race",
        ),
        (
            "  }\n  cta_sync();\n#pragma unroll 1\n  for (u32 first",
            "  }\n#pragma unroll 1\n  for (u32 first",
            "race",
        ),
        ("  cta_sync();\n#pragma unroll 4", "#pragma unroll 4", "race"),
    ],
)
def test_a_missing_barrier_is_found(right: str, wrong: str, kind: str) -> None:
    spec = make_spec(layout_v="transposed")
    plan = plan_quantizer(spec)
    assert plan is not None
    source = render_quantizer(plan)
    assert source.count(right) >= 1
    inputs = inputs_of(spec, q_tokens=2, lens=(5,), heads=3)
    kernel = EmulatedQuantizer(plan, source.replace(right, wrong))
    result = kernel.run(inputs, cu_seqlens_k=np.array([0, 5], np.int32), policy=2)
    assert kind in {hazard.kind for hazard in result.hazards}


@pytest.mark.parametrize(
    ("is_f16", "is_rope", "is_raised"), [(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0)]
)
def test_every_quotient(is_f16: int, is_rope: int, is_raised: int) -> None:
    """All largest elements with all elements of an input dtype, as e4m3 or as rope in bf16."""
    plan = plan_quantizer(make_spec())
    assert plan is not None
    text = (KERNELS / "quotients.cu").read_text().replace("QUANTIZER", f"{plan.name}_quantize")
    counts = np.zeros(64, np.uint32)
    result = run_small(
        "quotients",
        render_quantizer(plan) + text,
        arrays={"different": counts},
        outputs=("different",),
        numbers={"is_f16": is_f16, "is_rope": is_rope, "is_raised": is_raised},
        threads=32,
    )
    assert not result.hazards
    assert counts[32:].sum(dtype=np.uint64) > 8e7
    assert counts[:32].tolist() == [0] * 32
