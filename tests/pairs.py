"""Specs in which every two features of the planner meet, problems for them with NaN all around, verdicts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from allpairspy import AllPairs

from mla_codegen.accuracy import ErrorReport, contract_bound, measure
from mla_codegen.plan.model import Plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import natural_lse, reference
from mla_codegen.spec import Spec
from mla_codegen.tensors import tensor_facts, transposed_v_columns

_DIMS = ((128, 64, 128), (192, 64, 256), (16, 16, 16), (80, 48, 112), (64, 0, 64), (176, 32, 144))
_FORMS = ("none", "tensor", "head", "token", "token_head")
_LAYOUTS = (("ragged", "ragged"), ("dense", "dense"), ("ragged", "dense"), ("dense", "ragged"))
_LSE = (("none", "head_token"), ("natural", "head_token"), ("log2", "token_head"))
_HEADS = (("any", 1), ("any", 2), (6, 3))
_SHARED = {"mask": ("causal", "full"), "layout": _LAYOUTS, "lse": _LSE, "heads": _HEADS, "dims": _DIMS}
_FEATURES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "fp8": {
        **_SHARED,
        "q": _FORMS,
        "k": _FORMS,
        "v": _FORMS,
        "rope": ("prescaled", "raw"),
        "rope_dtype": ("bf16", "f16", "e4m3"),
        "out": ("bf16", "f16", "f32"),
        "v_layout": ("rows", "transposed"),
        "variant": ("auto", "online"),
    },
    "narrow": {
        **_SHARED,
        "qkv": ("bf16", "f16"),
        "rope_dtype": ("bf16", "f16", "e4m3"),
        "out": ("bf16", "f16", "f32"),
    },
}
BEHIND = 40
"""Tokens of NaN behind the last sequence of a ragged batch, and in the gaps of a dense one."""


@functools.cache
def pairwise_specs() -> dict[str, Spec]:
    """Specs by name; any two values of two features that may stand together do so in one of them."""
    specs = {}
    for kind, features in _FEATURES.items():
        names = list(features)
        rows = AllPairs(list(features.values()), filter_func=functools.partial(_is_legal, names))
        for index, row in enumerate(rows):
            name = f"{kind}_pair_{index}"
            specs[name] = Spec.from_mapping(_mapping(name, dict(zip(names, row, strict=True))))
    return specs


def _is_legal(names: list[str], row: Sequence[Any]) -> bool:
    """Whether the values so far may stand together; a k_rope for all heads has no scale of each."""
    chosen = dict(zip(names, row, strict=False))
    per_head = chosen.get("k") in ("head", "token_head") and chosen.get("dims", _DIMS[0])[1] != 0
    return not (per_head and chosen.get("rope") == "prescaled")


def _mapping(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    nope, rope, v = chosen["dims"]
    (q_layout, kv_layout), (lse, lse_layout) = chosen["layout"], chosen["lse"]
    heads, group = chosen["heads"]
    fp8 = "qkv" not in chosen
    scales = {tensor: chosen[tensor] for tensor in ("q", "k", "v")} if fp8 else {}
    if rope and {scales.get("q", "none"), scales.get("k", "none")} != {"none"}:
        scales["rope"] = chosen["rope"]
    dtype = chosen["rope_dtype"]
    return {
        "name": name,
        "arch": "sm_90a",
        "dtypes": {
            "qkv": chosen.get("qkv", "e4m3"),
            "rope_gmem": dtype,
            "rope_mma": dtype,
            "out": chosen["out"],
        },
        "dims": {"nope": nope, "rope": rope, "v": v},
        "heads": {"q": heads, "group": group},
        "scales": scales,
        "mask": chosen["mask"],
        "layout": {"q": q_layout, "kv": kv_layout, "v": chosen.get("v_layout", "rows")},
        "softmax": {"lse": lse, "lse_layout": lse_layout, "variant": chosen.get("variant", "auto")},
    }


def problem_for(
    spec: Spec, q_lens: Sequence[int], kv_lens: Sequence[int], *, seed: int = 0, data: str = "normal"
) -> dict[str, Any]:
    """Arguments with NaN behind and between the sequences; a dense side takes its longest length for all."""
    q: int | list[int] = list(q_lens) if spec.layout.q == "ragged" else max(q_lens)
    kv: int | list[int] = list(kv_lens) if spec.layout.kv == "ragged" else max(kv_lens)
    heads = 2 * spec.heads.group if spec.heads.q == "any" else spec.heads.q
    arguments = random_problem(
        spec, batch=len(q_lens), heads=heads, q_lens=q, kv_lens=kv, seed=seed, data=data
    )
    return with_nan_around(spec, arguments)


def with_nan_around(spec: Spec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same problem as views of larger arrays that are NaN wherever no sequence lies."""
    facts = tensor_facts(spec)
    found = dict(arguments)
    sides = {"q": ("q_nope", "q_rope"), "k": ("k_nope", "k_rope", "v")}
    if facts.q_scale in ("token", "token_head"):
        sides["q"] += ("q_scale",)
    sides["k"] += tuple(
        f"{name}_scale"
        for name, form in (("k", facts.k_scale), ("v", facts.v_scale))
        if form in ("token", "token_head")
    )
    ragged = {"q": facts.q_ragged, "k": facts.kv_ragged}
    for side, names in sides.items():
        for name in names:
            if found.get(name) is not None and not (name == "v" and facts.v_transposed):
                found[name] = _surrounded(found[name], ragged=ragged[side])
    if facts.v_transposed:
        found["v"] = _columns_surrounded(found)
    return found


