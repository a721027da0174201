"""What `check=True` finds in the run-time data of a call: lengths and scales that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import CallRules
from mla_codegen.errors import Diagnostic

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOTALS = {"cu_seqlens_q": "total_q", "cu_seqlens_k": "total_k"}
"""The axis that cumulative lengths divide into sequences."""


def content_faults(
    rules: CallRules, copies: Mapping[str, NDArray[np.generic]], problem: Problem
) -> Iterator[Diagnostic]:
    """What is wrong with lengths and scales, given by argument name as int32 and fp32 in host memory.

    Scales of tokens behind the last sequence of a ragged batch may be anything.
    """
    used = {total: int(copies[name][-1]) for name, total in _TOTALS.items() if name in copies}
    for name, values in copies.items():
        if name in _TOTALS:
            yield from _length_faults(name, values, problem.sizes[_TOTALS[name]])
        else:
            tokens = used.get(rules.rule(name).axes[0], len(values))
            yield from _scale_faults(name, values[: max(0, tokens)])
    if "cu_seqlens_q" in copies:
        yield from _capacity_faults(copies["cu_seqlens_q"], problem.max_seqlen_q)


def _capacity_faults(cu_seqlens_q: NDArray[np.generic], max_seqlen_q: int) -> Iterator[Diagnostic]:
    lengths = np.diff(cu_seqlens_q)
    if lengths.size and lengths.max() > max_seqlen_q:
        yield Diagnostic(
            code="max-seqlen",
            message=f"sequence {int(lengths.argmax())} has {int(lengths.max())} queries, max_seqlen_q is "
            f"{max_seqlen_q}",
            help="pass a max_seqlen_q that no sequence exceeds",
        )


def _length_faults(name: str, values: NDArray[np.generic], total: int) -> Iterator[Diagnostic]:
    if values[0] != 0 or values[-1] > total:
        yield Diagnostic(
            code="cu-seqlens",
            message=f"{name} runs from {int(values[0])} to {int(values[-1])}, "
            f"from 0 to at most {total} tokens is needed",
            help="pass cumulative lengths of tokens that the tensors have",
        )
    falls = np.flatnonzero(np.diff(values) < 0)
    if falls.size:
        place = int(falls[0])
        yield Diagnostic(
            code="cu-seqlens",
            message=f"{name} falls from {int(values[place])} to {int(values[place + 1])} "
            f"at sequence {place}, it may only rise",
            help="pass cumulative lengths",
        )


def _scale_faults(name: str, values: NDArray[np.generic]) -> Iterator[Diagnostic]:
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)).ravel())
    if wrong.size:
        place = [int(index) for index in np.unravel_index(wrong[0], values.shape)]
        yield Diagnostic(
            code="scale",
            message=f"{name} is {values.ravel()[wrong[0]]} at {place}, "
            "a finite number of at least 0 is needed",
            help="quantise again; mla_codegen.quantize gives legal scales",
        )
