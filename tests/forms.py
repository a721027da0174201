"""Specs of every form that is planned beside the shipped ones: types, groups, scales, log-sum-exp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mla_codegen.spec import Spec

_PRESCALED = {"q": "token", "k": "token", "rope": "prescaled"}


def _scaled(**scales: str) -> dict[str, Any]:
    return {"dtypes": {"qkv": "e4m3"}, "scales": scales}


FORMS: Mapping[str, Mapping[str, Any]] = {
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
"""What each spec says beside name, architecture and dimensions."""


def form(name: str, **changes: Any) -> Spec:
    """The spec of a form, with sections replaced."""
    base = {"name": name, "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
    return Spec.from_mapping({**base, **FORMS[name], **changes})


def heads_of(spec: Spec) -> int:
    """A head count that the spec takes: its own, or two groups, and at least two heads."""
    return 2 * spec.heads.group if spec.heads.q == "any" else spec.heads.q
