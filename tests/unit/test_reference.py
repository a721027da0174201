"""Float64 attention against a naive loop over queries and keys, and the error measures."""

from __future__ import annotations

import itertools
import math
import sys
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.reference import contract_bound, measure, natural_lse, reference, row_indices

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
NOPE, ROPE, V = 32, 16, 48
FORMS = ("none", "tensor", "head", "token", "token_head")
Q_LENS, KV_LENS = (3, 0, 5, 2, 4), (6, 4, 2, 0, 4)


def make_spec(**changes: Any) -> dict[str, Any]:
    """A ragged causal e4m3 spec without scales; `scales_q=...` or `layout_v=...` change one field."""
    spec: dict[str, Any] = {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "bf16"},
        "dims": {"nope": NOPE, "rope": ROPE, "v": V},
        "heads": {"q": "any", "group": 1},
        "scales": {"q": "none", "k": "none", "v": "none", "rope": "raw", "rope_k": "none"},
        "mask": "causal",
        "layout": {"q": "ragged", "kv": "ragged", "v": "rows"},
        "softmax": {"lse": "natural", "lse_layout": "head_token"},
    }
    for name, value in changes.items():
        section, _, field = name.partition("_")
        if field:
            spec[section][field] = value
        else:
            spec[section] = value
    return spec


def make_scale(rng: np.random.Generator, form: str, tokens: int, heads: int) -> np.ndarray | None:
    shapes = {"tensor": (1,), "head": (heads,), "token": (tokens,), "token_head": (tokens, heads)}
    if form == "none":
        return None
    return np.exp2(rng.uniform(-2, 1, shapes[form])).astype(np.float32)


def make_arguments(
    spec: dict[str, Any], q_lens: tuple[int, ...] = Q_LENS, kv_lens: tuple[int, ...] = KV_LENS, heads: int = 4
) -> dict[str, Any]:
    """Random stored tensors and scales of a ragged problem."""
    rng = np.random.default_rng(11)
    dtypes = {"e4m3": E4M3, "bf16": BF16, "f16": np.float16}
    qkv, rope = dtypes[spec["dtypes"]["qkv"]], dtypes[spec["dtypes"]["rope_gmem"]]
    dims, scales, kv_heads = spec["dims"], spec["scales"], heads // spec["heads"]["group"]
    total_q, total_k = sum(q_lens), sum(kv_lens)
    arguments = {
        "q_nope": rng.standard_normal((total_q, heads, dims["nope"])).astype(qkv),
        "q_rope": rng.standard_normal((total_q, heads, dims["rope"])).astype(rope),
        "k_nope": rng.standard_normal((total_k, kv_heads, dims["nope"])).astype(qkv),
        "k_rope": rng.standard_normal((total_k, dims["rope"])).astype(rope),
        "v": rng.standard_normal((total_k, kv_heads, dims["v"])).astype(qkv),
        "q_scale": make_scale(rng, scales["q"], total_q, heads),
        "k_scale": make_scale(rng, scales["k"], total_k, kv_heads),
        "v_scale": make_scale(rng, scales["v"], total_k, kv_heads),
        "k_rope_scale": make_scale(rng, scales["rope_k"], total_k, 1),
        "cu_seqlens_q": np.cumsum([0, *q_lens]).astype(np.int32),
        "cu_seqlens_k": np.cumsum([0, *kv_lens]).astype(np.int32),
    }
    if dims["rope"] == 0:
        arguments["q_rope"] = arguments["k_rope"] = None
    return arguments


def scale_at(scale: np.ndarray | None, form: str, token: int, head: int) -> float:
    if scale is None:
        return 1.0
    place = {"tensor": (0,), "head": (head,), "token": (token,), "token_head": (token, head)}[form]
    return float(scale[place])


