"""Numbers of the softmax: when the reference point of the rows moves, and by how much P is lifted."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.sm100.operands import Operands

_RANGE_LOG2 = 8
"""log2 of the largest P: 2^8 = 256 leaves room below 448, the largest e4m3 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxNumbers:
    """Exponents to base 2 (the seed, softmax).

    Where no row's maximum grows by more than ``-rescale_threshold_log2``, the old one stays the reference
    point, so that P reaches 2^(lift - threshold). ``p_lift_log2`` is 0 for 16-bit P; it is part of the row
    sum too, so that it cancels, and has no part in a log-sum-exp.
    """

    rescale_threshold_log2: int
    p_lift_log2: int

    @property
    def largest_p_log2(self) -> int:
        """log2 of the largest P that is rounded."""
        return self.p_lift_log2 - self.rescale_threshold_log2


def softmax_numbers(operands: Operands) -> SoftmaxNumbers:
    """-2 and 2^6 for e4m3, -8 and 1 for 16-bit types."""
    threshold = -2 if operands.qkv_bytes == 1 else -8
    lift = _RANGE_LOG2 + threshold
    return SoftmaxNumbers(rescale_threshold_log2=threshold, p_lift_log2=lift)


# 2^f = C0 + C1 f + C2 f^2 + C3 f^3 on [0, 1): the polynomial whose largest relative error is smallest, by the
# exchange algorithm (tests/unit/test_sm100_softmax.py has it), rounded to fp32.
EXP2_COEFFICIENTS = (0.9999251961708069, 0.6958335638046265, 0.22606715559959412, 0.07802452147006989)
EXP2_ERROR = 7.5e-5
"""Largest error of the polynomial, relative to 2^f."""
EXP2_ROUND_TO_INTEGER = 12582912.0
"""1.5 * 2^23: in a sum with it that is rounded down, the last bits are the integer part."""
