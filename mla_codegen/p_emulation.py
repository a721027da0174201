"""How a kernel rounds its probabilities, redone in float64: the one error that an fp8 bound grants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np

from mla_codegen.fp8 import NARROW_DTYPES, round_to
from mla_codegen.plan.model import PRounding
from mla_codegen.tensors import TensorFacts

SMALLEST_FOLDED_SCALE = 2.0**-100
"""What the lazy softmax takes for a smaller scale of V, whose logarithm it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How the probabilities are rounded.

    With `lazy` as that plan's kernel does, block by block; else against the exact maximum of the row.
    `fold_v_scale` where scales of V stand along the keys.
    """

    p_dtype: str
    lift_log2: float
    fold_v_scale: bool
    lazy: PRounding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where the query rows of a strip lie: each array holds an element per row, in increasing order.

    `visible` counts the blocks that the row's group sees, `unmasked` the first ones of these that are not
    masked. `warp` numbers the warps; all rows of a warp that exist are there.
    """

    rounding: PRounding
    visible: np.ndarray
    unmasked: np.ndarray
    warp: np.ndarray

    def part(self, strip: slice) -> Rows:
        return Rows(
            rounding=self.rounding,
            visible=self.visible[strip],
            unmasked=self.unmasked[strip],
            warp=self.warp[strip],
        )


def emulation_of(
    facts: TensorFacts,
    p_dtype: str | None,
    lift_log2: float | None,
    p_rounding: PRounding | Mapping[str, Any] | None,
) -> Emulation | None:
    """The emulation that arguments of `reference` ask for; ValueError where they contradict each other."""
    fold_v_scale = facts.v_scale in ("token", "token_head")
    if p_rounding is not None:
        if p_dtype is not None or lift_log2 is not None:
            raise ValueError(
                "p_rounding has a dtype and a lift of its own, leave p_dtype and p_lift_log2 out"
            )
        rounding = p_rounding if isinstance(p_rounding, PRounding) else _p_rounding(p_rounding)
        return Emulation(
            p_dtype=_known(rounding.dtype),
            lift_log2=rounding.lift_log2,
            fold_v_scale=fold_v_scale,
            lazy=rounding if rounding.lazy else None,
        )
    if p_dtype is None:
        if lift_log2 is not None:
            raise ValueError(f"p_lift_log2 {lift_log2} has no meaning without p_dtype, give both or none")
        return None
    if lift_log2 is None:
        lift_log2 = 8.0 if p_dtype == "e4m3" else 0.0
    return Emulation(p_dtype=_known(p_dtype), lift_log2=lift_log2, fold_v_scale=fold_v_scale)


def _p_rounding(mapping: Mapping[str, Any]) -> PRounding:
    """The dataclass of its mapping in a plan.json."""
    names = {field.name for field in fields(PRounding)}
    if set(mapping) != names:
        raise ValueError(f"p_rounding has the keys {sorted(mapping)}, it needs {sorted(names)}")
    return PRounding(**mapping)


def _known(p_dtype: str) -> str:
    if p_dtype not in NARROW_DTYPES:
        raise ValueError(f"p_dtype {p_dtype!r} is not known, allowed are {', '.join(NARROW_DTYPES)}")
    return p_dtype


def finite_peak(z: np.ndarray) -> np.ndarray:
    """Maximum of each row as [rows, 1], 0 where it is not finite."""
    peak = z.max(axis=1, keepdims=True)
    return np.where(np.isfinite(peak), peak, 0.0)


def folded_scores(z: np.ndarray, v_scale: np.ndarray) -> np.ndarray:
    """Scores in base 2 with the magnitude of V's scales in them."""
    with np.errstate(divide="ignore"):
        return z + np.log2(np.abs(v_scale))


