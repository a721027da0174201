"""A row depends on its own sequence only: not on its batch, and not on NaN beside or beyond it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.gpu import batches, harness
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import Subject

_CAPACITY = 1200
_TAIL_TOKENS = 150


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    m, n = under.block_m, under.block_n
    lens = {(1, 1), (1, n + 1), (m - 1, n - 1), (m, n), (m + 1, n + 1), (64, 3), (70, 2 * n + 5), (777, 1000)}
    lens |= {(50, 20), (m + 5, 2 * m - 3), (5, 0)}
    cases: dict[str, Case] = {}
    for q_len, kv_len in sorted(lens):
        sizes = f"q_len {q_len}, kv_len {kv_len}"
        cases[f"{sizes}: other mates"] = functools.partial(_mates, under, q_len, kv_len)
        cases[f"{sizes}: NaN around"] = functools.partial(_nan_around, under, q_len, kv_len)
    cases["an infinite neighbour"] = functools.partial(_infinite_neighbour, under)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _mates(under: Subject, q_len: int, kv_len: int, checks: Checks) -> None:
    """Alone, last, first, and between longer and shorter sequences: the same bits."""
    name = f"mates {q_len} {kv_len}"
    own = harness.problem(under, name, [q_len], [kv_len])
    others = harness.problem(under, f"others of {name}", [3, 1100, 129], [500, 1150, 7])
    mates = [batches.sequence_of(others, index) for index in range(3)]
    wanted = harness.launch(under, {**own, "max_seqlen_q": _CAPACITY}, checks)
    checks.true("the row alone is finite", bool(torch.isfinite(wanted.float()).all()))
    for place, batch, index in (
        ("first", [own, *mates], 0),
        ("last", [*mates, own], 3),
        ("after a short one", [mates[0], own, mates[1]], 1),
        ("after a long one", [mates[1], own, mates[2]], 1),
        ("after itself", [own, own], 1),
    ):
        before = sum(one["q_nope"].shape[0] for one in batch[:index])
        arguments = {**batches.joined(batch), "max_seqlen_q": _CAPACITY}
        out = under.kernel(**arguments)[before : before + q_len]
        checks.true("bits are those of the sequence alone", batches.same_bits(out, wanted), place)
    own_capacity = under.kernel(**own)
    checks.true("bits with the exact capacity", batches.same_bits(own_capacity, wanted))


def _nan_around(under: Subject, q_len: int, kv_len: int, checks: Checks) -> None:
    """NaN sequences on both sides, then the last sequence with NaN tokens beyond it in the tensors."""
    name = f"nan {q_len} {kv_len}"
    own = harness.problem(under, name, [q_len], [kv_len])
    tail = harness.problem(under, f"tail of {name}", [_TAIL_TOKENS], [_TAIL_TOKENS])
    poison = batches.filled_with_nan(tail)
    wanted = harness.launch(under, own, checks)
    checks.true("the sequence alone gives no NaN", bool(torch.isfinite(wanted.float()).all()))
    between = batches.joined([poison, own, poison])
    out = under.kernel(**between)[_TAIL_TOKENS : _TAIL_TOKENS + q_len]
    checks.true("NaN sequences on both sides change nothing", batches.same_bits(out, wanted))
    beyond = batches.joined([own, poison])
    # Without the last cumulative length the NaN tokens belong to no sequence.
    short = {side: beyond[side][:-1].contiguous() for side in ("cu_seqlens_q", "cu_seqlens_k")}
    out = under.kernel(**{**beyond, **short})[:q_len]
    checks.true("NaN tokens beyond the end change nothing", batches.same_bits(out, wanted))


def _infinite_neighbour(under: Subject, checks: Checks) -> None:
    """Infinities in the bf16 tensors, and the largest codes and scales elsewhere."""
    own = harness.problem(under, "beside infinity", [77], [333])
    mate = harness.problem(under, "infinity", [200], [200])
    largest = {1: 0x7E, 2: 0x7F80, 4: 0x7F7FFFFF}
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v", "q_scale", "k_scale"):
        if name in mate:
            codes = batches.bits(mate[name])
            mate[name] = torch.full_like(codes, largest[codes.element_size()]).view(mate[name].dtype)
    wanted = harness.launch(under, own, checks)
    out = under.kernel(**batches.joined([mate, own, mate]))[200:277]
    checks.true("bits are those of the sequence alone", batches.same_finite_bits(out, wanted))
