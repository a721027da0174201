"""NumPy float64 attention on dequantised inputs: what every generated kernel is judged against.

The error measures and bounds live in `accuracy` and are importable from here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from mla_codegen.accuracy import ContractBound, ErrorReport, contract_bound, measure
from mla_codegen.arrays import to_host
from mla_codegen.fp8 import round_to
from mla_codegen.host_problem import HostProblem, check_capacity, host_problem
from mla_codegen.p_emulation import (
    Emulation,
    Rows,
    emulation_of,
    finite_peak,
    folded_scores,
    keys_seen,
    lazy_weighted,
    rows_of,
    weighted_folded,
    whole_warps,
)
from mla_codegen.plan.model import PRounding
from mla_codegen.tensors import SpecLike, TensorFacts, check_arguments, tensor_facts

__all__ = [
    "ContractBound",
    "ErrorReport",
    "contract_bound",
    "measure",
    "natural_lse",
    "reference",
    "row_indices",
]

Selection: TypeAlias = "slice | Sequence[int] | np.ndarray | None"

_LOG2_E = float(np.log2(np.e))
_LN_2 = float(np.log(2.0))
_STRIP_SCORES = 2**21  # scores held at a time: a strip of query rows against all the keys that they see
_STRIP_ROWS = (16, 1024)  # fewest and most query rows of a strip


def reference(
    spec: SpecLike,
    q_nope: Any,
    q_rope: Any,
    k_nope: Any,
    k_rope: Any,
    v: Any,
    *,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    k_rope_scale: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    p_dtype: str | None = None,
    p_lift_log2: float | None = None,
    p_rounding: PRounding | Mapping[str, Any] | None = None,
    rows: Selection = None,
    heads: Selection = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention in float64, with the shapes and meanings of the kernel's own arguments.

    One head and one strip of query rows at a time, so that no full score matrix exists. Arrays may be NumPy
    (float, or uint8/uint16 codes of the declared dtype), CuPy or torch. A query row that sees no key gives
    output 0 and LSE -inf; so do query tokens beyond the last cumulative length.

    With `p_dtype` only the rounding of the probabilities is emulated, the rest stays float64: P is
    exp2(z - m + lift), z the scores in base 2 and m the exact maximum of the row, rounded to the dtype, while
    the row sum takes P unrounded. Where V has a scale per token, P times that scale is rounded, m is then the
    maximum of z + log2(scale), and the row sum leaves the scale out. With `p_rounding` instead, P is taken
    against the reference points that the kernel of a plan takes, which may lie below the row's maximum.

    Args:
        spec: Spec, plain mapping of one, or path of a YAML file.
        q_nope, q_rope, k_nope, k_rope, v: stored tensors; q_rope and k_rope are None where dims.rope is 0.
        q_scale, k_scale, v_scale, k_rope_scale: exactly those that the spec declares; they multiply what is
            stored.
        cu_seqlens_q, cu_seqlens_k: int [batch + 1] from 0, for ragged layouts only.
        max_seqlen_q: capacity, only checked against the lengths; for ragged queries only.
        softmax_scale: factor of the scores, by default 1 / sqrt(nope + rope).
        p_dtype: "e4m3", "bf16" or "f16", or None for no rounding.
        p_lift_log2: lift of P, by default 8 for e4m3 (a row's largest P is 256) and 0 otherwise.
        p_rounding: `p_rounding` of a plan's variant, or its mapping in plan.json, instead of both.
        rows: query rows of each sequence to compute (slice or increasing index array; indices beyond a
            sequence are left out), by default all; `row_indices` gives their places in the full output.
        heads: query heads to compute (slice or index array), by default all.

    Returns:
        Output and natural LSE, float64: for ragged queries [rows, heads, v] and [heads, rows], or
        [rows, heads] where the spec's lse_layout says so; for dense ones the same with [batch] in front.

    Raises:
        ValueError: arguments missing, not declared, or with shapes or dtypes that do not fit the spec.
    """
    facts = tensor_facts(spec)
    tensors = {"q_rope": q_rope, "k_rope": k_rope, "q_nope": q_nope, "k_nope": k_nope, "v": v}
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "k_rope_scale": k_rope_scale}
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_arguments(facts, {"q_rope": q_rope, "k_rope": k_rope, **scales, **lengths})
    problem = host_problem(facts, tensors, scales, lengths)
    check_capacity(facts, problem, max_seqlen_q)
    if softmax_scale is None:
        softmax_scale = (facts.nope + facts.rope) ** -0.5
    emulation = emulation_of(facts, p_dtype, p_lift_log2, p_rounding)
    head_ids = np.arange(problem.q_nope.shape[1])[slice(None) if heads is None else heads]
    row_ids = row_indices(problem.cu_seqlens_q, rows)
    computed = row_ids
    if rows is not None and emulation is not None and emulation.lazy is not None:
        computed = whole_warps(row_ids, problem.cu_seqlens_q, emulation.lazy.warp_rows)
    places = problem.q_nope.shape[0] if rows is None else computed.size
    out = np.zeros((places, head_ids.size, facts.v))
    lse = np.full((places, head_ids.size), -np.inf)
    for column, head in enumerate(head_ids):
        _attend_head(
            facts, problem, int(head), computed, softmax_scale, emulation, out[:, column], lse[:, column]
        )
    if computed is not row_ids:
        kept = np.searchsorted(computed, row_ids)
        out, lse = out[kept], lse[kept]
    return _shaped(facts, out, lse, problem.cu_seqlens_q.size - 1)


