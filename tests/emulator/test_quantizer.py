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
from tests.emulator.small import aligned

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
        lengths["cu_seqlens_q"] = np.array([0, inputs["q"].shape[0], *[inputs["q"].shape[0]] * (len(lens) - 1)])
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
