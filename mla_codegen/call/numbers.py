"""The numbers of a call: its capacity and its softmax scale."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from mla_codegen.errors import LaunchError

MAX_INT32 = 2**31 - 1
"""The largest token, column or tile that a kernel can count to."""
_LARGEST_SCALE = 1e38
"""The kernel takes softmax_scale * log2(e) as fp32, whose largest number is 3.4e38."""


def checked_max_seqlen(value: object, *, ragged: bool) -> int | None:
    """`max_seqlen_q` of a kernel with ragged or dense queries as an int, None where these are dense.

    LaunchError where it is none or negative, or where queries are dense and it is passed all the same.
    """
    if not ragged:
        if value is None:
            return None
        message = f"max_seqlen_q is {value!r}, but layout.q of the spec is dense, where q_len is the capacity"
        help_text = "leave max_seqlen_q out, or build a spec with layout.q: ragged"
        raise LaunchError.single("max-seqlen", message, help=help_text)
    help_text = "pass the largest query length that this call, or a replay of it, may meet"
    if value is None:
        message = "max_seqlen_q is missing, a number of tokens is needed"
        raise LaunchError.single("max-seqlen", message, help=help_text)
    try:
        tokens = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        message = f"max_seqlen_q is {value!r}, an integer is needed"
        raise LaunchError.single("max-seqlen", message, help=help_text) from None
    if not 0 <= tokens <= MAX_INT32 or isinstance(value, bool):
        message = f"max_seqlen_q is {value!r}, 0 to {MAX_INT32} is allowed"
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
