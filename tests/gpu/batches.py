"""Batches as tensors by argument name: taken apart, put together, filled with NaN, compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Arguments: TypeAlias = dict[str, Any]
"""Arguments of a kernel by name."""

CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Bytes of an element -> the integers that show its bits."""

NAN_CODES = {1: 0x7F, 2: 0x7FC0, 4: 0x7FC00000}
"""Bytes of an element -> the bits of a NaN: e4m3, bf16, f32."""

_TOKENS = {
    "q_nope": "q",
    "q_rope": "q",
    "q_scale": "q",
    "k_nope": "k",
    "k_rope": "k",
    "v": "k",
    "k_scale": "k",
}


def cumulative(lens: Sequence[int]) -> np.ndarray:
    """[0, len 0, len 0 + len 1, ...] as int32."""
    return np.concatenate([[0], np.cumsum(lens, dtype=np.int64)]).astype(np.int32)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of their width."""
    return tensor.view(CODES[tensor.element_size()])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(bits(one), bits(other)))


def same_finite_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bits, and no infinity or NaN among them."""
    return same_bits(one, other) and bool(torch.isfinite(one.float()).all())


def picked_heads(tensor: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
    """A contiguous copy of some heads of [tokens, heads, depth]."""
    return bits(tensor)[:, list(heads)].contiguous().view(tensor.dtype)


def repeated(tensor: torch.Tensor, times: int) -> torch.Tensor:
    """A contiguous copy of [1, ...] with its one token `times` times."""
    return bits(tensor).expand(times, *tensor.shape[1:]).contiguous().view(tensor.dtype)


def sequence_of(arguments: Mapping[str, Any], index: int) -> Arguments:
    """The arguments of one sequence of a batch, as a batch of its own (views, not copies)."""
    lens = {"q": arguments["cu_seqlens_q"], "k": arguments["cu_seqlens_k"]}
    ends = {side: cu[index : index + 2].tolist() for side, cu in lens.items()}
    parts: Arguments = {
        name: arguments[name][slice(*ends[side])] for name, side in _TOKENS.items() if name in arguments
    }
    return with_lens(parts, [ends["q"][1] - ends["q"][0]], [ends["k"][1] - ends["k"][0]])


def joined(sequences: Sequence[Mapping[str, Any]]) -> Arguments:
    """One batch of batches of one sequence each."""
    names = [name for name in _TOKENS if name in sequences[0]]
    parts: Arguments = {name: torch.cat([bits(one[name]) for one in sequences]) for name in names}
    parts = {name: codes.view(sequences[0][name].dtype) for name, codes in parts.items()}
    lens = {
        side: [int(one[f"cu_seqlens_{side}"][1] - one[f"cu_seqlens_{side}"][0]) for one in sequences]
        for side in ("q", "k")
    }
    return with_lens(parts, lens["q"], lens["k"])


def with_lens(parts: Mapping[str, Any], q_lens: Sequence[int], kv_lens: Sequence[int]) -> Arguments:
    """`parts` with cumulative lengths and the longest query."""
    lengths = {"cu_seqlens_q": cumulative(q_lens), "cu_seqlens_k": cumulative(kv_lens)}
    device = parts["q_nope"].device
    placed = {name: torch.as_tensor(cu, device=device) for name, cu in lengths.items()}
    return {**parts, **placed, "max_seqlen_q": max(q_lens, default=0)}


def filled_with_nan(sequence: Mapping[str, Any]) -> Arguments:
    """The same sequence with NaN in every tensor and scale."""
    filled = dict(sequence)
    for name in _TOKENS:
        if name in sequence:
            codes = bits(sequence[name])
            filled[name] = torch.full_like(codes, NAN_CODES[codes.element_size()]).view(sequence[name].dtype)
    return filled


def some_rows(length: int, count: int, *marks: int) -> np.ndarray:
    """About `count` rows spread over a query, its ends, and the rows around each mark."""
    near = [mark + step for mark in (0, *marks, length - 1) for step in (-1, 0, 1)]
    spread = np.linspace(0, max(length - 1, 0), count).astype(np.int64)
    rows = np.unique(np.concatenate([spread, near]))
    return rows[(rows >= 0) & (rows < length)]
