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
