"""Problems of forms: scales that differ from token to token, and NaN behind the keys of a ragged batch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from mla_codegen.problems import random_problem
from mla_codegen.reference import reference
from mla_codegen.spec import Spec
from mla_codegen.tensors import transposed_v_columns
from tests.emulator.support import Problem
from tests.forms import form, heads_of, lengths

_BEHIND = 40
_KEY_SIDE = ("k_nope", "k_rope", "v")


@functools.cache
def form_problem(name: str, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Problem:
    """Normal data in the layouts of the form; each scale is multiplied by a factor from 1/4 to 4."""
    spec = form(name)
    q_lens, kv_lens = lengths(spec, q_lens, kv_lens)
    arguments = random_problem(spec, heads=heads_of(spec), q_lens=q_lens, kv_lens=kv_lens, seed=7)
    rng = np.random.default_rng(8)
    for scale in ("q_scale", "k_scale", "v_scale"):
        if scale in arguments:
            factors = np.exp2(rng.uniform(-2, 2, arguments[scale].shape))
            arguments[scale] = (arguments[scale] * factors).astype(np.float32)
    expected, _ = reference(spec, **arguments)
    return Problem(arguments=with_nan_behind(spec, arguments), expected=expected)


def with_nan_behind(spec: Spec, arguments: dict[str, Any]) -> dict[str, Any]:
    """The call with NaN tokens behind a ragged batch of keys, and NaN wherever transposed V is padded."""
    changed = dict(arguments)
    if spec.layout.v == "transposed":
        changed["v"] = _with_nan_in_padding(arguments)
    if spec.layout.kv == "dense":
        return changed
    by_token = [side for side in ("k", "v") if getattr(spec.scales, side) in ("token", "token_head")]
    names = [key for key in _KEY_SIDE if key != "v" or spec.layout.v == "rows"]
    for key in (*names, *(f"{side}_scale" for side in by_token)):
        if arguments.get(key) is not None:
            array = arguments[key]
            more = np.full((_BEHIND, *array.shape[1:]), np.nan, array.dtype)
            changed[key] = np.concatenate([array, more])
    if spec.layout.v == "transposed":  # whole groups of 16 more, as many as the tokens behind add
        total = int(arguments["cu_seqlens_k"][-1])
        groups = (total + _BEHIND) // 16 - total // 16
        more = np.full((*arguments["v"].shape[:-1], 16 * groups), np.nan, arguments["v"].dtype)
        changed["v"] = np.concatenate([changed["v"], more], axis=-1)
    return changed


def _with_nan_in_padding(arguments: dict[str, Any]) -> np.ndarray:
    v = arguments["v"].copy()
    cumulative = arguments.get("cu_seqlens_k", np.array([0, arguments["k_nope"].shape[1]]))
    padding = np.ones(v.shape[-1], bool)
    padding[transposed_v_columns(cumulative)] = False
    v[..., padding] = np.nan
    return v
