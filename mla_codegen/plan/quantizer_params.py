"""The members of a quantiser's by-value ``Params`` struct."""

from __future__ import annotations

from mla_codegen.plan.model import ParamField
from mla_codegen.plan.quantizer_model import Part
from mla_codegen.tensors import TensorFacts


def plan_params(facts: TensorFacts, parts: tuple[Part, ...]) -> tuple[ParamField, ...]:
    """Addresses first, then strides in elements, counts, and how many CTAs each role has."""
    has_rope = facts.rope > 0
    names = ("q_nope", *(["q_rope"] if has_rope else []), "k_nope", *(["k_rope"] if has_rope else []), "v")
    rows = [("const u8*", "source_q", "q"), ("const u8*", "source_kv", "kv")]
    if has_rope:
        rows.append(("const u8*", "source_k_rope", "k_rope"))
    rows += [("u8*", name, "output, contiguous") for name in names]
    forms = (("q_scale", facts.q_scale), ("k_scale", facts.k_scale), ("v_scale", facts.v_scale))
    rows += [("float*", name, f"output, per {_words(form)}") for name, form in forms if form != "none"]
    rows += [
        ("float*", target.name, f"0 before, largest elements of {target.segment} per {_words(target.form)}")
        for part in parts
        for target in part.targets
    ]
    rows += [
        ("float*", "k_rope_largest", "0 before, the largest element of k_rope")
        for part in parts
        if part.raises_k_rope
    ]
    if facts.v_transposed and facts.kv_ragged:
        rows.append(("const i32*", "cu_seqlens_k", "where sequences begin, [batch + 1]"))
    rows += _strides(facts)
    rows += _counts(facts)
    for part in parts:
        if part.function != "transpose_v":
            rows.append(("u32", part.per_cta, f"tokens of a CTA of {part.function}"))
    rows += [("u32", part.ctas, f"CTAs of {part.function}") for part in parts]
    return tuple(ParamField(ctype=ctype, name=name, comment=comment) for ctype, name, comment in rows)


def _strides(facts: TensorFacts) -> list[tuple[str, str, str]]:
    sides = [("q", ("token", "head"), facts.q_ragged), ("kv", ("token", "head"), facts.kv_ragged)]
    if facts.rope:
        sides.append(("k_rope", ("token",), facts.kv_ragged))
    return [
        ("i64", f"{name}_{kind}_stride", f"elements of {name} from one {what} to the next")
        for name, kinds, ragged in sides
        for kind, what in (*(() if ragged else (("batch", "sequence"),)), *((kind, kind) for kind in kinds))
    ]


def _counts(facts: TensorFacts) -> list[tuple[str, str, str]]:
    rows = [
        ("u32", "q_tokens", "queries of all sequences"),
        ("u32", "k_tokens", "keys of all sequences"),
        ("u32", "heads", "query heads"),
        ("u32", "kv_heads", "heads of k_nope and v"),
        ("u32", "per_heads", "2^31 / heads, rounded up"),
        ("u32", "per_kv_heads", "2^31 / kv_heads, rounded up"),
    ]
    if not facts.q_ragged:
        rows.append(("u32", "q_len", "queries of a sequence"))
    if not facts.kv_ragged:
        rows.append(("u32", "kv_len", "keys of a sequence"))
    if facts.v_transposed:
        rows += [
            ("u32", "batch", "sequences"),
            ("u32", "v_groups", "groups of 16 columns in a row of the transposed V"),
            ("u32", "v_tiles", "CTAs side by side along a row of it"),
        ]
    return rows


def _words(form: str) -> str:
    return {"token_head": "token and head", "tensor": "tensor"}.get(form, form)
