"""Specs of every form that is planned beside the shipped ones: types, groups, scales, sizes, layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mla_codegen.spec import Spec

_PRESCALED = {"q": "token", "k": "token", "rope": "prescaled"}


def _scaled(**scales: str) -> dict[str, Any]:
    return {"dtypes": {"qkv": "e4m3"}, "scales": scales}


def _raw(q: str, k: str, **more: str) -> dict[str, Any]:
    return _scaled(q=q, k=k, rope="raw", **more)


def _dims(nope: int, rope: int, v: int) -> dict[str, Any]:
    return {"dims": {"nope": nope, "rope": rope, "v": v}}


TYPES_AND_SCALES: Mapping[str, Mapping[str, Any]] = {
    "f16": {"dtypes": {"qkv": "f16", "out": "f16"}},
    "f16_full_f32": {"dtypes": {"qkv": "f16", "out": "f32"}, "mask": "full"},
    "f16_bf16": {"dtypes": {"qkv": "f16", "rope_gmem": "bf16", "out": "bf16"}},
    "f16_lse": {"dtypes": {"qkv": "f16"}, "softmax": {"lse": "log2", "lse_layout": "head_token"}},
    "bf16_f16": {"dtypes": {"qkv": "bf16", "rope_gmem": "f16", "out": "f16"}},
    "bf16_lse": {"dtypes": {"qkv": "bf16"}, "softmax": {"lse": "natural"}},
    "bf16_lse_group": {
        "dtypes": {"qkv": "bf16"},
        "heads": {"group": 2},
        "softmax": {"lse": "log2", "lse_layout": "token_head"},
    },
    "bf16_group": {"dtypes": {"qkv": "bf16"}, "heads": {"group": 4}},
    "fp8_none": _scaled(),
    "fp8_f16": {"dtypes": {"qkv": "e4m3", "rope_gmem": "f16", "out": "f16"}, "scales": _PRESCALED},
    "fp8_q_only": _scaled(q="token", rope="prescaled"),
    "fp8_k_only": _scaled(k="token", rope="prescaled"),
    "fp8_v_only": _scaled(v="tensor"),
    "fp8_tensor": _scaled(q="tensor", k="tensor", v="tensor", rope="prescaled"),
    "fp8_head": _scaled(q="head", v="head", rope="prescaled"),
    "fp8_token_head": _scaled(q="token_head", k="token", rope="prescaled"),
    "fp8_all_group": {
        **_scaled(q="token_head", k="token", v="head", rope="prescaled"),
        "heads": {"q": 6, "group": 3},
    },
    "fp8_lse": {**_scaled(**_PRESCALED), "softmax": {"lse": "log2", "lse_layout": "token_head"}},
    "fp8_full_lse": {**_scaled(**_PRESCALED), "mask": "full", "softmax": {"lse": "natural"}},
    "fp8_tensor_lse": {
        **_scaled(q="tensor", k="tensor", v="head", rope="prescaled"),
        "softmax": {"lse": "natural", "lse_layout": "token_head", "variant": "online"},
    },
}
"""Types, groups, log-sum-exp and the scales of ragged rows with 128, 64 and 128 columns."""

ROPES: Mapping[str, Mapping[str, Any]] = {
    "raw_k_none": _raw("token", "none"),
    "raw_k_tensor": {**_raw("tensor", "tensor"), "softmax": {"variant": "online"}},
    "raw_k_head": {**_raw("head", "head"), "heads": {"group": 2}},
    "raw_k_token": {**_raw("none", "token"), "mask": "full"},
    "raw_k_token_head": {
        **_raw("token_head", "token_head"),
        "heads": {"group": 2},
        "softmax": {"lse": "natural"},
    },
    "e4m3_rope": {"dtypes": {"qkv": "e4m3", "rope_gmem": "e4m3"}, "scales": _PRESCALED},
    "e4m3_rope_raw": {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "e4m3", "out": "f16"},
        "scales": {"q": "token", "k": "token_head", "rope": "raw"},
    },
    "bf16_e4m3_rope": {"dtypes": {"qkv": "bf16", "rope_gmem": "e4m3"}},
    "fp8_no_rope": {**_scaled(q="token_head", k="token_head"), **_dims(128, 0, 128), "heads": {"group": 2}},
    "bf16_no_rope": {"dtypes": {"qkv": "bf16"}, **_dims(64, 0, 64), "softmax": {"lse": "log2"}},
}
"""Rope without scales, of e4m3 beside e4m3 and 16 bits, and none at all."""

V_SCALES: Mapping[str, Mapping[str, Any]] = {
    "v_token": _scaled(**_PRESCALED, v="token"),
    "v_token_only": {**_scaled(v="token"), "softmax": {"lse": "natural"}},
    "v_token_head": {**_scaled(q="head", v="token_head", rope="prescaled"), "heads": {"group": 2}},
    "v_token_online": {**_scaled(**_PRESCALED, v="token"), "softmax": {"variant": "online", "lse": "log2"}},
    "v_token_head_raw": {**_raw("token", "token_head", v="token_head"), "heads": {"group": 2}},
    "v_token_raw_online": {**_raw("token", "tensor", v="token"), "softmax": {"variant": "online"}},
}
"""Scales of V by token, which go into P."""

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "transposed": {**_scaled(**_PRESCALED), "layout": {"v": "transposed"}},
    "transposed_dense": {
        **_scaled(q="token_head", k="token", v="token_head", rope="prescaled"),
        "layout": {"q": "dense", "kv": "dense", "v": "transposed"},
        "heads": {"group": 2},
    },
    "transposed_online": {
        **_raw("token", "token", v="token"),
        "layout": {"v": "transposed"},
        "softmax": {"variant": "online"},
    },
    "fp8_dense": {
        **_scaled(q="token_head", k="token", v="head", rope="prescaled"),
        "layout": {"q": "dense", "kv": "dense"},
        "softmax": {"lse": "natural", "lse_layout": "token_head"},
    },
    "bf16_dense": {
        "dtypes": {"qkv": "bf16"},
        "layout": {"q": "dense", "kv": "dense"},
        "heads": {"group": 2},
        "softmax": {"lse": "log2"},
    },
    "bf16_dense_queries": {"dtypes": {"qkv": "bf16", "out": "f32"}, "layout": {"q": "dense"}},
    "fp8_dense_keys": {
        **_raw("token", "token_head", v="token"),
        "layout": {"kv": "dense"},
        "softmax": {"lse": "natural"},
    },
}
"""Dense sides, and V that is stored transposed."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "glm_fp8": {**_scaled(**_PRESCALED), **_dims(192, 64, 256)},
    "glm_bf16": {"dtypes": {"qkv": "bf16"}, **_dims(192, 64, 256)},
    "fp8_80_48_80": {**_scaled(**_PRESCALED), **_dims(80, 48, 80), "heads": {"group": 2}},
    "fp8_176_16_48": {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "e4m3", "out": "f16"},
        "scales": {"q": "token", "k": "token", "v": "token", "rope": "raw"},
        **_dims(176, 16, 48),
    },
    "fp8_16_16_16": {**_scaled(**_PRESCALED), **_dims(16, 16, 16), "softmax": {"variant": "online"}},
    "fp8_48_0_112": {**_scaled(v="head"), **_dims(48, 0, 112), "layout": {"v": "transposed"}},
    "f16_80_48_80": {"dtypes": {"qkv": "f16", "out": "f16"}, **_dims(80, 48, 80)},
    "f16_176_16_48": {"dtypes": {"qkv": "f16", "out": "f32"}, **_dims(176, 16, 48), "heads": {"group": 3}},
    "bf16_16_16_16": {"dtypes": {"qkv": "bf16"}, **_dims(16, 16, 16), "softmax": {"lse": "natural"}},
    "bf16_256_256_128": {"dtypes": {"qkv": "bf16"}, **_dims(256, 256, 128)},
}
"""Widths of one to five swizzle atoms, with and without padding, and the largest that fit."""

WIDENED: Mapping[str, Mapping[str, Any]] = {**ROPES, **V_SCALES, **LAYOUTS, **SIZES}
FORMS: Mapping[str, Mapping[str, Any]] = {**TYPES_AND_SCALES, **WIDENED}
"""What each spec says beside name and architecture, and beside dimensions of 128, 64 and 128."""


def form(name: str, **changes: Any) -> Spec:
    """The spec of a form, with sections replaced."""
    base = {"name": name, "arch": "sm_90a", **_dims(128, 64, 128)}
    return Spec.from_mapping({**base, **FORMS[name], **changes})


def lengths(
    spec: Spec, q_lens: Sequence[int], kv_lens: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths as the layouts take them: a dense side has the largest for every sequence."""
    sides = ((spec.layout.q, q_lens), (spec.layout.kv, kv_lens))
    q, kv = ((max(lens),) * len(lens) if layout == "dense" else tuple(lens) for layout, lens in sides)
    return q, kv


def heads_of(spec: Spec) -> int:
    """A head count that the spec takes: its own, or two groups, and at least two heads."""
    return 2 * spec.heads.group if spec.heads.q == "any" else spec.heads.q
