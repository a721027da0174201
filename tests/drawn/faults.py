"""Strategies of specs with one fault: which field has it, and what the diagnostic has to quote."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from mla_codegen.spec_faults import bare
from tests.drawn.specs import FORMS, KINDS, ROWS, legal_specs

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "none", "e4m3", "bf16", "token", "lazy", "paged", 16, 64, 128]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
"""What a YAML file may say anywhere."""

_NO_NUMBERS = st.sampled_from(["64", "many", None, True, 64.0, [64], {"rows": 64}])
_NO_DEPTHS = (
    st.integers(-300, 600).filter(lambda n: n % 16 or not 0 <= n <= 256)
    | st.sampled_from([-16, 272, 512, 2**40])
    | _NO_NUMBERS
)
_NO_COUNTS = st.sampled_from([0, -1, 2**40]) | _NO_NUMBERS
_WORDS = st.sampled_from(["fast", "e5m2", "", "AUTO", None, 7, True, ["auto"]])
_NO_NAMES = st.sampled_from(["K", "1k", "a-b", "a b", "", "../x", "class", "namespace", "a" * 201, None, 3])

ALWAYS_WRONG: Mapping[str, st.SearchStrategy[Any]] = {
    "spec_version": st.sampled_from([0, 2, 99, "1", None]),
    "name": _NO_NAMES,
    "arch": st.sampled_from(["sm_80", "sm_90", "sm_120a", "H200", 90, None]),
    "dtypes.qkv": st.sampled_from(["e5m2", "f32", "E4M3", "fp8", None, 8]),
    "dtypes.rope_gmem": st.sampled_from(["f32", "e5m2", None, 16]),
    "dtypes.out": st.sampled_from(["e4m3", "f64", None, 16]),
    "dtypes.scale": st.sampled_from(["bf16", "e8m0", 32]),
    "dims.nope": _NO_DEPTHS | st.just(0),
    "dims.rope": _NO_DEPTHS,
    "dims.v": _NO_DEPTHS | st.just(0),
    "heads.q": _NO_COUNTS | st.just("all"),
    "heads.group": _NO_COUNTS | st.just("any"),
    "scales.q": st.sampled_from(["row", "block", None, 1]),
    "scales.k": st.sampled_from(["row", "block", None, 1]),
    "scales.v": st.sampled_from(["row", "block", None, 1]),
    "scales.rope": st.sampled_from(["stored", "none", 1]),
    "mask": st.sampled_from(
        [
            {"window": [64, 0]},
            {"window": [1]},
            {"chunk": 128},
            {"prefix_lm": True},
            {"band": 3},
            "none",
            None,
            True,
        ]
    ),
    "layout.q": st.sampled_from(["paged", "packed", None]),
    "layout.kv": st.sampled_from([{"paged": 64}, {"paged": 0}, "paged", None]),
    "layout.rope": st.sampled_from([{"paged": 64}, "paged", 64]),
    "layout.v": st.sampled_from(["columns", None, 1]),
    "tile.block_m": st.sampled_from([0, 16, 64, 144, 256, 512, 100, 528])
    | _NO_NUMBERS.filter(lambda v: v != 64),
    "tile.block_n": st.sampled_from([0, 16, 32, 48, 100, 272, 512, 528])
    | _NO_NUMBERS.filter(lambda v: v != 64),
    "pipeline.kv_stages": _NO_COUNTS | st.just(33),
    "pipeline.v_stages": _NO_COUNTS | st.just(33),
    "pipeline.qk_stages": st.sampled_from([0, 2, 8, 33, "auto"]),
    "pipeline.pv_stages": st.sampled_from([0, 2, 8, 33]),
    "pipeline.kv_ring": st.sampled_from(["shared", "unified"]) | _WORDS,
    "accumulation.flush_blocks": _NO_COUNTS | st.just(70000),
    "softmax.lse": st.sampled_from(["log10", True, None]),
    "softmax.lse_layout": _WORDS,
    "softmax.variant": _WORDS,
    "softmax.sink": st.sampled_from([True, 1, "yes", None]),
    "softmax.softcap": st.sampled_from([30.0, 0.0, -1.0, "30", True]),
    "smem.layout": st.just("seed") | _WORDS,
    "schedule.consumers": st.sampled_from([0, 1, 4, 8, 9]) | _NO_NUMBERS,
    "schedule.order": st.just("free") | _WORDS,
    "schedule.transpose_warps": st.sampled_from([0, 1, 2, 4, 17, -1]) | _NO_NUMBERS,
    "schedule.persistent": st.sampled_from([1, "yes", 2.5, None]),
    "schedule.longest_first": st.sampled_from([False, 0, "no", None]),
    "softmax": st.sampled_from(["online", 3, None, ["lse"]]),
}
"""Values that are wrong whatever else a spec says, features of other architectures among them."""

REQUIRED = ("name", "arch", "dtypes", "dtypes.qkv", "dims", "dims.nope", "dims.rope", "dims.v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """A mapping, the field that is wrong in it, and what the message has to say of what was found."""

    spec: dict[str, Any]
    field: str
    found: str


Draw = Callable[[st.SearchStrategy[Any]], Any]
Contradiction = Callable[[dict[str, Any], Draw], Faulty]
"""A legal spec made illegal."""


def put(spec: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """A copy with a dotted field set."""
    changed = copy.deepcopy(dict(spec))
    section, _, key = field.rpartition(".")
    target = changed.setdefault(section, {}) if section else changed
    target[key] = value
    return changed


def fault_at(spec: Mapping[str, Any], field: str, value: Any) -> Faulty:
    """The spec with a wrong value; a mapping is quoted by its key at least."""
    found = bare(next(iter(value), "")) if isinstance(value, Mapping) else bare(value)
    return Faulty(spec=put(spec, field, value), field=field, found=found)


def _of_type(spec: Mapping[str, Any], field: str, draw: Draw, *, but: str) -> Faulty:
    return fault_at(spec, field, draw(st.sampled_from([x for x in ("e4m3", "bf16", "f16") if x != but])))


def _p_of_another_type(spec: dict[str, Any], draw: Draw) -> Faulty:
    return _of_type(spec, "dtypes.p", draw, but=spec["dtypes"]["qkv"])


def _converted_rope(spec: dict[str, Any], draw: Draw) -> Faulty:
    return _of_type(spec, "dtypes.rope_mma", draw, but=spec["dtypes"]["rope_gmem"])


def _type_of_no_scales(spec: dict[str, Any], draw: Draw) -> Faulty:
    scaled = any(spec["scales"].get(tensor, "none") != "none" for tensor in ("q", "k", "v"))
    return fault_at(spec, "dtypes.scale", None if scaled else "f32")


def _scales_of_16_bits(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, f"scales.{draw(st.sampled_from('qkv'))}", draw(st.sampled_from(FORMS[1:])))


def _rope_without_convention(spec: dict[str, Any], draw: Draw) -> Faulty:
    spec = put(_with_rope(spec), "scales.q", draw(st.sampled_from(FORMS[1:])))
    return Faulty(spec=put(spec, "scales.rope", None), field="scales.rope", found="missing")


def _rope_divided_by_scales_of_heads(spec: dict[str, Any], draw: Draw) -> Faulty:
    prescaled = put(_with_rope(spec), "scales.rope", "prescaled")
    return fault_at(prescaled, "scales.k", draw(st.sampled_from(["head", "token_head"])))


def _with_rope(spec: Mapping[str, Any]) -> dict[str, Any]:
    return put(spec, "dims.rope", spec["dims"]["rope"] or 64)


def _scales_of_k_rope(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "scales.rope_k", "token")


def _heads_of_no_group(spec: dict[str, Any], draw: Draw) -> Faulty:
    group = draw(st.integers(2, 16))
    heads = draw(st.integers(1, 128).filter(lambda count: count % group))
    return fault_at(put(spec, "heads.group", group), "heads.q", heads)


def _transposed_16_bits(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "layout.v", "transposed")


def _raw_ring_of_nothing(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "pipeline.v_raw_stages", draw(st.integers(1, 32)))


def _half_a_step_of_keys(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "tile.block_n", draw(st.integers(2, 7).map(lambda n: 32 * n + 16)))


def _rows_of_other_consumers(spec: dict[str, Any], draw: Draw) -> Faulty:
    consumers = draw(st.sampled_from([2, 3]))
    return fault_at(put(spec, "tile.block_m", ROWS * consumers), "schedule.consumers", 5 - consumers)


def _flushes_of_nothing(spec: dict[str, Any], draw: Draw) -> Faulty:
    online = put(spec, "softmax.variant", "online")
    return fault_at(online, "accumulation.flush_blocks", draw(st.integers(1, 65536)))


def _order_of_the_other_type(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "schedule.order", "ping_pong" if spec["dtypes"]["qkv"] == "e4m3" else "turns")


def _warps_that_transpose_nothing(spec: dict[str, Any], draw: Draw) -> Faulty:
    return fault_at(spec, "schedule.transpose_warps", 3)


def _transposed_v_on_blackwell(spec: dict[str, Any], draw: Draw) -> Faulty:
    moved = put(spec, "arch", draw(st.sampled_from(["sm_100a", "sm_100f", "sm_103a"])))
    return fault_at(moved, "layout.v", "transposed")


def _nothing_where_something_must_be(spec: dict[str, Any], draw: Draw) -> Faulty:
    field = draw(st.sampled_from(REQUIRED))
    changed = copy.deepcopy(spec)
    section, _, key = field.rpartition(".")
    del (changed[section] if section else changed)[key]
    return Faulty(spec=changed, field=field, found="missing")


_FP8, _NARROW = KINDS[:2], KINDS[2:]
CONTRADICTIONS: Mapping[Contradiction, tuple[str, ...]] = {
    _p_of_another_type: KINDS,
    _converted_rope: KINDS,
    _type_of_no_scales: KINDS,
    _scales_of_16_bits: _NARROW,
    _rope_without_convention: _FP8,
    _rope_divided_by_scales_of_heads: _FP8,
    _scales_of_k_rope: KINDS,
    _heads_of_no_group: KINDS,
    _transposed_16_bits: _NARROW,
    _raw_ring_of_nothing: KINDS[1:],
    _half_a_step_of_keys: _FP8,
    _rows_of_other_consumers: KINDS,
    _flushes_of_nothing: KINDS,
    _order_of_the_other_type: KINDS,
    _warps_that_transpose_nothing: ("e4m3 transposed",),
    _transposed_v_on_blackwell: ("e4m3 transposed",),
    _nothing_where_something_must_be: KINDS,
}
"""What contradicts the rest of a spec, and the kinds of specs that it contradicts."""


@st.composite
def contradictory_specs(draw: st.DrawFn, contradiction: Contradiction) -> Faulty:
    """A legal spec with this fault."""
    kind = draw(st.sampled_from(CONTRADICTIONS[contradiction]))
    return contradiction(draw(legal_specs(kind)), draw)


@st.composite
def wrong_values(draw: st.DrawFn, field: str) -> Faulty:
    """A legal spec with a wrong value in a field."""
    spec = draw(st.sampled_from(KINDS).flatmap(legal_specs))
    return fault_at(spec, field, draw(ALWAYS_WRONG[field]))


@st.composite
def unknown_keys(draw: st.DrawFn) -> Faulty:
    """A legal spec with a key that no spec has, or not there."""
    spec = draw(st.sampled_from(KINDS).flatmap(legal_specs))
    field = draw(st.sampled_from(["tile.blok_n", "tile.kv_stages", "kernel", "dims.rope_dim", "Arch"]))
    key = field.rpartition(".")[2]
    return Faulty(spec=put(spec, field, draw(JSON_VALUES)), field=field, found=key)
