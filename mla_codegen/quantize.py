"""Activations to a kernel's arguments: codes and scales in the dtypes and layouts of a spec.

How scales are chosen. A scale is the largest magnitude of its group's nope elements (for V, its elements)
times the float32 nearest to 1/448, which is the quotient to within one unit in the last place and the same
bits in every library; so the group's largest code is the largest e4m3 number. Rope elements take no part,
except that `prescaled` rope, stored divided by the same scale, must stay representable: the scale is raised
where rope over scale would pass 448 (e4m3), 65504 (f16) or 2^48 (bf16, so that products of two rope vectors
stay finite in float32). For bf16 that happens only where rope is 2^39 times as large as nope, whose codes may
then be 0. A group of zeros gets codes of zero and the scale 1, or the raised one. No scale is below 2^-126,
the smallest normal float32, whose reciprocal is finite. Slices without scales are plain casts. All casts
round to nearest even and saturate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mla_codegen.arrays import ArrayLibrary, library_of, to_host
from mla_codegen.scale_rule import E4M3_LARGEST, ROPE_LARGEST, SMALLEST_SCALE
from mla_codegen.tensors import (
    V_GROUP_TOKENS,
    SpecLike,
    TensorFacts,
    check_arguments,
    check_axes,
    check_cu_seqlens,
    check_heads,
    spec_mapping,
    tensor_facts,
    transposed_v_columns,
    transposed_v_width,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Float32 inputs [..., tokens, heads, depth]; k_rope has one head."""

    q_nope: Any
    q_rope: Any
    k_nope: Any
    k_rope: Any
    v: Any