def row_indices(cu_seqlens_q: Any, rows: Selection = None) -> np.ndarray:
    """Places of the selected rows of every sequence in a ragged query tensor, int64, sequence by sequence.

    Args:
        cu_seqlens_q: int [batch + 1].
        rows: slice, or indices from 0, taken in each sequence; indices beyond a sequence are left out.

    Raises:
        ValueError: indices are negative or not increasing.
    """
    cu_seqlens = to_host(cu_seqlens_q).astype(np.int64)
    if rows is None:
        rows = slice(None)
    if not isinstance(rows, slice):
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows[0] < 0 or np.any(np.diff(rows) <= 0)):
            raise ValueError(f"rows are {rows.tolist()[:8]}, give increasing indices from 0 or a slice")
    parts = [np.empty(0, dtype=np.int64)]
    for start, end in pairwise(cu_seqlens):
        taken = np.arange(end - start)[rows] if isinstance(rows, slice) else rows[rows < end - start]
        parts.append(start + taken)
    return np.concatenate(parts)


def natural_lse(spec: SpecLike, lse: Any) -> np.ndarray:
    """A kernel's LSE (any array library) as float64 in base e: unchanged unless the spec says `log2`."""
    values = to_host(lse).astype(np.float64)
    return values * _LN_2 if tensor_facts(spec).lse == "log2" else values


