"""Defaults that follow from other fields, and the rules that tie fields together.

Rules read their fields through a lookup that raises UnknownValue where a field is itself at fault, so that
every rule whose fields are sound is still checked.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping

from pydantic import BaseModel

from mla_codegen.errors import Diagnostic

Lookup = Callable[[str], object]
"""Value of a dotted field; raises UnknownValue."""

SCALED = ("q", "k", "v", "rope_k")
SHARED_BY_HEADS = ("none", "tensor", "token")

# ISO C++20, [lex.key] and [lex.digraph], where they match the pattern of names: a name becomes a
# namespace.
_CPP_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
    class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float
    for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
    private protected public register reinterpret_cast requires return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
CPP_KEYWORDS = frozenset(_CPP_WORDS.split())


class UnknownValue(Exception):
    """A rule asked for a field that has no sound value."""


def complete(data: Mapping[str, object]) -> dict[str, object]:
    """A copy of `data` in dicts, with defaults that depend on other fields; faulty values pass through."""
    filled = {key: _plain(value) for key, value in data.items()}
    dtypes, scales, dims = filled.get("dtypes"), filled.get("scales", {}), filled.get("dims")
    if not isinstance(scales, dict):
        return filled
    if isinstance(dtypes, dict):
        qkv = dtypes.get("qkv")
        stored = dtypes.setdefault("rope_gmem", qkv if qkv in ("bf16", "f16") else "bf16")
        dtypes.setdefault("rope_mma", stored if stored in ("e4m3", "f16") else "bf16")
        has_scales = any(scales.get(tensor, "none") != "none" for tensor in SCALED)
        dtypes.setdefault("scale", "f32" if has_scales else None)
    has_rope = not isinstance(dims, dict) or dims.get("rope") != 0
    matters = has_rope and any(scales.get(tensor, "none") != "none" for tensor in ("q", "k"))
    if not matters and scales.get("rope") in ("prescaled", "raw"):
        scales["rope"] = None
    return filled


def _plain(value: object) -> object:
    """Mappings and models as dicts, of a model only what was given; everything else as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def broken_rules(lookup: Lookup) -> tuple[Diagnostic, ...]:
    """A diagnostic, with `field`, for every rule that the values break."""
    found: list[Diagnostic] = []
    for rule in _RULES:
        try:
            found += rule(lookup)
        except UnknownValue:
            continue
    return tuple(found)


def _name_is_free(get: Lookup) -> Iterator[Diagnostic]:
    name = str(get("name"))
    if keyword.iskeyword(name) or name in CPP_KEYWORDS:
        language = "Python" if keyword.iskeyword(name) else "C++"
        yield Diagnostic(
            code="bad-value",
            field="name",
            message=(
                f"name is {name}, a keyword of {language}, allowed: any name that is no keyword of Python"
                " or C++"
            ),
            help=f"rename the kernel and its file, to {name}_kernel for instance",
        )


def _heads_divide(get: Lookup) -> Iterator[Diagnostic]:
    heads, group = get("heads.q"), get("heads.group")
    if isinstance(heads, int) and isinstance(group, int) and heads % group:
        below = heads - heads % group
        numbers = f" or {below + group}" if below == 0 else f", {below} or {below + group}"
        yield Diagnostic(
            code="heads-group",
            field="heads.q",
            message=f"heads.q is {heads}, allowed with heads.group {group}: any or a multiple of {group}",
            help=f"set heads.q: any{numbers}, or a group that divides {heads}",
        )


def _rope_conversion(get: Lookup) -> Iterator[Diagnostic]:
    stored, consumed = get("dtypes.rope_gmem"), get("dtypes.rope_mma")
    if consumed != stored and (stored, consumed) != ("e4m3", "bf16"):
        allowed = "e4m3 or bf16" if stored == "e4m3" else str(stored)
        yield Diagnostic(
            code="rope-dtypes",
            field="dtypes.rope_mma",
            message=f"dtypes.rope_mma is {consumed}, allowed with dtypes.rope_gmem {stored}: {allowed}",
            notes=("the only conversion of rope inside a kernel is e4m3 to bf16",),
            help=f"leave dtypes.rope_mma out, which makes it {stored}",
        )


def _sixteen_bit_has_no_scales(get: Lookup) -> Iterator[Diagnostic]:
    qkv = get("dtypes.qkv")
    if qkv == "e4m3":
        return
    for tensor in ("q", "k", "v"):
        try:
            layout = get(f"scales.{tensor}")
        except UnknownValue:
            continue
        if layout != "none":
            yield Diagnostic(
                code="needless-scale",
                field=f"scales.{tensor}",
                message=f"scales.{tensor} is {layout}, allowed with dtypes.qkv {qkv}: none",
                help=f"leave scales.{tensor} out, or set dtypes.qkv: e4m3",
            )


