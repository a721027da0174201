"""The emulated lazy softmax against a naive one, row by row and key by key, and what its arguments allow."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest

from mla_codegen.fp8 import round_to
from mla_codegen.plan.model import PRounding
from mla_codegen.reference import reference, row_indices

DEPTH, V = 16, 16
# Small enough that a few rows make several groups and warps; the sums let votes and lower lifts happen.
ROUNDING = PRounding(
    dtype="e4m3",
    lift_log2=6.0,
    lazy=True,
    block_n=16,
    group_rows=8,
    warp_rows=4,
    sum_limit=448.0,
    sum_goal=64.0,
)
PROBLEMS = {
    "square": ((40,), (40,)),
    "more keys": ((13, 3, 0, 21), (70, 50, 9, 33)),
    "more queries": ((30,), (20,)),
    "whole blocks": ((8, 16), (32, 48)),
}


def make_spec(mask: str, **scales: str) -> dict[str, Any]:
    return {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "bf16"},
        "dims": {"nope": DEPTH, "rope": 0, "v": V},
        "heads": {"q": "any", "group": 1},
        "scales": {"q": "none", "k": "none", "v": "none", "rope": None, "rope_k": "none", **scales},
        "mask": mask,
        "layout": {"q": "ragged", "kv": "ragged", "v": "rows"},
        "softmax": {"lse": "natural", "lse_layout": "head_token"},
    }


def make_arguments(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], spread: float) -> dict[str, Any]:
    """Scores of standard deviation `spread` that fall by 8 times that over the keys."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((sum(lens), 2, DEPTH)) for lens in (q_lens, kv_lens, kv_lens))
    q[..., 0] = 1.0
    k *= spread / math.sqrt(DEPTH)
    place = np.concatenate([np.arange(n) / n for n in kv_lens])
    k[..., 0] = -8 * spread * place[:, None]
    return {
        "q_nope": q,
        "q_rope": None,
        "k_nope": k,
        "k_rope": None,
        "v": v,
        "cu_seqlens_q": np.cumsum([0, *q_lens]),
        "cu_seqlens_k": np.cumsum([0, *kv_lens]),
        "softmax_scale": 1.0,
    }


