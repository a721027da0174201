"""Host copies of a kernel's arguments in the one form that the float64 reference works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mla_codegen.arrays import host_values, to_host
from mla_codegen.tensors import (
    TensorFacts,
    check_axes,
    check_cu_seqlens,
    check_heads,
    dense_v_width,
    transposed_v_columns,
    transposed_v_width,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProblem:
    """Host copies with dense batches flattened: tokens first; scales broadcastable to [tokens, heads]."""

    q_nope: np.ndarray
    q_rope: np.ndarray | None
    k_nope: np.ndarray
    k_rope: np.ndarray | None  # [tokens, rope]
    v: np.ndarray
    q_scale: np.ndarray
    k_scale: np.ndarray
    v_scale: np.ndarray
    k_rope_scale: np.ndarray
    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray


def host_problem(
    facts: TensorFacts, tensors: Mapping[str, Any], scales: Mapping[str, Any], lengths: Mapping[str, Any]
) -> HostProblem:
    """Copies everything to the host, flattens dense batches and checks the shapes against each other.

    Args:
        facts: of the spec.
        tensors: q_nope, q_rope, k_nope, k_rope, v as stored.
        scales: q_scale, k_scale, v_scale, k_rope_scale; None where the spec has none.
        lengths: cu_seqlens_q, cu_seqlens_k; None for dense tensors.

    Raises:
        ValueError: a shape or dtype does not fit the spec or the other tensors.
    """
    q_nope = _tokens(tensors["q_nope"], facts.qkv_dtype, facts.q_ragged, 2, "q_nope", facts.nope)
    k_nope = _tokens(tensors["k_nope"], facts.qkv_dtype, facts.kv_ragged, 2, "k_nope", facts.nope)
    total_q, total_k, heads, kv_heads = q_nope.shape[0], k_nope.shape[0], q_nope.shape[1], k_nope.shape[1]
    check_heads(facts, heads, kv_heads)
    cu_q = _cu_seqlens("cu_seqlens_q", lengths["cu_seqlens_q"], tensors["q_nope"], total_q)
    cu_k = _cu_seqlens("cu_seqlens_k", lengths["cu_seqlens_k"], tensors["k_nope"], total_k)
    if cu_q.size != cu_k.size:
        raise ValueError(
            f"{cu_q.size - 1} query sequences but {cu_k.size - 1} key sequences, give as many of each"
        )
    q_rope = k_rope = None
    if facts.rope:
        q_rope = _tokens(tensors["q_rope"], facts.rope_dtype, facts.q_ragged, 2, "q_rope", facts.rope)
        k_rope = _rope_tokens(facts, tensors["k_rope"])
        _check_shape("q_rope", q_rope.shape, (total_q, heads, facts.rope))
        _check_shape("k_rope", k_rope.shape, (total_k, facts.rope))
    v = _v_rows(facts, tensors["v"], cu_k, total_k)
    _check_shape("v", v.shape, (total_k, kv_heads, facts.v))
    return HostProblem(
        q_nope=q_nope,
        q_rope=q_rope,
        k_nope=k_nope,
        k_rope=k_rope,
        v=v,
        q_scale=_scale("q_scale", scales["q_scale"], facts.q_scale, total_q, heads),
        k_scale=_scale("k_scale", scales["k_scale"], facts.k_scale, total_k, kv_heads),
        v_scale=_scale("v_scale", scales["v_scale"], facts.v_scale, total_k, kv_heads),
        k_rope_scale=_scale("k_rope_scale", scales["k_rope_scale"], facts.k_rope_scale, total_k, 1),
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
    )


def _tokens(array: Any, dtype: str, ragged: bool, trailing: int, name: str, depth: int) -> np.ndarray:
    """Values with batch and length as one axis, followed by `trailing` axes, the last of extent `depth`."""
    shape, leading = tuple(array.shape), 1 if ragged else 2
    check_axes(name, shape, ragged, trailing, depth)
    values = host_values(array, dtype)
    return values.reshape(int(np.prod(shape[:leading])), *shape[leading:])


def _rope_tokens(facts: TensorFacts, array: Any) -> np.ndarray:
    """Values of k_rope as [tokens, rope], from a tensor with or without an axis for its one head."""
    one_head = len(array.shape) == (3 if facts.kv_ragged else 4)
    values = _tokens(array, facts.rope_dtype, facts.kv_ragged, 2 if one_head else 1, "k_rope", facts.rope)
    if one_head and values.shape[1] != 1:
        raise ValueError(f"k_rope has {values.shape[1]} heads, it has one that all query heads share")
    return values.reshape(values.shape[0], facts.rope)


def _v_rows(facts: TensorFacts, array: Any, cu_seqlens_k: np.ndarray, total_k: int) -> np.ndarray:
    """Values of V as [tokens, kv heads, v], whatever its layout."""
    if not facts.v_transposed:
        return _tokens(array, facts.qkv_dtype, facts.kv_ragged, 2, "v", facts.v)
    values = host_values(array, facts.qkv_dtype)
    if facts.kv_ragged:
        width = transposed_v_width(cu_seqlens_k, total_k)
        _check_shape("v", values.shape, (*values.shape[:1], facts.v, width))
        rows = np.zeros((total_k, values.shape[0], facts.v), dtype=values.dtype)
        rows[: cu_seqlens_k[-1]] = values[:, :, transposed_v_columns(cu_seqlens_k)].transpose(2, 0, 1)
        return rows
    batch = cu_seqlens_k.size - 1
    kv_len = total_k // batch if batch else 0
    _check_shape("v", values.shape, (batch, *values.shape[1:2], facts.v, dense_v_width(kv_len)))
    rows = values[..., transposed_v_columns(np.array([0, kv_len]))].transpose(0, 3, 1, 2)
    return rows.reshape(total_k, values.shape[1], facts.v)


def _cu_seqlens(name: str, given: Any, tensor: Any, total: int) -> np.ndarray:
    """Cumulative lengths as int64: the checked argument, or those of a dense tensor [batch, length, ...]."""
    if given is not None:
        return check_cu_seqlens(name, to_host(given), total)
    batch, length = tensor.shape[:2]
    return np.arange(batch + 1, dtype=np.int64) * length


def _scale(name: str, scale: Any, form: str, tokens: int, heads: int) -> np.ndarray:
    """Scale of a declared form as float64, broadcastable to [tokens, heads]; 1 for `none`."""
    if form == "none":
        return np.ones((1, 1))
    values = to_host(scale).astype(np.float64)
    shape = {"tensor": (1, 1), "head": (1, heads), "token": (tokens, 1), "token_head": (tokens, heads)}[form]
    if values.size != shape[0] * shape[1] or (form == "token_head" and values.shape[-1] != heads):
        raise ValueError(f"{name} has shape {values.shape}, form {form} needs {shape[0] * shape[1]} values")
    return values.reshape(shape)


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ValueError(f"{name} has shape {found} where the other tensors need {wanted}")


def check_capacity(facts: TensorFacts, problem: HostProblem, max_seqlen_q: int | None) -> None:
    if max_seqlen_q is None:
        return
    if not facts.q_ragged:
        raise ValueError(f"max_seqlen_q {max_seqlen_q} is given for dense queries, leave it out")
    longest = int(np.diff(problem.cu_seqlens_q).max(initial=0))
    if max_seqlen_q < longest:
        raise ValueError(f"max_seqlen_q {max_seqlen_q} is below the longest length {longest}, raise it")
