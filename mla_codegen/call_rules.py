"""Rules of a call on the GPU and in the emulator alike: its numbers, and outputs that overlap themselves."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence

from mla_codegen.errors import LaunchError

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