class NaiveRow:
    """One row of the kernel: sums of four threads, weighted values, reference point and lift."""

    def __init__(self, z: np.ndarray, v: np.ndarray, v_scale: np.ndarray) -> None:
        # Only the keys that the row sees; scales of V are in its scores and leave its total.
        self.z, self.v, self.v_scale = z + np.log2(v_scale), v, v_scale
        self.top, self.lift = -math.inf, 0.0
        self.total, self.weighted = 0.0, np.zeros(V)

    def largest(self, keys: range, top: float, lift: float) -> float:
        """The largest sum of a thread; as float32, in which a tiny P beside one of 64 does not count."""
        sums = [0.0] * 4
        for key in keys:
            if key < self.z.size:
                sums[(key - keys.start) % 8 // 2] += 2 ** (self.z[key] - top + lift)
        return float(np.float32(max(sums)))

    def refuses(self, keys: range) -> bool:
        return self.largest(keys, self.top, self.lift) > ROUNDING.sum_limit

    def take(self, keys: range, *, exact: bool) -> None:
        seen = self.z[keys.start : keys.stop]
        if seen.size == 0:
            return
        if exact:
            top, lift = max(self.top, float(seen.max())), ROUNDING.lift_log2
            while self.largest(keys, top, lift) > ROUNDING.sum_goal:
                lift -= 1
            rescale = 2 ** (self.top - self.lift - top + lift)
            self.total, self.weighted = self.total * rescale, self.weighted * rescale
            self.top, self.lift = top, lift
        p = np.exp2(seen - self.top + self.lift)
        self.total += (p / self.v_scale[keys.start : keys.stop]).sum()
        self.weighted = self.weighted + round_to(p, "e4m3") @ self.v[keys.start : keys.stop]


def naive(arguments: dict[str, Any], *, causal: bool) -> tuple[np.ndarray, int]:
    """Output, and how often a warp was voted into an exact step."""
    out, votes = np.zeros_like(arguments["q_nope"]), 0
    v_scale = arguments.get("v_scale", np.ones(len(arguments["v"]))).astype(np.float64)
    cu_q, cu_k = arguments["cu_seqlens_q"].tolist(), arguments["cu_seqlens_k"].tolist()
    for b in range(len(cu_q) - 1):
        q_len, kv_len = cu_q[b + 1] - cu_q[b], cu_k[b + 1] - cu_k[b]

        def sees(row: int, q_len: int = q_len, kv_len: int = kv_len) -> int:
            return max(0, row + 1 + kv_len - q_len) if causal else kv_len

        for head in range(2):
            k, v = (arguments[name][cu_k[b] : cu_k[b + 1], head] for name in ("k_nope", "v"))
            # Groups and warps end with the sequence; the first ones may begin before it.
            before = -q_len % ROUNDING.group_rows
            for begin in range(-before, q_len, ROUNDING.warp_rows):
                first = max(begin, 0)
                numbers = range(first, begin + ROUNDING.warp_rows)
                q = arguments["q_nope"][cu_q[b] + first : cu_q[b] + numbers.stop, head] * math.log2(math.e)
                scales = v_scale[cu_k[b] : cu_k[b + 1]]
                rows = [
                    NaiveRow(k[: sees(i)] @ q[i - first], v[: sees(i)], scales[: sees(i)]) for i in numbers
                ]
                group = (begin + before) // ROUNDING.group_rows * ROUNDING.group_rows - before
                unmasked = max(0, sees(group) - 1) // ROUNDING.block_n
                for block in reversed(range(-(-kv_len // ROUNDING.block_n))):
                    keys = range(block * ROUNDING.block_n, (block + 1) * ROUNDING.block_n)
                    vote = block < unmasked and any(row.refuses(keys) for row in rows)
                    votes += vote
                    for row in rows:
                        row.take(keys, exact=vote or block >= unmasked)
                for i, row in zip(numbers, rows, strict=True):
                    out[cu_q[b] + i, head] = row.weighted / (row.total or 1.0)
    return out, votes


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_against_a_naive_kernel(problem: str, mask: str, spread: float) -> None:
    arguments = make_arguments(*PROBLEMS[problem], spread)
    spec = make_spec(mask)
    expected, votes = naive(arguments, causal=mask == "causal")
    assert votes or spread < 1 or problem in ("more queries", "whole blocks")
    out, lse = reference(spec, **arguments, p_rounding=ROUNDING)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12)
    exact, exact_lse = reference(spec, **arguments)
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(out - exact) > 1e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_scales_of_v_are_in_p_and_not_in_its_sum(mask: str, spread: float) -> None:
    arguments = make_arguments(*PROBLEMS["more keys"], spread)
    exponent = np.random.default_rng(6).uniform(-12, 4, len(arguments["v"]))
    arguments["v_scale"] = (2**exponent).astype(np.float32)
    spec = make_spec(mask, v="token")
    expected, votes = naive(arguments, causal=mask == "causal")
    assert votes or spread < 1
    out, lse = reference(spec, **arguments, p_rounding=ROUNDING)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12)
    exact, exact_lse = reference(spec, **arguments)
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(out - exact) > 1e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize("rows", [slice(1, None, 6), slice(-2, None), np.array([0, 3, 17])])
def test_selected_rows_vote_with_their_warp(rows: Any) -> None:
    spec, arguments = make_spec("causal"), make_arguments(*PROBLEMS["more keys"], 2.0)
    out, lse = reference(spec, **arguments, p_rounding=ROUNDING)
    places = row_indices(arguments["cu_seqlens_q"], rows)
    part, part_lse = reference(spec, **arguments, p_rounding=ROUNDING, rows=rows, heads=[1])
    np.testing.assert_allclose(part, out[places][:, [1]], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(part_lse, lse[[1]][:, places], rtol=1e-12)


def test_strips_hold_whole_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, arguments = make_spec("causal"), make_arguments(*PROBLEMS["more keys"], 2.0)
    expected, _ = reference(spec, **arguments, p_rounding=ROUNDING)
    monkeypatch.setattr(sys.modules[reference.__module__], "_STRIP_ROWS", (1, 7))
    np.testing.assert_allclose(reference(spec, **arguments, p_rounding=ROUNDING)[0], expected, rtol=1e-9)


def test_a_row_does_not_depend_on_other_sequences() -> None:
    spec = make_spec("causal")
    arguments = make_arguments((13, 21), (70, 33), 2.0)
    together, _ = reference(spec, **arguments, p_rounding=ROUNDING)
    alone = {name: x[13 if name == "q_nope" else 70 :] for name, x in arguments.items() if np.ndim(x) == 3}
    lengths = {"cu_seqlens_q": np.array([0, 21]), "cu_seqlens_k": np.array([0, 33])}
    out, _ = reference(spec, **{**arguments, **alone, **lengths}, p_rounding=ROUNDING)
    np.testing.assert_allclose(out, together[13:], rtol=1e-9)


def test_huge_logits_and_an_empty_batch() -> None:
    arguments = make_arguments((20,), (70,), 1.0)
    out, lse = reference(make_spec("full"), **{**arguments, "softmax_scale": 1e5}, p_rounding=ROUNDING)
    assert np.isfinite(out).all() and np.abs(lse).max() > 7e4
    nothing = {name: np.array([0]) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    out, lse = reference(make_spec("full"), **{**arguments, **nothing}, p_rounding=ROUNDING, rows=[0])
    assert out.shape == (0, 2, V) and lse.shape == (2, 0)


def test_the_mapping_of_a_plan_and_the_exact_form() -> None:
    spec, arguments = make_spec("causal"), make_arguments((30,), (60,), 1.0)
    expected = reference(spec, **arguments, p_rounding=ROUNDING)[0]
    found = reference(spec, **arguments, p_rounding=dataclasses.asdict(ROUNDING))[0]
    np.testing.assert_array_equal(found, expected)
    plain = dataclasses.replace(ROUNDING, lazy=False, dtype="bf16", lift_log2=3.0)
    np.testing.assert_array_equal(
        reference(spec, **arguments, p_rounding=plain)[0],
        reference(spec, **arguments, p_dtype="bf16", p_lift_log2=3.0)[0],
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p_rounding": ROUNDING, "p_dtype": "e4m3"}, "leave p_dtype and p_lift_log2 out"),
        ({"p_rounding": ROUNDING, "p_lift_log2": 6.0}, "leave p_dtype and p_lift_log2 out"),
        ({"p_rounding": {"dtype": "e4m3"}}, r"p_rounding has the keys \['dtype'\], it needs \['block_n'"),
        ({"p_rounding": dataclasses.replace(ROUNDING, dtype="e5m2")}, "'e5m2' is not known"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reference(make_spec("full"), **make_arguments((3,), (4,), 1.0), **changes)


def test_a_row_whose_first_block_hides_all_its_keys_is_right_far_below_0() -> None:
    """Its P there is 0, whatever unit a reference of nothing and a peak of -1000 would give."""
    spec, arguments = make_spec("causal"), make_arguments((20,), (40,), 0.1)
    for name in ("q_nope", "k_nope"):
        arguments[name][...] = 0
    arguments["q_nope"][..., 0], arguments["k_nope"][..., 0] = 1, -1000
    out, lse = reference(spec, **arguments, p_rounding=ROUNDING)
    exact, exact_lse = reference(spec, **arguments)
    np.testing.assert_allclose(out, exact, rtol=0.07, atol=0.02)
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-12)