def _nan(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def _surrounded(array: np.ndarray, *, ragged: bool) -> np.ndarray:
    """[tokens, ...] with NaN behind, or a view of [batch, tokens, ...] with NaN in gaps, 16-byte aligned."""
    if ragged:
        return np.concatenate([array, _nan((BEHIND, *array.shape[1:]), array.dtype)])
    wide = _nan((array.shape[0], array.shape[1] + BEHIND, *array.shape[2:]), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def _columns_surrounded(arguments: Mapping[str, Any]) -> np.ndarray:
    """Transposed V with NaN in every column that is no token's."""
    v = arguments["v"]
    if "cu_seqlens_k" not in arguments:
        columns = transposed_v_columns(np.array([0, arguments["k_nope"].shape[1]]))
        width = v.shape[-1]
    else:
        cu_seqlens = np.asarray(arguments["cu_seqlens_k"])
        columns = transposed_v_columns(cu_seqlens)
        width = 16 * (arguments["k_nope"].shape[0] // 16 + len(cu_seqlens) - 1)
    wide = _nan((*v.shape[:-1], width), v.dtype)
    wide[..., columns] = v[..., columns]
    return wide


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The elements as unsigned integers of their width, which every array library takes."""
    narrow = array.dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
    if array.dtype.itemsize == 1:
        return array.view(np.uint8)
    return array.view(np.uint16) if narrow else array


def faults_of(
    plan: Plan, arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None
) -> tuple[list[str], ErrorReport]:
    """Promises of the contract that an output of these arguments breaks, and its errors against float64."""
    spec = plan.spec
    tokens = slice(int(arguments["cu_seqlens_q"][-1])) if "cu_seqlens_q" in arguments else slice(None)
    expected, expected_lse = reference(spec, **arguments)
    if lse is None:
        expected_lse = None
    else:
        by_token = (slice(None), tokens) if spec["softmax"]["lse_layout"] == "head_token" else tokens
        whole = spec["layout"]["q"] == "dense"
        lse = natural_lse(spec, lse if whole else lse[by_token])
        expected_lse = expected_lse if whole else expected_lse[by_token]
    report = measure(
        out[tokens], expected[tokens], out_dtype=spec["dtypes"]["out"], lse=lse, expected_lse=expected_lse
    )
    emulated = None
    if spec["dtypes"]["qkv"] == "e4m3":
        emulated, _ = reference(spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    bound = contract_bound(spec, expected=expected, emulated=emulated)
    broken = []
    if report.nonfinite_mismatch or report.lse_nonfinite_mismatch:
        broken.append(f"inf or NaN at {report.nonfinite_mismatch or report.lse_nonfinite_mismatch}")
    if not report.rel_frobenius <= bound.rel_frobenius:
        broken.append(f"error {report.rel_frobenius:.2e}, at most {bound.rel_frobenius:.2e} is allowed")
    if report.lse_excess is not None and not report.lse_excess <= bound.lse_abs:
        broken.append(f"LSE off by {report.lse_excess:.2e}, at most {bound.lse_abs:.2e} is allowed")
    return broken, report
