"""Offsets beyond 32 bits, and counts beyond what a grid dimension takes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import mla_codegen as mla
from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases, spec_path
from tests.gpu.harness import Subject

_HUGE_STRIDE = 2**24
_MANY_SEQUENCES = 70_000
_LONG_QUERY = 70_000
_CHUNK_TOKENS = 1000


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        "70,000 sequences": functools.partial(_many_sequences, under),
        "a query of 70,000 tokens": functools.partial(_long_query, under),
        "batch x heads above 65,535": functools.partial(_batch_times_heads, under),
        "token strides of 2^24 elements": functools.partial(_huge_token_stride, under),
        "head strides of 2^31 elements": functools.partial(_huge_head_stride, under),
        "tensors of more than 2^31 elements": functools.partial(_many_elements, under),
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _many_sequences(under: Subject, checks: Checks) -> None:
    """Some sequences against float64; all of them against the same sequences in two smaller batches."""
    lens = np.random.default_rng(3)
    q_lens = lens.integers(0, 4, _MANY_SEQUENCES).tolist()
    kv_lens = lens.integers(0, 7, _MANY_SEQUENCES).tolist()
    arguments = harness.problem(under, "many sequences", q_lens, kv_lens, heads=1)
    out = harness.launch(under, arguments, checks)
    picked = [*range(20), *range(65_525, 65_545), *range(_MANY_SEQUENCES - 20, _MANY_SEQUENCES)]
    _judge_sequences(under, arguments, out, picked, checks)
    half = _MANY_SEQUENCES // 2
    parts = [_part(arguments, 0, half), _part(arguments, half, _MANY_SEQUENCES)]
    halves = torch.cat([under.kernel(**part) for part in parts])
    checks.true("bits are those of two smaller batches", batches.same_finite_bits(out, halves))


def _part(arguments: Arguments, first: int, end: int) -> Arguments:
    """Sequences `first` to `end` as a batch of their own."""
    q_lens = arguments["cu_seqlens_q"][first : end + 1].diff().tolist()
    kv_lens = arguments["cu_seqlens_k"][first : end + 1].diff().tolist()
    part: Arguments = {}
    for side in ("q", "k"):
        start, stop = arguments[f"cu_seqlens_{side}"][[first, end]].tolist()
        for name, value in arguments.items():
            if name.startswith(side) or (name == "v" and side == "k"):
                part[name] = value[start:stop].clone()
    return batches.with_lens(part, q_lens, kv_lens)


def _judge_sequences(
    under: Subject, arguments: Arguments, out: torch.Tensor, picked: Sequence[int], checks: Checks
) -> None:
    """Compares the rows of some sequences with float64."""
    starts = arguments["cu_seqlens_q"].tolist()
    rows = torch.cat([out[starts[index] : starts[index + 1]] for index in picked])
    sequences = batches.joined([batches.sequence_of(arguments, index) for index in picked])
    harness.judge(under, sequences, rows, checks)


def _long_query(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "long query", [_LONG_QUERY], [_LONG_QUERY], heads=1)
    out = harness.launch(under, arguments, checks)
    rows = batches.some_rows(_LONG_QUERY, 40, under.block_m, 65_536)
    # For rows this long the contract allows 1.5 times the error of short ones.
    harness.judge(under, arguments, out, checks, rows=rows, factor=1.5, row_bound=0.12)
    tail = harness.problem(under, "long query, short keys", [_LONG_QUERY], [1000], heads=2)
    out = harness.launch(under, tail, checks)
    harness.judge(under, tail, out, checks, rows=batches.some_rows(_LONG_QUERY, 60, 69_000, 69_500))


def _batch_times_heads(under: Subject, checks: Checks) -> None:
    batch, heads = 600, 128
    q_lens = [1 + index % 2 for index in range(batch)]
    kv_lens = [index % 5 for index in range(batch)]
    arguments = harness.problem(under, "batch times heads", q_lens, kv_lens, heads=heads)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, heads=(0, 77, 127))


def _far_apart(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor in memory of its own with these strides; the gaps hold anything."""
    span = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, strides, strict=True)) + 1
    wide = torch.empty(span, dtype=batches.bits(tensor).dtype, device=tensor.device)
    view = wide.as_strided(tensor.shape, strides)
    view.copy_(batches.bits(tensor))
    return view.view(tensor.dtype)


