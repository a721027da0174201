"""Random problems: reproducible, shaped as asked, valid for quantiser and reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.problems import DATA_KINDS, random_inputs, random_problem
from mla_codegen.reference import reference

NOPE, ROPE, V = 32, 16, 48


def make_spec(layout: str = "ragged", heads: Any = "any", group: int = 1) -> dict[str, Any]:
    return {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "bf16"},
        "dims": {"nope": NOPE, "rope": ROPE, "v": V},
        "heads": {"q": heads, "group": group},
        "scales": {"q": "token", "k": "token", "v": "token", "rope": "prescaled"},
        "mask": "causal",
        "layout": {"q": layout, "kv": layout},
    }


@pytest.mark.parametrize("data", DATA_KINDS)
def test_problem_runs_through_the_reference(data: str) -> None:
    spec = make_spec()
    problem = random_problem(spec, q_lens=[5, 0, 9], kv_lens=[7, 4, 0], data=data, seed=2)
    out, lse = reference(spec, **problem)
    assert out.shape == (14, 2, V) and np.isfinite(out).all()
    assert np.isfinite(lse[:, :5]).all() and np.isneginf(lse[:, 5:]).all()


def test_same_seed_same_bits() -> None:
    first, again, other = (
        random_problem(make_spec(), q_lens=8, kv_lens=8, data="outlier", seed=seed) for seed in (1, 1, 2)
    )
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert (first["v"].view(np.uint8) != other["v"].view(np.uint8)).any()


@pytest.mark.parametrize("data", DATA_KINDS)
def test_inputs_hold_bf16_values(data: str) -> None:
    inputs = random_inputs(make_spec(), q_lens=30, kv_lens=40, data=data)
    for name in ("q", "kv", "k_rope"):
        rounded = inputs[name].astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(rounded, inputs[name])
        assert inputs[name].dtype == np.float32


def test_shapes_and_lengths() -> None:
    inputs = random_inputs(make_spec(group=3), batch=2, q_lens=[3, 4], kv_lens=5)
    assert inputs["q"].shape == (7, 3, NOPE + ROPE)
    assert inputs["kv"].shape == (10, 1, NOPE + V)
    assert inputs["k_rope"].shape == (10, ROPE)
    np.testing.assert_array_equal(inputs["cu_seqlens_q"], [0, 3, 7])
    np.testing.assert_array_equal(inputs["cu_seqlens_k"], [0, 5, 10])
    dense = random_inputs(make_spec("dense", heads=4), batch=3, q_lens=2, kv_lens=6)
    assert dense["q"].shape == (3, 2, 4, NOPE + ROPE) and dense["k_rope"].shape == (3, 6, ROPE)
    assert "cu_seqlens_q" not in dense


def test_mean_data() -> None:
    v = random_inputs(make_spec(), q_lens=1, kv_lens=500, data="mean")["kv"][..., NOPE:]
    assert v.mean() == pytest.approx(1, abs=0.01) and v.std() == pytest.approx(0.25, abs=0.01)


def test_peaked_data_has_one_large_key_in_each_sequence() -> None:
    inputs = random_inputs(make_spec(), q_lens=1, kv_lens=[50, 0, 60], data="peaked")
    norms = np.linalg.norm(inputs["kv"][..., :NOPE], axis=(1, 2))
    for part in (norms[:50], norms[50:]):
        assert (part > 3 * np.median(part)).sum() == 1
    rope_norms = np.linalg.norm(inputs["k_rope"], axis=1)
    np.testing.assert_array_equal(
        np.flatnonzero(norms > 3 * np.median(norms)), np.flatnonzero(rope_norms > 12)
    )


def test_outlier_data_spreads_the_tokens() -> None:
    inputs = random_inputs(make_spec(), q_lens=500, kv_lens=500, data="outlier")
    for part in (inputs["q"][..., :NOPE], inputs["kv"][..., :NOPE], inputs["kv"][..., NOPE:]):
        largest = np.abs(part).max(axis=(1, 2))
        assert 2.0**14 < largest.max() / largest.min() < 2.0**18
    rope = np.abs(inputs["k_rope"]).max(axis=1)
    assert rope.max() / rope.min() < 2.0**4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "gauss"}, "'gauss' is not known, allowed are normal, mean, peaked, outlier"),
        ({"q_lens": [1, 2], "kv_lens": [1, 2, 3]}, r"q_lens is \[1, 2\], give one length or 3"),
        ({"kv_lens": -1}, "each 0 or more"),
        ({"heads": 3}, "heads is 3, the spec allows a multiple of 2"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_inputs(make_spec(group=2), **{"q_lens": 2, "kv_lens": 2, **changes})


def test_dense_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match=r"kv is dense but its lengths are \[2, 3\]"):
        random_inputs(make_spec("dense"), q_lens=2, kv_lens=[2, 3])
