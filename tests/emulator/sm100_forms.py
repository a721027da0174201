"""Specs of Blackwell kernels: the default with other types, scales, layouts, masks, widths and bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.judge import Problem, Verdict, judge
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.render import render
from mla_codegen.resources import specs_folder
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec

_NO_SCALES = {"q": "none", "k": "none", "v": "none"}
_DENSE = {"q": "dense", "kv": "dense"}
_SEED = {"layout": "seed"}
_CONVERTED = {"qkv": "bf16", "rope_gmem": "e4m3", "rope_mma": "bf16", "scale": None}
_GLM = {"nope": 192, "rope": 64, "v": 256}


def one_type(dtype: str, **others: Any) -> dict[str, Any]:
    """The same 16-bit type for everything, without scales."""
    types = {"qkv": dtype, "rope_gmem": dtype, "rope_mma": dtype, "scale": None}
    return {"dtypes": types, "scales": _NO_SCALES, **others}


FORMS: Mapping[str, dict[str, Any]] = {
    "full_mask": {"mask": "full"},
    "lse": {"softmax": {"lse": "natural"}},
    "dense": {"layout": _DENSE},
    "dense_q_lse": {"layout": {"q": "dense"}, "softmax": {"lse": "log2", "lse_layout": "token_head"}},
    "groups": {"heads": {"group": 4}},
    "f16_out": {"dtypes": {"out": "f16"}},
    "f32_out": {"dtypes": {"out": "f32"}, "softmax": {"lse": "natural"}},
    "no_rope": {
        "dims": {"nope": 128, "rope": 0, "v": 128},
        "scales": {"q": "token_head", "k": "token_head", "rope": None},
    },
    "scales_of_tensors": {"scales": {"q": "tensor", "k": "tensor"}},
    "scales_of_keys": {"scales": {"q": "none", "k": "token"}},
    "scale_of_heads": {
        "dims": {"nope": 64, "rope": 0, "v": 64},
        "dtypes": {"out": "f32"},
        "scales": {"q": "none", "k": "head", "rope": None},
    },
    "v_scale_of_tensors": {"scales": {"v": "tensor"}},
    "v_scale_of_heads": {"scales": {"v": "head"}, "heads": {"group": 2}, "softmax": {"lse": "natural"}},
    "v_scale_of_tokens": {"scales": {"v": "token"}, "softmax": {"lse": "natural"}},
    "v_scale_of_tokens_and_heads": {
        "scales": {"q": "tensor", "k": "tensor", "v": "token_head"},
        "layout": _DENSE,
        "heads": {"group": 2},
        "dtypes": {"out": "f32"},
    },
    "v_scale_alone": {"scales": {**_NO_SCALES, "v": "token", "rope": None}, "mask": "full"},
    "v_scale_single_o": {"scales": {"v": "token"}, "dims": _GLM},
    "no_scales": {"dtypes": {"scale": None}, "scales": {**_NO_SCALES, "rope": None}},
    "narrow_v": {"dims": {"nope": 128, "rope": 64, "v": 64}},
    "wide_v": {"dims": {"nope": 128, "rope": 64, "v": 192}},
    "narrow": {"dims": {"nope": 64, "rope": 64, "v": 64}},
    "padded": {"dims": {"nope": 112, "rope": 48, "v": 80}},
    "single_o": {"dims": _GLM, "softmax": {"lse": "natural"}},
    "one_q": {"tile": {"block_m": 128}},
    "e4m3_rope": {"dtypes": {"rope_gmem": "e4m3", "rope_mma": "e4m3"}},
    "bf16": one_type("bf16"),
    "f16_lse": one_type("f16", softmax={"lse": "natural"}),
    "bf16_single_o": one_type("bf16", dims=_GLM),
    "bf16_wide_v": one_type("bf16", dims={"nope": 128, "rope": 64, "v": 192}, softmax={"lse": "natural"}),
    "bf16_small": one_type("bf16", dims={"nope": 64, "rope": 0, "v": 16}),
    "bf16_e4m3_rope": {
        "dtypes": {"qkv": "bf16", "rope_gmem": "e4m3", "rope_mma": "e4m3", "scale": None},
        "scales": _NO_SCALES,
    },
    "converted_rope": {"dtypes": _CONVERTED, "scales": _NO_SCALES},
    "converted_rope_1q": {
        "dtypes": _CONVERTED,
        "scales": _NO_SCALES,
        "tile": {"block_m": 128},
        "softmax": {"lse": "natural"},
    },
    "converted_rope_single_o": {"dtypes": _CONVERTED, "scales": _NO_SCALES, "dims": _GLM},
    "converted_rope_dense": {
        "dtypes": _CONVERTED,
        "scales": _NO_SCALES,
        "dims": {"nope": 128, "rope": 48, "v": 192},
        "layout": _DENSE,
    },
    "scaled_rope": {
        "dtypes": {**_CONVERTED, "scale": "f32"},
        "scales": {**_NO_SCALES, "rope_k": "token"},
        "softmax": {"lse": "natural"},
    },
    "scaled_rope_dense": {
        "dtypes": {**_CONVERTED, "scale": "f32"},
        "scales": {**_NO_SCALES, "rope_k": "token"},
        "dims": _GLM,
        "layout": _DENSE,
    },
    "converted_rope_of_e4m3": {"dtypes": {"rope_gmem": "e4m3", "rope_mma": "bf16"}},
    "seed_1q": {"smem": _SEED, "tile": {"block_m": 128}},
    "seed_single_o": {"smem": _SEED, "dims": _GLM},
    "seed_bf16": one_type("bf16", smem=_SEED),
}
"""What is changed of ``dsv3_fp8_sm100``; a mapping changes the fields that it names."""


@functools.cache
def spec_of(name: str) -> Spec:
    """The spec of a form, under a name of its own."""
    data = load_spec(specs_folder() / "dsv3_fp8_sm100.yaml").to_mapping()
    for section, change in FORMS[name].items():
        data[section] = {**data[section], **change} if isinstance(change, dict) else change
    return Spec.from_mapping({**data, "name": f"form_{name}"})


@functools.cache
def plan_of(name: str) -> Plan:
    return make_plan(spec_of(name))


@functools.cache
def kernel_of(name: str) -> EmulatedKernel:
    return EmulatedKernel(plan_of(name), render(plan_of(name)))


def problem_of(plan: Plan, data: str = "normal") -> Problem:
    """Ragged lengths around the tile edges, some empty, so that both bodies run; one length where dense."""
    heads = max(2, plan.spec["heads"]["group"])
    if "dense" in (plan.spec["layout"]["q"], plan.spec["layout"]["kv"]):
        return Problem(q_lens=(300,), kv_lens=(420,), batch=2, heads=heads, data=data)
    q_lens, kv_lens = (131, 0, 7, 300, 128, 1, 255), (131, 50, 0, 700, 128, 400, 129)
    return Problem(q_lens=q_lens, kv_lens=kv_lens, heads=heads, data=data)


def verdict_of(kernel: EmulatedKernel, plan: Plan, problem: Problem, *, schedules: int) -> Verdict:
    """What the accuracy contract and the hazard checker say of so many schedules."""

    def launch(arguments: Mapping[str, Any], out: Any, lse: Any, number: int) -> list[str]:
        outputs = {"out": out} if lse is None else {"out": out, "lse": lse}
        report = kernel.run(**arguments, **outputs, seed=number)
        return [hazard.message for hazard in report.hazards]

    return judge(plan, problem, launch, launches=schedules)
