"""What a spec says about the kernel's tensors: dtypes, dimensions, scale forms, layouts, argument names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

# Position p of each group of 16 tokens of a transposed V holds token PERM16[p]: the order in which a thread's
# score fragments become operand bytes of the second product.
PERM16 = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
V_GROUP_TOKENS = 16

SCALE_FORMS = ("none", "tensor", "head", "token", "token_head")


class SpecObject(Protocol):
    """A validated spec."""

    def to_mapping(self) -> Mapping[str, Any]:
        """The spec as a plain mapping with the keys of the YAML file."""


SpecLike: TypeAlias = "SpecObject | Mapping[str, Any] | str | os.PathLike[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """The part of a spec that decides what the kernel's tensors mean; `heads` None means any number."""

    qkv_dtype: str
    rope_dtype: str
    out_dtype: str
    nope: int
    rope: int
    v: int
    heads: int | None
    group: int
    q_scale: str
    k_scale: str
    v_scale: str
    k_rope_scale: str
    rope_prescaled: bool
    causal: bool
    q_ragged: bool
    kv_ragged: bool
    v_transposed: bool
    lse: str
    lse_layout: str

    def declared_arguments(self) -> dict[str, bool]:
        """Optional kernel arguments -> whether this spec requires (True) or rejects (False) them."""
        return {
            "q_rope": self.rope > 0,
            "k_rope": self.rope > 0,
            "q_scale": self.q_scale != "none",
            "k_scale": self.k_scale != "none",
            "v_scale": self.v_scale != "none",
            "k_rope_scale": self.k_rope_scale != "none",
            "cu_seqlens_q": self.q_ragged,
            "cu_seqlens_k": self.kv_ragged,
        }


def spec_mapping(spec: SpecLike) -> Mapping[str, Any]:
    """Plain mapping of a Spec, of a mapping (returned as it is) or of the YAML file at a path."""
    if isinstance(spec, Mapping):
        return spec
    if isinstance(spec, (str, os.PathLike)):
        from mla_codegen.spec_loader import load_spec

        spec = load_spec(spec)
    return spec.to_mapping()


def tensor_facts(spec: SpecLike) -> TensorFacts:
    """Reads the facts off a spec; fields that a mapping leaves out take the defaults of the spec.

    Raises:
        ValueError: the spec asks for a mask, a layout or a softmax that float64 attention here does not know.
    """
    mapping = spec_mapping(spec)
    dtypes, dims = mapping["dtypes"], mapping["dims"]
    scales, heads = mapping.get("scales") or {}, mapping.get("heads") or {}
    layout, softmax = mapping.get("layout") or {}, mapping.get("softmax") or {}
    mask = _known("mask", mapping.get("mask", "full"), ("full", "causal"))
    _known("softmax.sink", softmax.get("sink", False), (False,))
    _known("softmax.softcap", softmax.get("softcap"), (None,))
    head_count = heads.get("q", "any")
    rope_default = "bf16" if dtypes["qkv"] == "e4m3" else dtypes["qkv"]
    scaled = any(scales.get(name, "none") != "none" for name in ("q", "k"))
    if scaled and dims["rope"] > 0 and scales.get("rope") is None:
        raise ValueError("scales.rope is missing though q or k has scales, give prescaled or raw")
    return TensorFacts(
        qkv_dtype=_known("dtypes.qkv", dtypes["qkv"], ("e4m3", "bf16", "f16")),
        rope_dtype=_known("dtypes.rope_gmem", dtypes.get("rope_gmem", rope_default), ("e4m3", "bf16", "f16")),
        out_dtype=dtypes.get("out", "bf16"),
        nope=dims["nope"],
        rope=dims["rope"],
        v=dims["v"],
        heads=None if head_count == "any" else head_count,
        group=heads.get("group", 1),
        q_scale=_known("scales.q", scales.get("q", "none"), SCALE_FORMS),
        k_scale=_known("scales.k", scales.get("k", "none"), SCALE_FORMS),
        v_scale=_known("scales.v", scales.get("v", "none"), SCALE_FORMS),
        k_rope_scale=_known("scales.rope_k", scales.get("rope_k", "none"), ("none", "token")),
        rope_prescaled=_known("scales.rope", scales.get("rope"), ("prescaled", "raw", None)) == "prescaled",
        causal=mask == "causal",
        q_ragged=_known("layout.q", layout.get("q", "ragged"), ("ragged", "dense")) == "ragged",
        kv_ragged=_known("layout.kv", layout.get("kv", "ragged"), ("ragged", "dense")) == "ragged",
        v_transposed=_known("layout.v", layout.get("v", "rows"), ("rows", "transposed")) == "transposed",
        lse=softmax.get("lse", "none"),
        lse_layout=softmax.get("lse_layout", "head_token"),
    )


