"""Problems, references and kernels for the emulator's tests."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mla_codegen.emulator import EmulatedKernel, EmulationReport
from mla_codegen.plan.model import Plan

GENERATED = Path(__file__).parents[2] / "generated"
SCHEDULES = 20
BOUNDS = {"e4m3": 4e-2, "bf16": 5e-3}
"""Relative Frobenius error that a correct kernel keeps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Arguments of a call and what it should give."""

    arguments: dict[str, Any]
    expected: np.ndarray


@functools.cache
def plan_of(name: str) -> Plan:
    """The plan of a generated kernel."""
    return Plan.from_json((GENERATED / name / "plan.json").read_text())


@functools.cache
def source_of(name: str) -> str:
    """The source of a generated kernel."""
    return (GENERATED / name / f"{name}.cu").read_text()


@functools.cache
def kernel_of(name: str) -> EmulatedKernel:
    """The emulated kernel of a generated folder."""
    return EmulatedKernel(plan_of(name), source_of(name))


@functools.cache
def make_problem(
    name: str,
    q_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    heads: int,
    seed: int = 0,
    v_mean: float = 0.0,
) -> Problem:
    """Normal data; what lies behind the last sequence is NaN in every key-side tensor."""
    spec = plan_of(name).spec
    fp8 = spec["dtypes"]["qkv"] == "e4m3"
    qkv = ml_dtypes.float8_e4m3fn if fp8 else ml_dtypes.bfloat16
    e4m3_rope = spec["dtypes"]["rope_gmem"] == "e4m3"
    rope = ml_dtypes.float8_e4m3fn if e4m3_rope else ml_dtypes.bfloat16
    rng = np.random.default_rng(seed)
    total_q, total_k, behind = sum(q_lens), sum(kv_lens), 40

    def tensor(*shape: int, dtype: Any, spread: float = 1.0, mean: float = 0.0) -> np.ndarray:
        return (mean + spread * rng.standard_normal(shape)).astype(np.float32).astype(dtype)

    arguments: dict[str, Any] = {
        "q_nope": tensor(total_q, heads, 128, dtype=qkv),
        "q_rope": tensor(total_q, heads, 64, dtype=rope),
        "k_nope": tensor(total_k + behind, heads, 128, dtype=qkv),
        "k_rope": tensor(total_k + behind, 64, dtype=rope),
        "v": tensor(total_k + behind, heads, 128, dtype=qkv, mean=v_mean, spread=0.25 if v_mean else 1.0),
        "cu_seqlens_q": np.cumsum([0, *q_lens]).astype(np.int32),
        "cu_seqlens_k": np.cumsum([0, *kv_lens]).astype(np.int32),
        "max_seqlen_q": max(q_lens, default=0),
    }
    for key in ("k_nope", "k_rope", "v"):
        arguments[key][total_k:] = np.nan
    if fp8:
        arguments["q_scale"] = (0.5 + rng.random(total_q)).astype(np.float32)
        arguments["k_scale"] = (0.5 + rng.random(total_k + behind)).astype(np.float32)
        arguments["k_scale"][total_k:] = np.nan
    if spec["scales"]["rope_k"] == "token":
        arguments["k_rope_scale"] = (0.5 + rng.random(total_k + behind)).astype(np.float32)
        arguments["k_rope_scale"][total_k:] = np.nan
    causal = spec["mask"] == "causal"
    return Problem(arguments=arguments, expected=reference(arguments, q_lens, kv_lens, causal=causal))


def reference(
    arguments: dict[str, Any], q_lens: tuple[int, ...], kv_lens: tuple[int, ...], *, causal: bool
) -> np.ndarray:
    """Attention in float64."""
    values = {
        key: value.astype(np.float64) for key, value in arguments.items() if isinstance(value, np.ndarray)
    }
    q = np.concatenate([values["q_nope"], values["q_rope"]], axis=2)
    q *= values.get("q_scale", np.ones(q.shape[0]))[:, None, None]
    k_scale = values.get("k_scale", np.ones(values["k_nope"].shape[0]))
    values["k_rope"] *= values.get("k_rope_scale", np.ones(k_scale.size))[:, None]
    out = np.zeros(values["q_nope"].shape)
    q_begin = k_begin = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        rows, keys = slice(q_begin, q_begin + q_len), slice(k_begin, k_begin + kv_len)
        q_begin, k_begin = q_begin + q_len, k_begin + kv_len
        hidden = np.arange(kv_len)[None] > np.arange(q_len)[:, None] + kv_len - q_len
        for head in range(q.shape[1] if kv_len else 0):
            k = np.concatenate([values["k_nope"][keys, head], values["k_rope"][keys]], axis=1)
            z = q[rows, head] @ (k * k_scale[keys, None]).T / np.sqrt(192)
            if causal:
                z[hidden] = -np.inf
            top = z.max(axis=1, keepdims=True)
            p = np.exp(z - np.where(np.isfinite(top), top, 0.0))
            total = p.sum(axis=1, keepdims=True)
            out[rows, head] = p @ values["v"][keys, head] / np.where(total == 0, 1.0, total)
    return out


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    """Relative Frobenius error; infinite where a NaN or infinity stands."""
    values = out.astype(np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.linalg.norm(values - expected) / max(np.linalg.norm(expected), 1e-30))


def run(kernel: EmulatedKernel, problem: Problem, *, seed: int, policy: str | None = None) -> EmulationReport:
    """One schedule of the problem."""
    chosen = policy or ("late", "early", "random")[seed % 3]
    return kernel.run(**problem.arguments, seed=seed, policy=chosen)
