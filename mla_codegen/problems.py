"""Random attention problems: the same seed gives the same bits, whatever spec quantises them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mla_codegen.fp8 import bf16_codes, bf16_values
from mla_codegen.quantize import quantize
from mla_codegen.tensors import SpecLike, TensorFacts, tensor_facts

DATA_KINDS = ("normal", "mean", "peaked", "outlier")

MEAN_V = 1.0
MEAN_V_SPREAD = 0.25
PEAK_FACTOR = 8.0  # factor of the one large key of each sequence
OUTLIER_LOG2 = (-12.0, 4.0)  # range of the tokens' factors in `outlier` keys and values
OUTLIER_QUERY_LOG2 = (-16.0, 0.0)  # the same for queries, so that scores stay moderate


def random_inputs(
    spec: SpecLike,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_lens: int | Sequence[int],
    kv_lens: int | Sequence[int],
    data: str = "normal",
    seed: int = 0,
) -> dict[str, Any]:
    """True inputs of `quantize` as float32 NumPy arrays that hold bf16 values.

    Args:
        spec: Spec, plain mapping of one, or path of a YAML file: gives dimensions and layouts.
        batch: sequences, by default as many as the length lists have, or 1.
        heads: query heads, by default the spec's number, or the larger of 2 and its group.
        q_lens, kv_lens: lengths in tokens, one for all sequences or one each; dense layouts take one for all.
        data: "normal": all N(0, 1); "mean": V is 1 + 0.25 N(0, 1); "peaked": one key of each sequence is 8
            times as large; "outlier": factors 2^-12 .. 2^4 per key and per value, 2^-16 .. 1 per query, with
            the rope parts left as they are.
        seed: of the random generator.

    Returns:
        q, kv, k_rope and, for ragged layouts, cu_seqlens_q, cu_seqlens_k (int32).

    Raises:
        ValueError: unknown data, or lengths, batch and heads that do not fit each other or the spec.
    """
    facts = tensor_facts(spec)
    if data not in DATA_KINDS:
        raise ValueError(f"data {data!r} is not known, allowed are {', '.join(DATA_KINDS)}")
    q_lens, kv_lens = _lengths(batch, q_lens, kv_lens)
    heads = _heads(facts, heads)
    rng = np.random.default_rng(seed)
    q = _normal(rng, (sum(q_lens), heads, facts.nope + facts.rope))
    kv = _normal(rng, (sum(kv_lens), heads // facts.group, facts.nope + facts.v))
    k_rope = _normal(rng, (sum(kv_lens), facts.rope)) if facts.rope else None
    _shape(rng, data, facts, q, kv, k_rope, kv_lens)
    inputs: dict[str, Any] = {
        "q": _laid_out("q", _bf16(q), q_lens, facts.q_ragged),
        "kv": _laid_out("kv", _bf16(kv), kv_lens, facts.kv_ragged),
        "k_rope": None if k_rope is None else _laid_out("k_rope", _bf16(k_rope), kv_lens, facts.kv_ragged),
    }
    if facts.q_ragged:
        inputs["cu_seqlens_q"] = _cumulative(q_lens)
    if facts.kv_ragged:
        inputs["cu_seqlens_k"] = _cumulative(kv_lens)
    return inputs


def random_problem(
    spec: SpecLike,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_lens: int | Sequence[int],
    kv_lens: int | Sequence[int],
    data: str = "normal",
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments for `kernel(**arguments)` and `reference(spec, **arguments)` as NumPy arrays.

    They are the `random_inputs` of the same parameters, through `quantize`.
    """
    inputs = random_inputs(
        spec, batch=batch, heads=heads, q_lens=q_lens, kv_lens=kv_lens, data=data, seed=seed
    )
    return quantize(spec, **inputs)


def _lengths(
    batch: int | None, q_lens: int | Sequence[int], kv_lens: int | Sequence[int]
) -> tuple[list[int], list[int]]:
    """One query and one key length for each sequence."""
    lists = [lens for lens in (q_lens, kv_lens) if not isinstance(lens, int)]
    if batch is None:
        batch = max((len(lens) for lens in lists), default=1)
    expanded = [[lens] * batch if isinstance(lens, int) else list(lens) for lens in (q_lens, kv_lens)]
    for name, lens in zip(("q_lens", "kv_lens"), expanded, strict=True):
        if len(lens) != batch or any(length < 0 for length in lens):
            raise ValueError(f"{name} is {lens}, give one length or {batch} of them, each 0 or more")
    return expanded[0], expanded[1]


def _heads(facts: TensorFacts, heads: int | None) -> int:
    if heads is None:
        heads = max(2, facts.group) if facts.heads is None else facts.heads
        heads += -heads % facts.group
    if heads < 1 or heads % facts.group or facts.heads not in (None, heads):
        wanted = f"a multiple of {facts.group}" if facts.heads is None else f"{facts.heads}"
        raise ValueError(f"heads is {heads}, the spec allows {wanted}")
    return heads


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _bf16(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to bf16."""
    return bf16_values(bf16_codes(values))


def _cumulative(lens: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)


def _laid_out(name: str, tokens: np.ndarray, lens: Sequence[int], ragged: bool) -> np.ndarray:
    """[total, ...] as it is for ragged layouts, else as [batch, length, ...]."""
    if ragged:
        return tokens
    if len(set(lens)) > 1:
        raise ValueError(f"{name} is dense but its lengths are {list(lens)}, give one length for all")
    return tokens.reshape(len(lens), lens[0] if lens else 0, *tokens.shape[1:])


def _shape(
    rng: np.random.Generator,
    data: str,
    facts: TensorFacts,
    q: np.ndarray,
    kv: np.ndarray,
    k_rope: np.ndarray | None,
    kv_lens: Sequence[int],
) -> None:
    """Turns N(0, 1) in place into the kind of data asked for."""
    k_nope, v = kv[..., : facts.nope], kv[..., facts.nope :]
    if data == "mean":
        v *= MEAN_V_SPREAD
        v += MEAN_V
    elif data == "peaked":
        starts = _cumulative(kv_lens)[:-1]
        keys = [int(start + rng.integers(n)) for start, n in zip(starts, kv_lens, strict=True) if n]
        for part in (k_nope, k_rope):
            if part is not None:
                part[keys] *= PEAK_FACTOR
    elif data == "outlier":
        for part, bounds in (
            (q[..., : facts.nope], OUTLIER_QUERY_LOG2),
            (k_nope, OUTLIER_LOG2),
            (v, OUTLIER_LOG2),
        ):
            part *= np.exp2(rng.uniform(*bounds, (part.shape[0], 1, 1))).astype(np.float32)