def _compare_far_apart(
    under: Subject, base: Arguments, far: Arguments, far_out: torch.Tensor, checks: Checks
) -> None:
    wanted = harness.launch(under, base, checks)
    under.kernel(**{**base, **far}, out=far_out)
    checks.true(
        "bits are those of contiguous tensors", batches.same_finite_bits(far_out.contiguous(), wanted)
    )


def _huge_token_stride(under: Subject, checks: Checks) -> None:
    base = harness.problem(under, "huge token stride", [140], [300])
    tokens, heads = base["q_nope"].shape[:2]
    far = {
        name: _far_apart(base[name], (_HUGE_STRIDE, 128, 1)) for name in ("q_nope", "q_rope", "k_nope", "v")
    }
    far["k_rope"] = _far_apart(base["k_rope"], (_HUGE_STRIDE, 1))
    empty = torch.full(
        (tokens, heads, under.facts.v), float("nan"), dtype=under.out_dtype, device=harness.DEVICE
    )
    far_out = _far_apart(empty, (_HUGE_STRIDE, 128, 1))
    _compare_far_apart(under, base, far, far_out, checks)


def _huge_head_stride(under: Subject, checks: Checks) -> None:
    base = harness.problem(under, "huge head stride", [140], [300], heads=3)
    tokens, heads = base["q_nope"].shape[:2]
    far = {
        name: _far_apart(base[name], (base[name].shape[-1], 2**31, 1)) for name in ("q_nope", "k_nope", "v")
    }
    empty = torch.full(
        (tokens, heads, under.facts.v), float("nan"), dtype=under.out_dtype, device=harness.DEVICE
    )
    far_out = _far_apart(empty, (under.facts.v, 2**31, 1))
    _compare_far_apart(under, base, far, far_out, checks)


def _many_elements(under: Subject, checks: Checks) -> None:
    """17,000 tokens x 1,000 heads x 128: every sequence of 1,000 tokens, the first and the last judged."""
    heads, sequences, length = 1000, 17, 1000
    arguments = _in_chunks(under, sequences * length, heads)
    arguments = batches.with_lens(arguments, [length] * sequences, [length] * sequences)
    checks.at_least("elements of q_nope", arguments["q_nope"].numel(), 2**31)
    tokens = sequences * length
    out = torch.full(
        (tokens, heads, under.facts.v), float("nan"), dtype=under.out_dtype, device=harness.DEVICE
    )
    under.kernel(**arguments, out=out)
    checks.equal("rows with NaN", int(out.isnan().any(dim=-1).sum()), 0)
    for index in (0, sequences - 1):
        own = batches.sequence_of(arguments, index)
        rows = out[index * length : (index + 1) * length]
        picked = batches.some_rows(length, 60)
        harness.judge(under, own, rows, checks, heads=(0, heads - 1), rows=picked)


def _in_chunks(under: Subject, tokens: int, heads: int) -> Arguments:
    """Tensors for `tokens` tokens, quantised piece by piece."""
    facts, spec = under.facts, mla.load_spec(spec_path(under.name))
    random = harness.generator("in chunks")
    pieces = []
    for _ in range(0, tokens, _CHUNK_TOKENS):
        q = harness.normal(random, _CHUNK_TOKENS, heads, facts.nope + facts.rope)
        kv = harness.normal(random, _CHUNK_TOKENS, heads, facts.nope + facts.v)
        k_rope = harness.normal(random, _CHUNK_TOKENS, facts.rope)
        cu = batches.cumulative([_CHUNK_TOKENS])
        pieces.append(
            mla.quantize(spec, q, kv, k_rope, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=_CHUNK_TOKENS)
        )
    return batches.joined(pieces)
