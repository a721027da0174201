"""Kernels whose CTAs go through several heads: specs of all forms, problems, and runs of given heads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.problems import random_problem
from mla_codegen.render import render
from mla_codegen.spec import Spec
from tests.forms import FORMS
from tests.pairs import with_nan_around

_BASE: Mapping[str, Any] = {"name": "heads", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
_FP8: Mapping[str, Any] = {
    "dtypes": {"qkv": "e4m3"},
    "scales": {"q": "token", "k": "token", "rope": "prescaled"},
}
_BF16: Mapping[str, Any] = {"dtypes": {"qkv": "bf16"}}
KERNELS: Mapping[str, Mapping[str, Any]] = {
    "fp8": _FP8,
    "fp8_full": {**_FP8, "mask": "full"},
    "fp8_online": {**_FP8, "softmax": {"variant": "online"}},
    "fp8_one_stage": {**_FP8, "pipeline": {"kv_stages": 1, "v_stages": 1, "v_raw_stages": 1}},
    "bf16": _BF16,
    "bf16_full": {**_BF16, "mask": "full"},
    "bf16_one_stage": {**_BF16, "pipeline": {"kv_stages": 1, "v_stages": 2}},
    "bf16_three_consumers": {**_BF16, "schedule": {"consumers": 3}},
    **{
        name: FORMS[name]
        for name in (
            *(
                "transposed",
                "raw_k_token",
                "glm_fp8",
                "glm_bf16",
                "bf16_lse_group",
                "fp8_all_group",
                "fp8_lse",
            ),
            *("bf16_dense", "fp8_dense", "transposed_dense", "v_token_head", "fp8_no_rope"),
        )
    },
}
"""What a spec says beside name, architecture and usual dimensions."""


def spec_of(name: str) -> Spec:
    """With runs of as many heads as there can be."""
    said = KERNELS[name]
    schedule = {**said.get("schedule", {}), "persistent": True}
    return Spec.from_mapping({**_BASE, **said, "schedule": schedule})


@functools.cache
def plan_of(name: str) -> Plan:
    return make_plan(spec_of(name))


@functools.cache
def source_of(name: str) -> str:
    return render(plan_of(name))


@functools.cache
def kernel_of(name: str, run_heads: int, source: str | None = None) -> EmulatedKernel:
    """The kernel, or another source in its place, launched with so many heads a CTA."""
    plan = plan_of(name)
    (variant,) = plan.variants
    launch = dataclasses.replace(variant.launch, run_heads=run_heads)
    changed = dataclasses.replace(plan, variants=(dataclasses.replace(variant, launch=launch),))
    return EmulatedKernel(changed, source or source_of(name))


def problem_of(
    name: str, q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, *, seed: int = 0
) -> dict[str, Any]:
    """Arguments with NaN wherever no sequence lies; a dense side has its longest length for all."""
    spec = spec_of(name)
    sides = ((spec.layout.q, q_lens), (spec.layout.kv, kv_lens))
    q, kv = (max(lens) if layout == "dense" else list(lens) for layout, lens in sides)
    arguments = random_problem(spec, batch=len(q_lens), heads=heads, q_lens=q, kv_lens=kv, seed=seed)
    return with_nan_around(spec, arguments)
