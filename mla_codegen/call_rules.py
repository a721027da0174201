"""Rules of a call on the GPU and in the emulator alike: its numbers, contents and overlaps."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mla_codegen.errors import Diagnostic, LaunchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_INT32 = 2**31 - 1
_LARGEST_SCALE = 1e38
"""The kernel takes softmax_scale * log2(e) as fp32, whose largest number is 3.4e38."""


def checked_max_seqlen(value: object) -> int:
    """`max_seqlen_q` as an int; LaunchError where it is none or negative."""
    help_text = "pass the largest query length that this call, or a replay of it, may meet"
    if value is None:
        message = "max_seqlen_q is missing, a number of tokens is needed"
        raise LaunchError.single("max-seqlen", message, help=help_text)
    try:
        tokens = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        message = f"max_seqlen_q is {value!r}, an integer is needed"
        raise LaunchError.single("max-seqlen", message, help=help_text) from None
    if not 0 <= tokens <= _MAX_INT32 or isinstance(value, bool):
        message = f"max_seqlen_q is {value!r}, 0 to {_MAX_INT32} is allowed"
        raise LaunchError.single("max-seqlen", message, help=help_text)
    return tokens


def default_softmax_scale(dims: Mapping[str, int]) -> float:
    """1 / sqrt(nope + rope)."""
    return 1.0 / math.sqrt(dims["nope"] + dims["rope"])


def checked_softmax_scale(value: object, default: float) -> float:
    """`softmax_scale` as a float, or the default; LaunchError where it is no number from 0 to 1e38."""
    if value is None:
        return default
    help_text = "leave it out for 1 / sqrt(nope + rope)"
    try:
        scale = float(value)  # type: ignore[arg-type]
    except OverflowError:
        scale = math.inf
    except (TypeError, ValueError):
        message = f"softmax_scale is {value!r}, a number is needed"
        raise LaunchError.single("softmax-scale", message, help=help_text) from None
    if not 0 <= scale <= _LARGEST_SCALE:
        message = f"softmax_scale is {scale}, a number from 0 to {_LARGEST_SCALE:.0e} is needed"
        raise LaunchError.single("softmax-scale", message, help=help_text)
    return scale


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of an array may share memory; shape in elements, strides of above 0 in bytes.

    False only where each axis steps over all of the next inner one, which is what views of whole arrays do.
    """
    axes = sorted((stride, extent) for extent, stride in zip(shape, strides, strict=True) if extent > 1)
    return any(outer < extent * stride for (stride, extent), (outer, _) in itertools.pairwise(axes))


def content_faults(
    copies: Mapping[str, NDArray[np.generic]],
    first_axes: Mapping[str, str],
    *,
    total_q: int,
    total_k: int,
    max_seqlen_q: int,
) -> Iterator[Diagnostic]:
    """What is wrong with lengths and scales, given by argument name as int32 and fp32 in host memory.

    `first_axes` has the symbol of each one's first axis; scales of tokens behind the last sequence may be
    anything.
    """
    totals = {"cu_seqlens_q": total_q, "cu_seqlens_k": total_k}
    used = {"total_q": copies["cu_seqlens_q"][-1], "total_k": copies["cu_seqlens_k"][-1]}
    for name, values in copies.items():
        if name in totals:
            yield from _length_faults(name, values, totals[name])
        else:
            yield from _scale_faults(name, values[: max(0, int(used.get(first_axes[name], len(values))))])
    lengths = np.diff(copies["cu_seqlens_q"])
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