def _attend_head(
    facts: TensorFacts,
    problem: HostProblem,
    head: int,
    row_ids: np.ndarray,
    softmax_scale: float,
    emulation: Emulation | None,
    out: np.ndarray,
    lse: np.ndarray,
) -> None:
    """Fills `out` [rows, v] and `lse` [rows] of one query head for the rows `row_ids` of all sequences."""
    for b in range(problem.cu_seqlens_q.size - 1):
        q_start, q_end = problem.cu_seqlens_q[b : b + 2]
        keys = slice(*problem.cu_seqlens_k[b : b + 2])
        first, last = np.searchsorted(row_ids, [q_start, q_end])
        kv_len = keys.stop - keys.start
        if first == last or kv_len == 0:
            continue
        k, v, v_scale = _dequantised_kv(facts, problem, head, keys)
        q = _dequantised_q(facts, problem, head, row_ids[first:last]) * (softmax_scale * _LOG2_E)
        own_rows, q_len, blocks = row_ids[first:last] - q_start, q_end - q_start, None
        seen = keys_seen(own_rows, q_len, kv_len, facts.causal)
        strip = int(np.clip(_STRIP_SCORES // kv_len, *_STRIP_ROWS))
        if emulation is not None and emulation.lazy is not None:
            blocks = rows_of(own_rows, q_len, kv_len, facts.causal, emulation.lazy)
            strip = max(1, strip // emulation.lazy.warp_rows) * emulation.lazy.warp_rows
        # Warps are counted from the end: what does not fill one comes first.
        tops = range((last - first) % strip if blocks is not None else 0, last - first, strip)
        for top, bottom in pairwise(dict.fromkeys((0, *tops, last - first))):
            part = slice(top, bottom)
            count = seen[part].max()
            place = slice(first + part.start, first + part.stop)
            out[place], lse[place] = _attend_strip(
                q[part],
                k[:count],
                v[:count],
                v_scale[:count],
                seen[part],
                emulation,
                None if blocks is None else blocks.part(part),
            )


def _dequantised_q(facts: TensorFacts, problem: HostProblem, head: int, row_ids: np.ndarray) -> np.ndarray:
    """True query rows of a head, nope then rope: float64 [rows, nope + rope]."""
    scale = _column(problem.q_scale, row_ids, head)
    parts = [problem.q_nope[row_ids, head] * scale]
    if problem.q_rope is not None:
        rope = problem.q_rope[row_ids, head].astype(np.float64)
        parts.append(rope * scale if facts.rope_prescaled else rope)
    return np.concatenate(parts, axis=1)


def _dequantised_kv(
    facts: TensorFacts, problem: HostProblem, head: int, keys: slice
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True keys [keys, nope + rope], stored values [keys, v] and their scales [keys] of a query head."""
    kv_head = head // facts.group
    scale = _column(problem.k_scale, keys, kv_head)
    parts = [problem.k_nope[keys, kv_head] * scale]
    if problem.k_rope is not None:
        rope = problem.k_rope[keys] * _column(problem.k_rope_scale, keys, 0)
        parts.append(rope * scale if facts.rope_prescaled else rope)
    v = problem.v[keys, kv_head].astype(np.float64)
    v_scale = np.broadcast_to(_column(problem.v_scale, keys, kv_head), (v.shape[0], 1))[:, 0]
    return np.concatenate(parts, axis=1), v, v_scale


def _column(scale: np.ndarray, tokens: slice | np.ndarray, head: int) -> np.ndarray:
    """Scales of some tokens and one head, [tokens or 1, 1], of an array broadcastable to [tokens, heads]."""
    per_token = scale if scale.shape[0] == 1 else scale[tokens]
    return per_token if scale.shape[1] == 1 else per_token[:, head : head + 1]


def _attend_strip(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    v_scale: np.ndarray,
    seen: np.ndarray,
    emulation: Emulation | None,
    rows: Rows | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output [rows, v] and natural LSE [rows] of query rows that see the first `seen` keys each.

    `q` carries softmax_scale * log2(e), so the scores are in base 2. `rows` is needed for a lazy emulation.
    """
    if k.shape[0] == 0:
        return np.zeros((q.shape[0], v.shape[1])), np.full(q.shape[0], -np.inf)
    z = q @ k.T
    first_hidden = int(seen.min())
    if first_hidden < k.shape[0]:
        hidden = np.arange(first_hidden, k.shape[0]) >= seen[:, None]
        z[:, first_hidden:][hidden] = -np.inf
    peak = finite_peak(z)
    fold = emulation is not None and emulation.fold_v_scale
    if rows is not None:
        weighted, row_sum, peak = lazy_weighted(z, peak, v, v_scale, rows, fold=fold)
    else:
        folded = folded_scores(z, v_scale) if fold else None
        z -= peak
        p = np.exp2(z, out=z)
        row_sum = p.sum(axis=1)
        weighted = _weighted(p, v, v_scale, folded, peak, emulation)
    with np.errstate(divide="ignore"):
        lse = (peak[:, 0] + np.log2(row_sum)) * _LN_2
    return weighted / np.where(row_sum == 0, 1.0, row_sum)[:, None], lse


def _weighted(
    p: np.ndarray,
    v: np.ndarray,
    v_scale: np.ndarray,
    folded: np.ndarray | None,
    peak: np.ndarray,
    emulation: Emulation | None,
) -> np.ndarray:
    """P*V relative to 2^peak, P rounded as the emulation says, with the scales of V in it where they fold."""
    if emulation is None:
        return p @ (v * v_scale[:, None])
    if folded is not None:
        return weighted_folded(folded, peak, np.sign(v_scale), v, emulation)
    lift = 2.0**emulation.lift_log2
    p *= lift
    return (round_to(p, emulation.p_dtype) @ (v * v_scale[:, None])) / lift


def _shaped(
    facts: TensorFacts, out: np.ndarray, lse: np.ndarray, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gives `out` [rows, heads, v] and `lse` [rows, heads] the layouts of the spec."""
    if not facts.q_ragged:
        out = out.reshape(batch, -1 if batch else 0, *out.shape[1:])
        lse = lse.reshape(batch, -1 if batch else 0, lse.shape[1])
    if facts.lse_layout == "head_token":
        lse = np.ascontiguousarray(lse.swapaxes(-1, -2))
    return out, lse
