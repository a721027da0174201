"""Strategies of legal specs, over everything that this version plans, each feature common."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KINDS = ("e4m3 rows", "e4m3 transposed", "bf16", "f16")
"""Type of qkv and, where it matters, how V lies: each is drawn on its own, so that none is rare."""

FORMS = ("none", "tensor", "head", "token", "token_head")
SHARED_BY_HEADS = ("none", "tensor", "token")
RAGGED_OR_DENSE = st.sampled_from(["ragged", "ragged", "dense"])
ROWS = 64
"""Rows of a consumer."""


def sometimes(usual: Any, other: st.SearchStrategy[Any], *, one_in: int = 4) -> st.SearchStrategy[Any]:
    """`usual`, or one time in `one_in` something else."""
    return st.integers(1, one_in).flatmap(lambda n: st.just(usual) if n < one_in else other)


def auto_or(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return sometimes("auto", values)


DEPTHS = st.sampled_from([16, 64, 128, 192, 256]) | st.integers(1, 16).map(lambda n: 16 * n)
ROPE_DEPTHS = st.sampled_from([64, 64, 0, 32]) | st.integers(0, 16).map(lambda n: 16 * n)


@st.composite
def legal_specs(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """The mapping of a spec that breaks no rule; whether it fits an SM is the planner's to say."""
    qkv = kind.split()[0]
    fp8 = qkv == "e4m3"
    softmax = {
        "lse": draw(st.sampled_from(["none", "natural", "log2"])),
        "lse_layout": draw(st.sampled_from(["head_token", "token_head"])),
        "variant": draw(st.sampled_from(["auto", "online", "lazy"] if fp8 else ["auto", "online"])),
    }
    spec: dict[str, Any] = {
        "name": "drawn",
        "arch": "sm_90a",
        "dtypes": {
            "qkv": qkv,
            "rope_gmem": draw(st.sampled_from(["bf16", "f16", "e4m3"])),
            "out": draw(st.sampled_from(["bf16", "f16", "f32"])),
        },
        "dims": {"nope": draw(DEPTHS), "rope": draw(ROPE_DEPTHS), "v": draw(DEPTHS)},
        "heads": draw(_heads()),
        "mask": draw(st.sampled_from(["causal", "full"])),
        "layout": {
            "q": draw(RAGGED_OR_DENSE),
            "kv": draw(RAGGED_OR_DENSE),
            "v": "transposed" if kind == "e4m3 transposed" else "rows",
        },
        "softmax": softmax,
    }
    if fp8:
        spec["scales"] = draw(_scales())
    return spec | draw(_sizes(kind, flushes=fp8 and softmax["variant"] != "online"))


@st.composite
def _heads(draw: st.DrawFn) -> dict[str, Any]:
    group = draw(st.sampled_from([1, 1, 2, 3, 4]))
    return {"q": draw(sometimes("any", st.sampled_from([group, 2 * group]))), "group": group}


@st.composite
def _scales(draw: st.DrawFn) -> dict[str, Any]:
    """With k_rope stored divided by the scale of its key only where that scale is the same for all heads."""
    scales = {tensor: draw(st.sampled_from(FORMS)) for tensor in ("q", "k", "v")}
    conventions = ["prescaled", "raw"] if scales["k"] in SHARED_BY_HEADS else ["raw"]
    return scales | {"rope": draw(st.sampled_from(conventions))}


@st.composite
def _sizes(draw: st.DrawFn, kind: str, *, flushes: bool) -> dict[str, Any]:
    """Sections about tiles, rings and the schedule, mostly auto."""
    fp8, step = kind.startswith("e4m3"), 32 if kind.startswith("e4m3") else 16
    consumers = draw(auto_or(st.sampled_from([2, 3])))
    fitting = [2 * ROWS, 3 * ROWS] if consumers == "auto" else [ROWS * consumers]
    pipeline = {ring: draw(auto_or(st.integers(1, 5))) for ring in ("kv_stages", "v_stages")}
    if kind == "e4m3 rows":
        pipeline["v_raw_stages"] = draw(auto_or(st.integers(1, 4)))
    said = draw(sometimes(False, st.just(True)))
    return {
        "tile": {
            "block_m": draw(auto_or(st.sampled_from(fitting))),
            "block_n": draw(auto_or(st.integers(64 // step, 256 // step).map(lambda n: step * n))),
        },
        "pipeline": pipeline | ({"kv_ring": "separate", "pv_stages": 1} if said else {}),
        "schedule": {"consumers": consumers} | (_only_schedule(kind) if said else {}),
        "accumulation": {"flush_blocks": draw(auto_or(st.integers(1, 12))) if flushes else "auto"},
        "smem": {"layout": "auto"},
    } | ({} if fp8 else {"scales": {}})


def _only_schedule(kind: str) -> dict[str, Any]:
    """What auto chooses where there is no choice, said out loud."""
    order = "turns" if kind.startswith("e4m3") else "ping_pong"
    warps = {} if kind == "e4m3 transposed" else {"transpose_warps": 3}
    return {"order": order, "persistent": False, "longest_first": True} | warps
