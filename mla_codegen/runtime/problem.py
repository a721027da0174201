"""A checked call as numbers: its sizes, its device, and the scale that is in force."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Tokens are counted over the whole batch; `heads` are query heads."""

    device: int
    batch: int
    heads: int
    total_q: int
    total_k: int
    max_seqlen_q: int
    softmax_scale: float

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        return self.batch == 0 or self.total_q == 0 or self.max_seqlen_q == 0