def naive(spec: dict[str, Any], arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """One query, one head, one key at a time, straight from the definition; LSE as [heads, tokens]."""
    scales, group = spec["scales"], spec["heads"]["group"]
    values = {n: a if a is None else np.asarray(a).astype(np.float64) for n, a in arguments.items()}
    cu_q, cu_k = arguments["cu_seqlens_q"].tolist(), arguments["cu_seqlens_k"].tolist()
    total_q, heads, _ = values["q_nope"].shape
    out = np.zeros((total_q, heads, spec["dims"]["v"]))
    lse = np.full((heads, total_q), -np.inf)
    softmax_scale = 1.0 / math.sqrt(spec["dims"]["nope"] + spec["dims"]["rope"])
    prescaled = scales["rope"] == "prescaled"
    for b, h in itertools.product(range(len(cu_q) - 1), range(heads)):
        for i in range(cu_q[b], cu_q[b + 1]):
            offset = (cu_k[b + 1] - cu_k[b]) - (cu_q[b + 1] - cu_q[b])
            total, weighted = 0.0, np.zeros(spec["dims"]["v"])
            for j in range(cu_k[b], cu_k[b + 1]):
                if spec["mask"] == "causal" and j - cu_k[b] > i - cu_q[b] + offset:
                    continue
                sq = scale_at(values["q_scale"], scales["q"], i, h)
                sk = scale_at(values["k_scale"], scales["k"], j, h // group)
                s = sq * sk * float(values["q_nope"][i, h] @ values["k_nope"][j, h // group])
                if values["q_rope"] is not None:
                    s_rope = float(values["q_rope"][i, h] @ values["k_rope"][j])
                    s_rope *= scale_at(values["k_rope_scale"], scales["rope_k"], j, 0)
                    s += s_rope * (sq * sk if prescaled else 1.0)
                weight = math.exp(softmax_scale * s)
                total += weight
                sv = scale_at(values["v_scale"], scales["v"], j, h // group)
                weighted += weight * sv * values["v"][j, h // group]
            if total:
                out[i, h], lse[h, i] = weighted / total, math.log(total)
    return out, lse


def assert_matches_naive(spec: dict[str, Any], arguments: dict[str, Any]) -> None:
    out, lse = reference(spec, **arguments)
    expected, expected_lse = naive(spec, arguments)
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("q", "k", "v"), [(f, f, f) for f in FORMS] + [("token", "none", "head")])
@pytest.mark.parametrize("rope", ["raw", "prescaled"])
def test_scale_forms(q: str, k: str, v: str, rope: str) -> None:
    spec = make_spec(scales={"q": q, "k": k, "v": v, "rope": rope, "rope_k": "none"})
    assert_matches_naive(spec, make_arguments(spec))


@pytest.mark.parametrize("scales_k", ["none", "token", "token_head"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_heads_share_keys_in_groups(scales_k: str, mask: str) -> None:
    spec = make_spec(heads={"q": 4, "group": 2}, scales_k=scales_k, scales_v="token_head", mask=mask)
    assert_matches_naive(spec, make_arguments(spec))


@pytest.mark.parametrize("rope", ["raw", "prescaled"])
def test_scale_of_k_rope(rope: str) -> None:
    spec = make_spec(scales_rope_k="token", scales_rope=rope, scales_k="token", dtypes_rope_gmem="e4m3")
    assert_matches_naive(spec, make_arguments(spec))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sixteen_bit_inputs_and_their_codes(dtype: str) -> None:
    spec = make_spec(dtypes={"qkv": dtype, "rope_gmem": dtype}, scales_rope=None)
    arguments = make_arguments(spec)
    assert_matches_naive(spec, arguments)
    codes = {n: a.view(np.uint16) if getattr(a, "itemsize", 0) == 2 else a for n, a in arguments.items()}
    np.testing.assert_array_equal(reference(spec, **codes)[0], reference(spec, **arguments)[0])


def test_without_rope() -> None:
    spec = make_spec(dims={"nope": NOPE, "rope": 0, "v": V}, scales_q="token", scales_rope=None)
    assert_matches_naive(spec, make_arguments(spec))


def test_codes_of_e4m3_and_one_rope_head() -> None:
    spec = make_spec(scales_q="token")
    arguments = make_arguments(spec)
    expected = reference(spec, **arguments)[0]
    for name in ("q_nope", "k_nope", "v"):
        arguments[name] = arguments[name].view(np.uint8)
    arguments["k_rope"] = arguments["k_rope"][:, None]
    np.testing.assert_array_equal(reference(spec, **arguments)[0], expected)


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 3), (3, 5), (4, 4), (1, 1)])
def test_causal_is_aligned_bottom_right(q_len: int, kv_len: int) -> None:
    spec = make_spec()
    arguments = make_arguments(spec, (q_len,), (kv_len,), heads=1)
    arguments["v"] = np.eye(kv_len, V)[:, None].astype(E4M3)
    out, lse = reference(spec, **arguments)
    seen = out[:, 0, :kv_len] > 0
    np.testing.assert_array_equal(seen, np.tril(np.ones((q_len, kv_len), dtype=bool), kv_len - q_len))
    np.testing.assert_array_equal(np.isneginf(lse[0]), ~seen.any(axis=1))


def test_rows_without_keys_are_zero_and_minus_infinity() -> None:
    spec = make_spec()
    out, lse = reference(spec, **make_arguments(spec))
    for row in (3, 4, 5, 8, 9):  # three rows above the diagonal of sequence 2, all of sequence 3
        assert not out[row].any()
        assert np.isneginf(lse[:, row]).all()
    assert np.isfinite(lse[:, [0, 1, 2, 6, 7, 10]]).all()


def test_empty_batch() -> None:
    spec = make_spec()
    out, lse = reference(spec, **make_arguments(spec, (), ()))
    assert out.shape == (0, 4, V) and lse.shape == (4, 0)


@pytest.mark.parametrize("lse_layout", ["head_token", "token_head"])
@pytest.mark.parametrize("form", ["token", "token_head"])
def test_dense_equals_ragged(form: str, lse_layout: str) -> None:
    scales = {"q": form, "k": form, "v": form, "rope": "raw", "rope_k": "token"}
    spec = make_spec(scales=scales, softmax_lse_layout=lse_layout)
    arguments = make_arguments(spec, (4, 4), (6, 6), heads=4)
    expected, expected_lse = reference(spec, **arguments)
    dense = {}
    for name, value in arguments.items():
        length = 4 if name.startswith("q") else 6
        dense[name] = None if name.startswith("cu") else value.reshape(2, length, *value.shape[1:])
    out, lse = reference({**spec, "layout": {"q": "dense", "kv": "dense"}}, **dense)
    np.testing.assert_array_equal(out, expected.reshape(2, 4, 4, V))
    if lse_layout == "head_token":
        expected_lse = expected_lse.T
        lse = lse.swapaxes(1, 2)
    np.testing.assert_array_equal(lse, expected_lse.reshape(2, 4, 4))


@pytest.mark.parametrize("rows", [slice(1, None, 2), slice(-2, None), np.array([0, 3])])
def test_selected_rows_and_heads(rows: Any) -> None:
    spec = make_spec(scales_q="token_head", scales_k="token", scales_rope="prescaled")
    arguments = make_arguments(spec)
    out, lse = reference(spec, **arguments)
    part, part_lse = reference(spec, **arguments, rows=rows, heads=[3, 1])
    places = row_indices(arguments["cu_seqlens_q"], rows)
    assert 0 < places.size < out.shape[0]
    np.testing.assert_allclose(part, out[places][:, [3, 1]], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(part_lse, lse[[3, 1]][:, places], rtol=1e-12, atol=1e-14)


def test_strips_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec()
    arguments = make_arguments(spec, (50,), (60,))
    expected = reference(spec, **arguments, p_dtype="e4m3")
    module = sys.modules[reference.__module__]
    monkeypatch.setattr(module, "_STRIP_SCORES", 60 * 7)
    monkeypatch.setattr(module, "_STRIP_ROWS", (1, 8))
    for found, wanted in zip(reference(spec, **arguments, p_dtype="e4m3"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_memory_stays_far_below_the_score_matrix() -> None:
    spec = make_spec(mask="full")
    length = 6000
    arguments = make_arguments(spec, (length,), (length,), heads=1)
    tracemalloc.start()
    reference(spec, **arguments)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < length * length * 8 / 4


def test_softmax_scale() -> None:
    spec = make_spec()
    arguments = make_arguments(spec)
    default = reference(spec, **arguments)[1]
    same = reference(spec, **arguments, softmax_scale=1 / math.sqrt(NOPE + ROPE))[1]
    np.testing.assert_allclose(same, default, rtol=1e-13)
    other = reference(spec, **arguments, softmax_scale=0.0)
    np.testing.assert_allclose(other[1][0, :3], np.log([4, 5, 6]))


def test_huge_logits() -> None:
    spec = make_spec(mask="full")
    arguments = make_arguments(spec, (2,), (9,))
    out, lse = reference(spec, **arguments, softmax_scale=1e5)
    assert np.isfinite(out).all() and np.isfinite(lse).all() and np.abs(lse).max() > 7e4


def large_arguments(spec: dict[str, Any], length: int = 700) -> dict[str, Any]:
    return make_arguments(spec, (length,), (length,), heads=2)


def test_rounding_of_p_costs_what_it_should() -> None:
    spec = make_spec(dims={"nope": 128, "rope": 64, "v": 128})
    arguments = large_arguments(spec)
    exact, exact_lse = reference(spec, **arguments)
    for p_dtype, low, high in (("e4m3", 1.8e-2, 2.8e-2), ("bf16", 1e-3, 2e-3), ("f16", 1e-4, 3e-4)):
        out, lse = reference(spec, **arguments, p_dtype=p_dtype)
        assert low < measure(out, exact).rel_frobenius < high
        np.testing.assert_array_equal(lse, exact_lse)


def test_lift_saves_small_probabilities() -> None:
    spec = make_spec(mask="full")
    arguments = make_arguments(spec, (1,), (200,), heads=1)
    for name in ("q_nope", "q_rope"):
        arguments[name] = np.zeros_like(arguments[name])
    arguments["q_nope"][..., 0], arguments["k_nope"][..., 0] = 1, 0
    arguments["k_nope"][0, 0, 0] = 10  # at softmax_scale 1 all other P are e^-10: lost without a lift of 8
    arguments["v"] = np.ones_like(arguments["v"])
    sharp = {"softmax_scale": 1.0, "p_dtype": "e4m3"}
    others = 199 * math.exp(-10)
    lifted = reference(spec, **arguments, **sharp)[0]
    flat = reference(spec, **arguments, **sharp, p_lift_log2=0.0)[0]
    np.testing.assert_allclose(flat, 1 / (1 + others), rtol=1e-12)
    np.testing.assert_allclose(lifted, 1.0, rtol=1e-3)
    half = {**arguments, "softmax_scale": 1.0, "p_dtype": "f16"}  # e^-10 is subnormal in f16 without a lift
    np.testing.assert_array_equal(reference(spec, **half)[0], reference(spec, **half, p_lift_log2=0.0)[0])
    assert (reference(spec, **half)[0] != reference(spec, **half, p_lift_log2=8.0)[0]).any()


@pytest.mark.parametrize("form", ["token", "token_head"])
def test_scales_of_v_are_rounded_with_p(form: str) -> None:
    spec = make_spec(scales_v=form)
    arguments = large_arguments(spec)
    rng = np.random.default_rng(1)
    arguments["v_scale"] = np.exp2(rng.uniform(-12, 4, arguments["v_scale"].shape)).astype(np.float32)
    exact, exact_lse = reference(spec, **arguments)
    out, lse = reference(spec, **arguments, p_dtype="e4m3")
    assert 1e-2 < measure(out, exact).rel_frobenius < 4e-2
    np.testing.assert_array_equal(lse, exact_lse)
    moved = reference(spec, **{**arguments, "v_scale": arguments["v_scale"] * 64}, p_dtype="e4m3")[0]
    np.testing.assert_allclose(moved, out * 64, rtol=1e-9)


def test_emulated_p_of_one_row_by_hand() -> None:
    """Two keys with P·2^8 = 256 and 100·(1 + 2^-6): the second rounds to 104."""
    spec = make_spec(mask="full", dims={"nope": 16, "rope": 0, "v": 16}, scales_rope=None)
    second = 101.5625
    score = math.log(second / 256)
    q = np.zeros((1, 1, 16))
    q[..., 0] = 1
    k = np.zeros((2, 1, 16))
    k[1, 0, 0] = score
    v = np.zeros((2, 1, 16))
    v[0, 0, 0] = v[1, 0, 1] = 1
    lengths = {"cu_seqlens_q": np.array([0, 1]), "cu_seqlens_k": np.array([0, 2])}
    out, _ = reference(spec, q, None, k, None, v, **lengths, softmax_scale=1.0, p_dtype="e4m3")
    np.testing.assert_allclose(out[0, 0, :2], np.array([256, 104]) / (256 + second), rtol=1e-12)


def test_scale_of_zero_counts_the_key_with_logit_zero() -> None:
    spec = make_spec(mask="full", scales_k="token", scales_v="token")
    arguments = make_arguments(spec, (1,), (3,))
    arguments["k_scale"][:] = 0
    arguments["k_rope"] = np.zeros_like(arguments["k_rope"])
    arguments["v_scale"][1] = 0
    for p_dtype in (None, "e4m3"):
        out, lse = reference(spec, **arguments, p_dtype=p_dtype)
        np.testing.assert_allclose(lse, math.log(3), rtol=1e-12)
        assert np.isfinite(out).all() and out.any()


def test_what_lies_beyond_the_sequences_is_not_read() -> None:
    spec = make_spec(scales_k="token")
    arguments = make_arguments(spec)
    expected = reference(spec, **arguments)
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v", "k_scale"):
        pad = np.full((3, *arguments[name].shape[1:]), np.nan).astype(arguments[name].dtype)
        arguments[name] = np.concatenate([arguments[name], pad])
    out, lse = reference(spec, **arguments)
    np.testing.assert_array_equal(out, np.concatenate([expected[0], np.zeros((3, 4, V))]))
    np.testing.assert_array_equal(lse[:, :-3], expected[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_scale": None}, "missing q_scale; it takes q_rope, k_rope, q_scale"),
        ({"v_scale": np.ones(1)}, "not declared v_scale"),
        ({"k_rope": None, "cu_seqlens_k": None}, "missing k_rope, cu_seqlens_k"),
        ({"q_scale": np.ones(3, np.float32)}, r"q_scale has shape \(3,\), form token needs 14 values"),
        ({"max_seqlen_q": 4}, "max_seqlen_q 4 is below the longest length 5"),
        ({"cu_seqlens_q": np.array([0, 3, 2, 8, 10, 14])}, "must rise from 0 to at most 14"),
        ({"cu_seqlens_q": np.array([0, 14])}, "1 query sequences but 5 key sequences"),
        ({"k_rope": np.zeros((16, 2, ROPE), BF16)}, "k_rope has 2 heads"),
        ({"v": np.zeros((16, 3, V), E4M3)}, "v has shape"),
        ({"v": np.zeros((16, 4, V), np.uint16)}, "dtype uint16 cannot hold e4m3"),
        ({"p_lift_log2": 3.0}, "without p_dtype"),
        ({"p_dtype": "e5m2"}, "'e5m2' is not known"),
        ({"rows": [3, 1]}, "increasing indices"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], message: str) -> None:
    spec = make_spec(scales_q="token")
    with pytest.raises(ValueError, match=message):
        reference(spec, **{**make_arguments(spec), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": {"chunk": 8192}}, "mask .* allowed are full, causal"),
        ({"layout_kv": {"paged": 64}}, "layout.kv"),
        ({"softmax_sink": True}, "softmax.sink"),
        ({"scales_q": "token", "scales_rope": None}, "scales.rope is missing"),
    ],
)
def test_specs_beyond_the_reference_are_refused(changes: dict[str, Any], message: str) -> None:
    spec = make_spec()
    arguments = make_arguments(spec)
    with pytest.raises(ValueError, match=message):
        reference(make_spec(**changes), **arguments)


def test_measure_finds_the_worst_places() -> None:
    expected = np.ones((2, 3, 4))
    actual = expected.copy()
    actual[1, 2, 3], actual[0, 0, 0] = 1.5, 0.75
    lse = np.array([[-np.inf, 10.0]])
    report = measure(actual, expected, lse + np.array([[0, 1e-3]]), lse)
    assert report.rel_frobenius == pytest.approx(math.sqrt(0.3125 / 24))
    assert (report.worst_row, report.worst_row_coordinate) == (pytest.approx(0.25), (1, 2))
    assert (report.worst_coordinate, report.worst_actual, report.worst_expected) == ((1, 2, 3), 1.5, 1.0)
    assert report.lse_abs == pytest.approx(1e-3)
    assert report.lse_excess == pytest.approx(1e-3 - 10 * 2.0**-21)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_non_finite_values_break_the_contract(fault: float) -> None:
    expected = np.ones((4, 2))
    actual = expected.copy()
    actual[3, 1] = fault
    bound = contract_bound(make_spec(dtypes_qkv="bf16"))
    report = measure(actual, expected)
    assert report.nonfinite_mismatch == ((3, 1),) and report.rel_frobenius == 0
    assert not report.kept(bound) and measure(expected, expected).kept(bound)
    assert measure(actual, actual).nonfinite_mismatch == ()
    assert measure(expected, actual).nonfinite_mismatch == ((3, 1),)
    lse = np.full(4, -np.inf)
    assert not measure(expected, expected, -lse, lse).kept(bound)
    assert measure(expected, expected, lse, lse).kept(bound)


def test_a_row_that_should_be_zero_must_be() -> None:
    expected = np.zeros((2, 2))
    assert measure(expected, expected).worst_row == 0
    assert measure(np.array([[0, 1e-9], [0, 0]]), expected).worst_row == np.inf


def test_bounds() -> None:
    expected = np.ones((1, 100))
    emulated = expected * 1.02
    fp8, bf16 = make_spec(), make_spec(dtypes_qkv="bf16")
    assert contract_bound(bf16).rel_frobenius == 5e-3 and contract_bound(bf16).lse_abs == 1e-3
    bound = contract_bound(fp8, expected=expected, emulated=emulated)
    assert bound.rel_frobenius == pytest.approx(0.026) and bound.lse_abs == 2e-3
    assert contract_bound(fp8, expected=expected, emulated=expected).rel_frobenius == 5e-3
    assert contract_bound(fp8, v_has_mean=True).rel_frobenius == 3e-2
    assert measure(expected * 1.02, expected).kept(bound)
    assert not measure(expected * 1.03, expected).kept(bound)
    assert not measure(expected, expected, np.array([2.1e-3]), np.zeros(1)).kept(bound)
    with pytest.raises(ValueError, match="expected and emulated"):
        contract_bound(fp8, expected=expected)


def test_measure_faults() -> None:
    with pytest.raises(ValueError, match=r"output has shape \(2,\) where \(3,\) is expected"):
        measure(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="only lse is given"):
        measure(np.zeros(2), np.zeros(2), np.zeros(1))


def test_outputs_as_codes_and_lse_in_base_two() -> None:
    values = np.array([[1.0, -2.5]], dtype=BF16)
    assert measure(values.view(np.uint16), values.astype(np.float64)).rel_frobenius == 0
    halves = np.array([[1.0, -2.5]], dtype=np.float16)
    assert measure(halves.view(np.uint16), halves, out_dtype="f16").rel_frobenius == 0
    lse = np.array([3.0, -np.inf])
    np.testing.assert_allclose(natural_lse(make_spec(softmax_lse="log2"), lse), [math.log(8), -np.inf])
    np.testing.assert_array_equal(natural_lse(make_spec(), lse), lse)
