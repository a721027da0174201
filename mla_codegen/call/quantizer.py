"""What a generated quantiser gets of a call: outputs, counts, strides and grids, on the GPU and emulated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mla_codegen.call.forms import ArrayForm
from mla_codegen.plan.quantizer_model import Part, QuantizerPlan
from mla_codegen.tensors import TensorFacts, dense_v_width, ragged_v_width

INPUT_DTYPES: Mapping[str, str] = {"bfloat16": "bf16", "uint16": "bf16", "float16": "f16"}
"""Dtypes of arrays that quantisers read, codes of bf16 among them, and how the plan calls them."""

_ALIGN_BYTES = 16
_COLUMNS = 16
_GRID_LIMIT = 2**31 - 1
_COUNT_LIMIT = 2**31
_HEADS_LIMIT = 2**14
"""So that a row of a CTA times the heads stays below 2^31, which finding its head by a product needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerOutput:
    """An array to write, contiguous; `dtype` by its name in specs."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerCall:
    """A call without addresses.

    `values` are the members of Params that are no addresses; `workspace` says at which of
    `workspace_words` words, 0 before the first launch, each member of Params that points there begins;
    `launches` are entries and their CTAs.
    """

    outputs: tuple[QuantizerOutput, ...]
    values: Mapping[str, int]
    workspace: Mapping[str, int]
    workspace_words: int
    launches: tuple[tuple[str, int], ...]


def refusal(inputs: Mapping[str, ArrayForm], addresses: Mapping[str, int]) -> str | None:
    """Why quantisers do not read these arrays, in a few words; None where they do."""
    for name, form in inputs.items():
        if form.dtype not in INPUT_DTYPES:
            return f"{name} is {form.dtype}, bf16 or f16 is read"
        if form.is_empty:
            return f"{name} has no elements"
        if form.strides[-1] != form.item_bytes:
            return f"the last axis of {name} is not contiguous"
        steps = [
            stride for extent, stride in zip(form.shape[:-1], form.strides[:-1], strict=True) if extent > 1
        ]
        if any(step % _ALIGN_BYTES or step < 0 for step in steps) or addresses[name] % _ALIGN_BYTES:
            return f"rows of {name} do not begin at multiples of {_ALIGN_BYTES} bytes"
        if math.prod(form.shape[:-1]) >= _COUNT_LIMIT:
            return f"{name} has too many rows"
        if name != "k_rope" and form.shape[-2] > _HEADS_LIMIT:
            return f"{name} has more than {_HEADS_LIMIT} heads"
    if len({INPUT_DTYPES[form.dtype] for form in inputs.values()}) > 1:
        return "the inputs have different dtypes"
    return None


def quantizer_call(plan: QuantizerPlan, inputs: Mapping[str, ArrayForm], sequences: int) -> QuantizerCall:
    """The call for q, kv and k_rope without its one head; `sequences` is the batch of ragged keys."""
    facts = plan.facts
    q, kv = inputs["q"], inputs["kv"]
    counts = {
        "q_tokens": math.prod(q.shape[:-2]),
        "k_tokens": math.prod(kv.shape[:-2]),
        "heads": q.shape[-2],
        "kv_heads": kv.shape[-2],
        "per_heads": -(-(2**31) // q.shape[-2]),
        "per_kv_heads": -(-(2**31) // kv.shape[-2]),
        "q_len": q.shape[-3],
        "kv_len": kv.shape[-3],
        "batch": sequences,
    }
    batch = 1 if facts.kv_ragged else kv.shape[0]
    if facts.v_transposed:
        width = (
            ragged_v_width(sequences, counts["k_tokens"]) if facts.kv_ragged else dense_v_width(kv.shape[1])
        )
        counts["v_groups"] = width // _COLUMNS
        counts["v_tiles"] = -(-counts["v_groups"] // (plan.threads // 32))
    for part in plan.parts:
        tokens = max(1, part.rows_per_cta // counts[part.heads])
        counts[part.per_cta] = tokens
        counts[part.ctas] = _ctas(plan, part, counts, batch)
    counts |= {
        name: stride for form_name in inputs for name, stride in _strides(form_name, inputs[form_name])
    }
    workspace, words = _workspace(plan, counts)
    dtype = INPUT_DTYPES[q.dtype]
    return QuantizerCall(
        outputs=tuple(_outputs(facts, counts, inputs)),
        values=counts,
        workspace=workspace,
        workspace_words=words,
        launches=tuple(
            (f"{kernel.entry}_{dtype}", sum(counts[part.ctas] for part in kernel.roles))
            for kernel in plan.kernels
        ),
    )


def too_large(call: QuantizerCall) -> bool:
    """Whether a grid has more CTAs than the hardware takes."""
    return any(ctas > _GRID_LIMIT for _, ctas in call.launches)


def _ctas(plan: QuantizerPlan, part: Part, counts: Mapping[str, int], batch: int) -> int:
    if part.function == "transpose_v":
        return counts["v_tiles"] * counts["kv_heads"] * batch
    tokens = counts[part.per_cta] * (plan.largest_tokens if part.targets else 1)
    return -(-counts[part.total] // tokens)


def _strides(name: str, form: ArrayForm) -> Iterator[tuple[str, int]]:
    """Strides in elements, those of axes of length 1 as 0: nothing lies along them."""
    steps = [
        stride // form.item_bytes if extent > 1 else 0
        for extent, stride in zip(form.shape[:-1], form.strides[:-1], strict=True)
    ]
    kinds = ("token",) if name == "k_rope" else ("token", "head")
    if len(steps) > len(kinds):
        kinds = ("batch", *kinds)
    yield from ((f"{name}_{kind}_stride", step) for kind, step in zip(kinds, steps, strict=True))


def _workspace(plan: QuantizerPlan, counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    places: dict[str, int] = {}
    words = 0
    for part in plan.parts:
        for target in part.targets:
            places[target.name] = words
            words += counts[part.heads] if target.form == "head" else 1
        if part.raises_k_rope:
            places["k_rope_largest"] = words
            words += 1
    return places, words


def _outputs(
    facts: TensorFacts, counts: Mapping[str, int], inputs: Mapping[str, ArrayForm]
) -> Iterator[QuantizerOutput]:
    q_tokens, k_tokens = inputs["q"].shape[:-2], inputs["kv"].shape[:-2]
    heads, kv_heads = counts["heads"], counts["kv_heads"]
    yield QuantizerOutput(name="q_nope", dtype="e4m3", shape=(*q_tokens, heads, facts.nope))
    yield QuantizerOutput(name="k_nope", dtype="e4m3", shape=(*k_tokens, kv_heads, facts.nope))
    if facts.rope:
        yield QuantizerOutput(name="q_rope", dtype=facts.rope_dtype, shape=(*q_tokens, heads, facts.rope))
        yield QuantizerOutput(name="k_rope", dtype=facts.rope_dtype, shape=(*k_tokens, facts.rope))
    v_shape = (*k_tokens, kv_heads, facts.v)
    if facts.v_transposed:
        v_shape = (*k_tokens[:-1], kv_heads, facts.v, counts["v_groups"] * _COLUMNS)
    yield QuantizerOutput(name="v", dtype="e4m3", shape=v_shape)
    rows = (("q", facts.q_scale, q_tokens, heads), ("k", facts.k_scale, k_tokens, kv_heads))
    for tensor, form, tokens, count in (*rows, ("v", facts.v_scale, k_tokens, kv_heads)):
        shapes = {"tensor": (1,), "head": (count,), "token": tokens, "token_head": (*tokens, count)}
        if form != "none":
            yield QuantizerOutput(name=f"{tensor}_scale", dtype="f32", shape=shapes[form])