def _known(field: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """`value` if it is one of `allowed`; else ValueError."""
    if not any(value == choice and type(value) is type(choice) for choice in allowed):
        names = ", ".join(str(choice) for choice in allowed)
        raise ValueError(f"{field} {value!r} is not supported here, allowed are {names}")
    return value


def check_arguments(facts: TensorFacts, given: Mapping[str, Any]) -> None:
    """Checks that exactly the optional arguments are there that the spec declares.

    Args:
        facts: of the spec.
        given: argument name -> value or None, for a part of the names in `facts.declared_arguments()`.

    Raises:
        ValueError: names every missing and every rejected argument.
    """
    declared = facts.declared_arguments()
    missing = [name for name, value in given.items() if declared[name] and value is None]
    rejected = [name for name, value in given.items() if not declared[name] and value is not None]
    faults = []
    if missing:
        faults.append(f"missing {', '.join(missing)}")
    if rejected:
        faults.append(f"not declared {', '.join(rejected)}")
    if faults:
        needed = ", ".join(name for name in given if declared[name]) or "none of the optional ones"
        raise ValueError(f"arguments do not fit the spec: {'; '.join(faults)}; it takes {needed}")


def check_heads(facts: TensorFacts, heads: int, kv_heads: int) -> None:
    """Checks head counts of queries and keys against the spec's number and group; ValueError names both."""
    if heads != kv_heads * facts.group or facts.heads not in (None, heads):
        wanted = "any number" if facts.heads is None else facts.heads
        found = f"{heads} query heads on {kv_heads} KV heads"
        raise ValueError(f"{found} do not fit the spec, it has {wanted} in groups of {facts.group}")


def check_axes(name: str, shape: tuple[int, ...], ragged: bool, trailing: int, depth: int) -> None:
    """Checks for [tokens, ...] or, dense, [batch, length, ...] with `trailing` axes, the last of `depth`.

    Raises:
        ValueError: the shape is another.
    """
    axes = trailing + (1 if ragged else 2)
    if len(shape) != axes or shape[-1] != depth:
        kind = "ragged" if ragged else "dense"
        raise ValueError(f"{name} has shape {shape}, a {kind} one has {axes} axes, the last of {depth}")


def check_cu_seqlens(name: str, cu_seqlens: np.ndarray, total: int) -> np.ndarray:
    """Checks cumulative lengths [batch + 1] against `total` tokens; gives them as int64.

    Raises:
        ValueError: wrong rank or dtype, not starting at 0, falling, or beyond the tensor.
    """
    if cu_seqlens.ndim != 1 or cu_seqlens.size == 0 or cu_seqlens.dtype.kind not in "iu":
        found = f"{cu_seqlens.dtype.name}{list(cu_seqlens.shape)}"
        raise ValueError(f"{name} is {found}, give int32 [batch + 1] starting with 0")
    cu_seqlens = cu_seqlens.astype(np.int64)
    if cu_seqlens[0] != 0 or np.any(np.diff(cu_seqlens) < 0) or cu_seqlens[-1] > total:
        raise ValueError(
            f"{name} is {cu_seqlens.tolist()[:8]}, it must rise from 0 to at most {total} tokens"
        )
    return cu_seqlens


def transposed_v_width(cu_seqlens_k: np.ndarray, total_k: int) -> int:
    """Columns of a ragged transposed V: 16 * (total_k // 16 + batch)."""
    return ragged_v_width(len(cu_seqlens_k) - 1, total_k)


def ragged_v_width(batch: int, total_k: int) -> int:
    """Columns of a ragged transposed V of `batch` sequences: 16 * (total_k // 16 + batch)."""
    return V_GROUP_TOKENS * (total_k // V_GROUP_TOKENS + batch)


def dense_v_width(kv_len: int) -> int:
    """Columns of each sequence of a dense transposed V: 16 * ceil(kv_len / 16)."""
    return -(-kv_len // V_GROUP_TOKENS) * V_GROUP_TOKENS


def transposed_v_columns(cu_seqlens_k: np.ndarray) -> np.ndarray:
    """Column of each token in a transposed V, int64 [cu_seqlens_k[-1]].

    Sequence b starts at column 16 * (cu_seqlens_k[b] // 16 + b); inside, tokens stand in groups of 16, each
    permuted by `PERM16`. A dense V is one sequence of kv_len tokens.
    """
    cu_seqlens_k = np.asarray(cu_seqlens_k, dtype=np.int64)
    starts = V_GROUP_TOKENS * (cu_seqlens_k[:-1] // V_GROUP_TOKENS + np.arange(len(cu_seqlens_k) - 1))
    lengths = np.diff(cu_seqlens_k)
    token = np.arange(cu_seqlens_k[-1]) - np.repeat(cu_seqlens_k[:-1], lengths)
    position = np.argsort(np.array(PERM16))
    group_start = token // V_GROUP_TOKENS * V_GROUP_TOKENS
    return np.repeat(starts, lengths) + group_start + position[token % V_GROUP_TOKENS]
