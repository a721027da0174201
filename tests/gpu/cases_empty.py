"""Sequences without queries or keys, queries that see no key, batches without anything."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import Subject

_CAPTURE_THREAD_LOCAL = 1
_Q_LENS = (130, 5, 300, 64)
_KV_LENS = (200, 77, 300, 1)
_EMPTY = {
    "no queries": ((0, 40),),
    "no keys": ((7, 0),),
    "no queries and no keys": ((0, 0),),
    "all kinds in a row": ((0, 40), (7, 0), (0, 0), (201, 0), (0, 1)),
}
_PLACES = {"first": (0,), "last": (4,), "between": (1, 2, 3), "everywhere": (0, 1, 2, 3, 4)}


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        f"{kind}, {place}": functools.partial(_inserted, under, kind, place)
        for kind in _EMPTY
        for place in _PLACES
    }
    cases |= {
        "batch of 0": functools.partial(_nothing, under, [], []),
        "no query in the batch": functools.partial(_nothing, under, [0, 0, 0], [5, 0, 200]),
        "no token in the batch": functools.partial(_nothing, under, [0, 0], [0, 0]),
        "no key in the batch": functools.partial(_no_keys, under),
        "more queries than keys": functools.partial(_more_queries, under),
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _inserted(under: Subject, kind: str, place: str, checks: Checks) -> None:
    """Empty sequences give 0, and the other rows keep their bits."""
    base = harness.problem(under, "base of empty", _Q_LENS, _KV_LENS)
    filled = [batches.sequence_of(base, index) for index in range(len(_Q_LENS))]
    q_empty, kv_empty = zip(*_EMPTY[kind], strict=True)
    other = harness.problem(under, f"empty {kind}", q_empty, kv_empty)
    empty = [batches.sequence_of(other, index) for index in range(len(q_empty))]
    mixed: list[tuple[Arguments, bool]] = []
    for index in range(len(filled) + 1):
        if index in _PLACES[place]:
            mixed += [(sequence, False) for sequence in empty]
        mixed += [(sequence, True) for sequence in filled[index : index + 1]]
    alone = {**base, "max_seqlen_q": 400}
    together = {**batches.joined([sequence for sequence, _ in mixed]), "max_seqlen_q": 400}
    out = harness.launch(under, together, checks)
    wanted = harness.launch(under, alone, checks)
    is_filled = torch.cat(
        [torch.full((sequence["q_nope"].shape[0],), flag, device=out.device) for sequence, flag in mixed]
    )
    checks.true(
        "rows beside empty sequences keep their bits", batches.same_finite_bits(out[is_filled], wanted)
    )
    checks.equal("elements that are not 0 in rows without keys", int((out[~is_filled] != 0).sum()), 0)


def _nothing(under: Subject, q_lens: list[int], kv_lens: list[int], checks: Checks) -> None:
    """No kernel is launched, whatever the capacity says."""
    arguments = harness.problem(under, f"nothing {q_lens}", q_lens, kv_lens)
    out = under.kernel(**arguments)
    checks.equal("shape of the output", list(out.shape), [0, 2, under.facts.v])
    for capacity in (0, 500):
        empty = {**arguments, "max_seqlen_q": capacity, "out": out}
        checks.equal("kernels launched", launches_of(functools.partial(under.kernel, **empty)), 0)
    other = harness.problem(under, "something", [1], [1])
    checks.equal("kernels launched for one query", launches_of(functools.partial(under.kernel, **other)), 1)


def launches_of(call: Callable[..., Any]) -> int:
    """What a call with `stream=` launches, counted as the nodes of a graph into which it is captured."""
    library = ctypes.CDLL("libcuda.so.1")
    stream = torch.cuda.Stream()
    handle, graph, count = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(), ctypes.c_size_t()
    assert library.cuStreamBeginCapture_v2(handle, _CAPTURE_THREAD_LOCAL) == 0
    try:
        call(stream=stream.cuda_stream)
    finally:
        ended = library.cuStreamEndCapture(handle, ctypes.byref(graph))
    assert ended == 0, f"capture ended with {ended}"
    assert library.cuGraphGetNodes(graph, None, ctypes.byref(count)) == 0
    library.cuGraphDestroy(graph)
    return count.value


def _no_keys(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "no keys", [3, 0, 300], [0, 0, 0])
    out = harness.launch(under, arguments, checks)
    checks.equal("elements that are not 0", int((out != 0).sum()), 0)


def _more_queries(under: Subject, checks: Checks) -> None:
    q_lens, kv_lens = (300, 700, 5, 400, 2, 193), (20, 1, 4, 399, 1, 97)
    arguments = harness.problem(under, "more queries", q_lens, kv_lens)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks)
    if not under.facts.causal:
        return
    starts = arguments["cu_seqlens_q"].tolist()
    for start, q_len, kv_len in zip(starts, q_lens, kv_lens, strict=False):
        top = out[start : start + q_len - kv_len]
        where = f"q_len {q_len}, kv_len {kv_len}"
        checks.equal("elements that are not 0 in rows that see nothing", int((top != 0).sum()), 0, where)
        first_seen = out[start + q_len - kv_len]
        checks.true("the first row that sees a key is not 0", bool((first_seen != 0).any()), where)