def lazy_weighted(
    z: np.ndarray, peak: np.ndarray, v: np.ndarray, v_scale: np.ndarray, rows: Rows, *, fold: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P*V [rows, v] with P as a lazy softmax rounds it, P's exact sums [rows], the peak of both [rows, 1].

    With ``fold`` the scales of V are a part of P while it is rounded, and not of its sums; 2^-100 stands in
    for a smaller one, as in the kernel.
    """
    if not fold:
        row_sum = lazy_p(z, peak, rows, np.ones_like(v_scale))
        return z @ (v * v_scale[:, None]), row_sum, peak
    magnitude = np.maximum(np.abs(v_scale), SMALLEST_FOLDED_SCALE)
    folded = folded_scores(z, magnitude)
    folded_peak = finite_peak(folded)
    row_sum = lazy_p(folded, folded_peak, rows, 1.0 / magnitude)
    return folded @ (v * np.sign(v_scale)[:, None]), row_sum, folded_peak


def weighted_folded(
    folded: np.ndarray, peak: np.ndarray, sign: np.ndarray, v: np.ndarray, emulation: Emulation
) -> np.ndarray:
    """P·V, relative to 2^peak, with V's scales rounded as a part of P."""
    folded_peak = finite_peak(folded)
    folded -= folded_peak - emulation.lift_log2
    p = round_to(np.exp2(folded, out=folded), emulation.p_dtype)
    return (p @ (v * sign[:, None])) * np.exp2(folded_peak - emulation.lift_log2 - peak)


def whole_warps(row_ids: np.ndarray, cu_seqlens_q: np.ndarray, warp_rows: int) -> np.ndarray:
    """All rows of the warps that some rows are in, increasing; what lies in front of a sequence is no row.

    Args:
        row_ids: increasing places in the ragged query tensor.
        cu_seqlens_q: cumulative lengths.
        warp_rows: rows of a warp, counted in each sequence from its last row.
    """
    parts = [np.empty(0, dtype=np.int64)]
    for start, end in pairwise(cu_seqlens_q):
        first, last = np.searchsorted(row_ids, [start, end])
        warps = np.unique((row_ids[first:last] - end) // warp_rows)
        rows = (end + warps[:, None] * warp_rows + np.arange(warp_rows)).ravel()
        parts.append(rows[rows >= start])
    return np.concatenate(parts)


def keys_seen(rows: np.ndarray, q_len: int, kv_len: int, causal: bool) -> np.ndarray:
    """Keys that each row of a sequence sees, counted from the first key."""
    return np.clip(rows + 1 + kv_len - q_len, 0, kv_len) if causal else np.full(rows.size, kv_len)


def rows_of(rows: np.ndarray, q_len: int, kv_len: int, causal: bool, rounding: PRounding) -> Rows:
    """Where some rows of a sequence lie in the kernel's groups and warps, which end where it does."""
    first = q_len + (rows - q_len) // rounding.group_rows * rounding.group_rows
    last = first + rounding.group_rows - 1
    return Rows(
        rounding=rounding,
        visible=-(-keys_seen(last, q_len, kv_len, causal) // rounding.block_n),
        # The block of the first row's last key counts as masked even where it is whole.
        unmasked=np.maximum(keys_seen(first, q_len, kv_len, causal) - 1, 0) // rounding.block_n,
        warp=(rows - q_len) // rounding.warp_rows,
    )


@dataclass(slots=True)
class _Lazy:
    """The softmax state of all rows of a strip."""

    rounding: PRounding
    row_max: np.ndarray
    """Reference point of each row; -inf before its first key."""
    offset: np.ndarray
    """What is added to the scores: lift - reference."""
    threads: np.ndarray = field(init=False)
    """Which of the four threads of a row has which column of a block: [block_n, 4] of 0 and 1."""

    def __post_init__(self) -> None:
        column = np.arange(self.rounding.block_n)
        self.threads = (column[:, None] // 2 % 4 == np.arange(4)).astype(np.float64)

    def largest_sum(self, p: np.ndarray) -> np.ndarray:
        """The largest sum of a thread in each row, as float32 like the kernel's; NaN where P overflows."""
        return (p @ self.threads[: p.shape[1]]).max(axis=1).astype(np.float32)

    def exact_step(self, z: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """P of a block after its maximum has moved the reference point and the lift is lowered."""
        row_max = np.maximum(self.row_max[rows], z.max(axis=1))
        offset = self.rounding.lift_log2 - np.where(row_max == -np.inf, 0.0, row_max)
        p = np.exp2(z + offset[:, None])
        fraction, halvings = np.frexp(self.largest_sum(p) / np.float32(self.rounding.sum_goal))
        halvings = np.maximum(halvings - (fraction == 0.5), 0)
        self.row_max[rows], self.offset[rows] = row_max, offset - halvings
        p *= np.exp2(-halvings)[:, None]
        return p


def lazy_p(z: np.ndarray, peak: np.ndarray, rows: Rows, weights: np.ndarray) -> np.ndarray:
    """Replaces scores by the P that a lazy softmax rounds, brought to 2^(z - peak); gives their exact sums.

    Args:
        z: scores in base 2, [rows, keys], -inf where hidden.
        peak: finite maximum of each row, [rows, 1].
        rows: where the rows lie.
        weights: what each key's P counts for in the sums, [keys].

    Returns:
        Weighted sum of each row's unrounded P, [rows].
    """
    count = z.shape[0]
    state = _Lazy(rounding=rows.rounding, row_max=np.full(count, -np.inf), offset=np.zeros(count))
    row_sum = np.zeros(count)
    for keys, exact, lazy in _blocks(z, rows):
        z[: exact.start, keys] = 0.0
        for part, p in _block_steps(z, keys, exact, lazy, rows, state):
            seen = state.row_max[part] > -np.inf  # before a row's first key its P is 0 in any unit
            unit = np.exp2(np.where(seen, -state.offset[part] - peak[part, 0], -np.inf))
            row_sum[part] += (p @ weights[keys]) * unit
            z[part, keys] = round_to(p, rows.rounding.dtype) * unit[:, None]
    return row_sum


def _blocks(z: np.ndarray, rows: Rows) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks from the last to the first: its keys, the rows that step exactly in it, and those that need not.

    Both are slices, since a later row sees no fewer blocks; rows before them do not see the block.
    """
    block_n = rows.rounding.block_n
    for block in range(-(-z.shape[1] // block_n) - 1, -1, -1):
        keys = slice(block * block_n, min((block + 1) * block_n, z.shape[1]))
        begin = int(np.searchsorted(rows.visible, block, side="right"))
        middle = int(np.searchsorted(rows.unmasked, block, side="right"))
        yield keys, slice(begin, middle), slice(middle, z.shape[0])


def _block_steps(
    z: np.ndarray, keys: slice, exact: slice, lazy: slice, rows: Rows, state: _Lazy
) -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
    """Rows of a block and their P, which `state` then has the offset of; no row comes twice."""
    if exact.start < exact.stop:
        yield exact, state.exact_step(z[exact, keys], exact)
    if lazy.start == lazy.stop:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp2(z[lazy, keys] + state.offset[lazy, None])
        fits = state.largest_sum(p) <= state.rounding.sum_limit
    if fits.all():
        yield lazy, p
        return
    warp = rows.warp[lazy]
    votes = np.isin(warp, warp[~fits])
    kept, raised = np.flatnonzero(~votes) + lazy.start, np.flatnonzero(votes) + lazy.start
    yield kept, p[~votes]
    yield raised, state.exact_step(z[raised, keys], raised)
