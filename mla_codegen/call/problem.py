"""A checked call as numbers: its sizes, its device, and the scale that is in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`sizes` has the extent behind each symbol of the plan's axes, and `batch` in every layout.

    `max_seqlen_q` is the capacity of a ragged call, and the length of all queries of a dense one.
    """

    device: int
    sizes: Mapping[str, int]
    max_seqlen_q: int
    softmax_scale: float

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.sizes["batch"]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.sizes["heads"]

    @property
    def total_q(self) -> int:
        """Queries of the whole batch."""
        return self.sizes["total_q"] if "total_q" in self.sizes else self.batch * self.sizes["q_len"]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        return self.total_q == 0 or self.batch == 0 or self.max_seqlen_q == 0