def quantize(
    spec: SpecLike,
    q: Any,
    kv: Any,
    k_rope: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    out: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments of a kernel of `spec` for true queries, keys and values: `kernel(**quantize(...))`.

    The library of `q` is the library of all results: NumPy gives ml_dtypes arrays for e4m3 and bf16, CuPy
    uint8 and uint16 codes, torch its own float8_e4m3fn and bfloat16. All inputs are on one device.

    CuPy and torch arrays on a GPU that are bf16 or f16, all the same, with rows at multiples of 16 bytes, go
    through generated kernels for specs of e4m3, which give the very bits of NumPy. They wait for nothing,
    except to learn `max_seqlen_q` where it is not given, and can be captured in a CUDA graph once a call has
    compiled them. All other arrays go through operations of their library, which wait for the columns of a
    ragged transposed V too.

    Args:
        spec: Spec, plain mapping of one, or path of a YAML file.
        q: [total_q, heads, nope + rope], or [batch, q_len, heads, ...] for dense queries; float32, float16,
            float64 or bf16 (also as uint16 codes). Float64 is rounded to float32 first.
        kv: [total_k, heads/group, nope + v], the output of kv_b_proj, or with [batch, kv_len] in front.
        k_rope: [total_k, rope] or [total_k, 1, rope], or with [batch, kv_len] in front; None where rope is 0.
        cu_seqlens_q, cu_seqlens_k: int [batch + 1] from 0, for ragged layouts only.
        max_seqlen_q: capacity to pass on, by default the longest query sequence; for ragged queries only.
        out: arrays by name to write values and scales to, such as an earlier call with such inputs gave; by
            default new ones.

    Returns:
        q_nope, q_rope, k_nope, k_rope, v, the scales that the spec declares (float32), and for ragged layouts
        cu_seqlens_q, cu_seqlens_k (int32) and max_seqlen_q.

    Raises:
        ValueError: arguments missing, not declared or with wrong shapes; infinities or NaN in host arrays;
            lengths in host memory that fall or do not fit the tensors; arrays of `out` that do not fit.
    """
    spec = spec_mapping(spec)
    facts = tensor_facts(spec)
    lib = library_of(q)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_arguments(facts, {"k_rope": k_rope, **lengths})
    if max_seqlen_q is not None and not facts.q_ragged:
        raise ValueError(f"max_seqlen_q {max_seqlen_q} is given for dense queries, leave it out")
    _check_shapes(facts, q, kv, k_rope)
    packed_lengths = _packed_lengths(facts, lib, q, kv, lengths, max_seqlen_q)
    packed = None
    if not lib.is_host(q):
        packed = _by_kernels(spec, facts, q, kv, k_rope, packed_lengths.get("cu_seqlens_k"), out)
    if packed is None:
        packed = _by_arrays(facts, lib, q, kv, k_rope, cu_seqlens_k)
        packed = packed if out is None else _written(out, packed)
    return packed | packed_lengths


def _check_shapes(facts: TensorFacts, q: Any, kv: Any, k_rope: Any) -> None:
    """ValueError where shapes do not fit the spec or each other."""
    check_axes("q", tuple(q.shape), facts.q_ragged, 2, facts.nope + facts.rope)
    check_axes("kv", tuple(kv.shape), facts.kv_ragged, 2, facts.nope + facts.v)
    check_heads(facts, q.shape[-2], kv.shape[-2])
    tokens = tuple(kv.shape[:-2])
    if k_rope is not None and tuple(k_rope.shape) not in ((*tokens, facts.rope), (*tokens, 1, facts.rope)):
        allowed = f"{(*tokens, facts.rope)} or {(*tokens, 1, facts.rope)}"
        raise ValueError(f"k_rope has shape {tuple(k_rope.shape)}, kv and the spec allow {allowed}")


def _packed_lengths(
    facts: TensorFacts,
    lib: ArrayLibrary,
    q: Any,
    kv: Any,
    lengths: dict[str, Any],
    max_seqlen_q: int | None,
) -> dict[str, Any]:
    """Lengths in int32 and, for ragged queries, their capacity."""
    packed: dict[str, Any] = {}
    tokens = {"cu_seqlens_q": q.shape[0], "cu_seqlens_k": kv.shape[0]}
    for name, value in lengths.items():
        if value is not None:
            if isinstance(value, (np.ndarray, list, tuple)):
                check_cu_seqlens(name, np.asarray(value), tokens[name])
            packed[name] = lib.int_array(value, q, 32)
    if facts.q_ragged:
        longest = max_seqlen_q
        if longest is None:
            longest = int(np.diff(to_host(lengths["cu_seqlens_q"])).max(initial=0))
        packed["max_seqlen_q"] = longest
    return packed


def _by_kernels(
    spec: SpecLike, facts: TensorFacts, q: Any, kv: Any, k_rope: Any, cu_seqlens_k: Any, out: Any
) -> dict[str, Any] | None:
    """Values and scales by the generated quantiser; None where there is none for spec and arrays."""
    from mla_codegen.loading import load_quantizer

    quantizer = load_quantizer(spec, facts)
    if quantizer is None:
        return None
    inputs = {"q": q, "kv": kv} | ({} if k_rope is None else {"k_rope": k_rope})
    reads_lengths = facts.v_transposed and facts.kv_ragged
    cu_seqlens_k = cu_seqlens_k if reads_lengths else None
    packed = quantizer(inputs, cu_seqlens_k=cu_seqlens_k, out=out)
    return packed if packed is None or facts.rope else packed | {"q_rope": None, "k_rope": None}


def _written(out: Mapping[str, Any], packed: dict[str, Any]) -> dict[str, Any]:
    """`packed` copied to the arrays of `out`; ValueError where one is missing or is another kind of array."""
    arrays = {name: array for name, array in packed.items() if array is not None}
    for name, array in arrays.items():
        found = out.get(name)
        if found is None:
            raise ValueError(f"out has no {name}, pass what an earlier call with such inputs gave")
        if type(found) is not type(array) or (found.shape, found.dtype) != (array.shape, array.dtype):
            raise ValueError(
                f"{name} of out is {getattr(found, 'dtype', type(found).__name__)}"
                f"{list(getattr(found, 'shape', []))}, {array.dtype}{list(array.shape)} is needed"
            )
    for name, array in arrays.items():
        out[name][...] = array
    return packed | {name: out[name] for name in arrays}


def _by_arrays(
    facts: TensorFacts, lib: ArrayLibrary, q: Any, kv: Any, k_rope: Any, cu_seqlens_k: Any
) -> dict[str, Any]:
    """Values and scales by the operations of the array library; the twin of the generated kernels."""
    inputs = _inputs(facts, lib, q, kv, k_rope)
    packed: dict[str, Any] = {}
    q_scale = _scale(facts, lib, facts.q_scale, inputs.q_nope, inputs.q_rope)
    k_scale = _scale(facts, lib, facts.k_scale, inputs.k_nope, inputs.k_rope)
    v_scale = _scale(facts, lib, facts.v_scale, inputs.v, None)
    packed["q_nope"] = lib.cast(_over(inputs.q_nope, q_scale), facts.qkv_dtype)
    packed["k_nope"] = lib.cast(_over(inputs.k_nope, k_scale), facts.qkv_dtype)
    packed |= _packed_rope(facts, lib, inputs, q_scale, k_scale)
    v = _over(inputs.v, v_scale)
    if facts.v_transposed:
        v = _transposed(facts, lib, v, cu_seqlens_k)
    packed["v"] = lib.cast(v, facts.qkv_dtype)
    forms = {"q_scale": facts.q_scale, "k_scale": facts.k_scale, "v_scale": facts.v_scale}
    for (name, form), scale in zip(forms.items(), (q_scale, k_scale, v_scale), strict=True):
        if scale is not None:
            packed[name] = _scale_layout(form, scale)
    return packed


def _inputs(facts: TensorFacts, lib: ArrayLibrary, q: Any, kv: Any, k_rope: Any) -> _Inputs:
    """Splits nope from rope and V, converts to float32."""
    if k_rope is not None:
        k_rope = _finite(lib, "k_rope", k_rope).reshape((*kv.shape[:-2], 1, facts.rope))
    q, kv = _finite(lib, "q", q), _finite(lib, "kv", kv)
    return _Inputs(
        q_nope=q[..., : facts.nope],
        q_rope=q[..., facts.nope :] if facts.rope else None,
        k_nope=kv[..., : facts.nope],
        k_rope=k_rope,
        v=kv[..., facts.nope :],
    )


def _finite(lib: ArrayLibrary, name: str, array: Any) -> Any:
    """Float32 values; infinities and NaN are found on the host only, where looking is cheap."""
    values = lib.values(array, "bf16")
    if lib.is_host(values) and not lib.all_finite(values):
        raise ValueError(
            f"{name} holds infinities or NaN, which no scale can represent, mask them out before"
        )
    return values


def _scale(facts: TensorFacts, lib: ArrayLibrary, form: str, x: Any, rope: Any) -> Any:
    """Scale of each group of `x` with the group's axes kept at length 1, or None for the form `none`.

    `rope` is stored divided by the same scale where the spec says `prescaled`; it may have fewer heads.
    """
    if form == "none":
        return None
    axes = _group_axes(form, x.ndim)
    largest = lib.amax(x, axes)
    scale = _share(largest, E4M3_LARGEST)
    is_zero = largest == 0
    floor = SMALLEST_SCALE
    if rope is not None and facts.rope_prescaled:
        rope_largest = lib.amax(rope, axes)
        floor = lib.maximum(_share(rope_largest, ROPE_LARGEST[facts.rope_dtype]), SMALLEST_SCALE)
        if facts.rope_dtype == "e4m3":
            is_zero = is_zero & (rope_largest == 0)
    return lib.maximum(lib.where(is_zero, 1.0, scale), floor)


def _share(largest: Any, limit: float) -> Any:
    """`largest` over `limit`, as a product with the float32 reciprocal.

    Libraries do not agree on how they divide by a constant (torch multiplies on the GPU); a product of two
    float32 has one result.
    """
    return largest * float(np.float32(1.0) / np.float32(limit))


def _group_axes(form: str, ndim: int) -> tuple[int, ...]:
    """Axes of [..., tokens, heads, depth] over which a scale of this form is shared."""
    if form in ("tensor", "head"):
        return tuple(axis for axis in range(ndim) if form == "tensor" or axis != ndim - 2)
    return (-2, -1) if form == "token" else (-1,)


def _over(x: Any, scale: Any) -> Any:
    return x if scale is None else x / scale


def _packed_rope(
    facts: TensorFacts, lib: ArrayLibrary, inputs: _Inputs, q_scale: Any, k_scale: Any
) -> dict[str, Any]:
    """q_rope, k_rope [..., tokens, rope] and, where declared, k_rope_scale [..., tokens]."""
    if facts.rope == 0:
        return {"q_rope": None, "k_rope": None}
    q_rope, k_rope = inputs.q_rope, inputs.k_rope
    if facts.rope_prescaled:
        q_rope, k_rope = _over(q_rope, q_scale), _over(k_rope, k_scale)
    packed = {"q_rope": lib.cast(q_rope, facts.rope_dtype)}
    if facts.k_rope_scale == "token":
        largest = lib.amax(k_rope, (-2, -1))
        scale = lib.where(largest == 0, 1.0, lib.maximum(_share(largest, E4M3_LARGEST), SMALLEST_SCALE))
        k_rope = k_rope / scale
        packed["k_rope_scale"] = scale[..., 0, 0]
    packed["k_rope"] = lib.cast(k_rope[..., 0, :], facts.rope_dtype)
    return packed


def _scale_layout(form: str, scale: Any) -> Any:
    """Drops the kept axes: tensor [1], head [heads], token [..., tokens], token_head [..., tokens, heads]."""
    if form in ("tensor", "head"):
        return scale.reshape(-1)
    return scale[..., 0, 0] if form == "token" else scale[..., 0]


def _transposed(facts: TensorFacts, lib: ArrayLibrary, v: Any, cu_seqlens_k: Any) -> Any:
    """V with tokens along the last axis, in permuted groups of 16, padded with zeros; float32.

    Ragged [tokens, heads, v] gives [heads, v, columns], dense [batch, tokens, heads, v] likewise per batch.
    """
    if facts.kv_ragged:
        total_k = v.shape[0]
        cu_seqlens = check_cu_seqlens("cu_seqlens_k", to_host(cu_seqlens_k), total_k)
        width = transposed_v_width(cu_seqlens, total_k)
        v = v[: int(cu_seqlens[-1])]
    else:
        cu_seqlens = np.array([0, v.shape[1]])
        width = -(-v.shape[1] // V_GROUP_TOKENS) * V_GROUP_TOKENS
    by_token = lib.permute(v, (1, 2, 0) if facts.kv_ragged else (0, 2, 3, 1))
    padded = lib.zeros((*by_token.shape[:-1], width), by_token)
    padded[..., lib.int_array(transposed_v_columns(cu_seqlens), by_token, 64)] = by_token
    return padded