def _rope_convention(get: Lookup) -> Iterator[Diagnostic]:
    if get("dtypes.qkv") != "e4m3" or get("dims.rope") == 0:
        return
    scaled = [
        f"scales.{tensor} is {get(f'scales.{tensor}')}"
        for tensor in ("q", "k")
        if get(f"scales.{tensor}") != "none"
    ]
    if scaled and get("scales.rope") is None:
        yield Diagnostic(
            code="missing-field",
            field="scales.rope",
            message=(
                "scales.rope is missing, allowed where q or k has scales and dims.rope is not 0:"
                " prescaled or raw"
            ),
            notes=(", ".join([*scaled, f"dims.rope is {get('dims.rope')}"]),),
            help=(
                "set scales.rope: prescaled if q_rope and k_rope are stored divided by the scales of q"
                " and k, else raw"
            ),
        )


def _prescaled_needs_shared_scales(get: Lookup) -> Iterator[Diagnostic]:
    layout = get("scales.k")
    if get("dtypes.qkv") == "e4m3" and get("scales.rope") == "prescaled" and layout not in SHARED_BY_HEADS:
        yield Diagnostic(
            code="prescaled-per-head",
            field="scales.k",
            message=f"scales.k is {layout}, allowed with scales.rope prescaled: none, tensor or token",
            notes=("k_rope is shared by all heads, so it cannot be divided by a scale of each head",),
            help="set scales.rope: raw, or scales.k: token",
        )


def _rope_k_converts(get: Lookup) -> Iterator[Diagnostic]:
    if get("scales.rope_k") == "none":
        return
    found = (get("dtypes.rope_gmem"), get("dtypes.rope_mma"), get("dims.rope"))
    if found[:2] != ("e4m3", "bf16") or found[2] == 0:
        yield Diagnostic(
            code="rope-k-scale",
            field="scales.rope_k",
            message=(
                "scales.rope_k is token, allowed: none, or token where an e4m3 k_rope is converted to bf16"
            ),
            notes=("dtypes.rope_gmem is {}, dtypes.rope_mma is {}, dims.rope is {}".format(*found),),
            help=(
                "leave scales.rope_k out, or set dtypes.rope_gmem: e4m3 and dtypes.rope_mma: bf16 with a"
                " rope part"
            ),
        )


def _scale_dtype(get: Lookup) -> Iterator[Diagnostic]:
    scaled = [tensor for tensor in SCALED if get(f"scales.{tensor}") != "none"]
    dtype = get("dtypes.scale")
    if bool(scaled) == (dtype is not None):
        return
    yield Diagnostic(
        code="scale-dtype",
        field="dtypes.scale",
        message=(
            f"dtypes.scale is null, allowed where a tensor has scales: f32 (scales.{scaled[0]} is not none)"
            if scaled
            else f"dtypes.scale is {dtype}, allowed where no tensor has scales: null"
        ),
        help="leave dtypes.scale out: it follows from scales",
    )


def _transposed_v(get: Lookup) -> Iterator[Diagnostic]:
    qkv, arch = get("dtypes.qkv"), get("arch")
    if get("layout.v") == "transposed" and (qkv, arch) != ("e4m3", "sm_90a"):
        yield Diagnostic(
            code="transposed-v",
            field="layout.v",
            message=f"layout.v is transposed, allowed with dtypes.qkv {qkv} on {arch}: rows",
            notes=("only the 8-bit products of sm_90a need a transposed v",),
            help="leave layout.v out",
        )


def _rope_pages(get: Lookup) -> Iterator[Diagnostic]:
    if get("dims.rope") == 0 and get("layout.rope") is not None:
        yield Diagnostic(
            code="needless-rope",
            field="layout.rope",
            message="layout.rope is paged, allowed with dims.rope 0: null",
            help="leave layout.rope out, or set dims.rope to the width of k_rope",
        )


_RULES: tuple[Callable[[Lookup], Iterator[Diagnostic]], ...] = (
    _name_is_free,
    _heads_divide,
    _rope_conversion,
    _sixteen_bit_has_no_scales,
    _rope_convention,
    _prescaled_needs_shared_scales,
    _rope_k_converts,
    _scale_dtype,
    _transposed_v,
    _rope_pages,
)
