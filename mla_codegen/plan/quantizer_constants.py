"""The constants section of a generated quantiser: every number once, with its unit, meaning or derivation."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from mla_codegen.plan.model import Constant, ConstantGroup
from mla_codegen.plan.quantizer_model import Part
from mla_codegen.scale_rule import E4M3_LARGEST, ROPE_LARGEST, SMALLEST_SCALE
from mla_codegen.tensors import V_GROUP_TOKENS, TensorFacts

UNIT_ELEMS = 8
"""Elements of q, kv and k_rope in 16 bytes."""
ROW_LANES = 8
"""Lanes that share a row of q or kv at most: 16 bytes each are one line of the cache."""
K_ROPE_LANES = 32
"""Lanes that share a row of k_rope at most: a warp."""
COLUMN_UNITS = 8
"""Units of a row of V that a warp loads at a time: 128 bytes, in each of the rows of four lanes."""
_INPUT_BYTES = 2
_LIFT_LOG2 = 64
_QUICK_QUOTIENT_LOG2 = -32
"""Times a lifted scale of at least 2^-64 it is 2^-96: its residual, 2^-48 times as large, is a float32."""
_MANY_UNITS = 16
_ROPE_BYTES = {"e4m3": 1, "bf16": 2, "f16": 2}

_Row = tuple[str, str, object, str]


def plan_constants(
    facts: TensorFacts, parts: tuple[Part, ...], largest_tokens: int, threads: int
) -> tuple[ConstantGroup, ...]:
    """The groups in printing order."""
    groups = [_group("sizes", _sizes(facts)), _group("threads", _threads(parts, threads))]
    groups += [
        _group(f"rows of {part.function}", _rows(facts, part))
        for part in parts
        if part.function != "transpose_v"
    ]
    scaled = [scale for part in parts for scale in part.scales]
    if facts.rope:
        groups.append(_group("rows of k_rope", _k_rope(facts)))
    if facts.v_transposed:
        groups.append(_group("columns of the transposed V", _columns(facts, threads)))
    if scaled or any(part.targets for part in parts):
        groups.append(_group("scales", _scales(facts, parts, largest_tokens)))
    return tuple(groups)


def row_units(facts: TensorFacts, names: Iterable[str]) -> dict[str, int]:
    """Units of 16 bytes in a row of each segment."""
    depths = {"q_nope": facts.nope, "q_rope": facts.rope, "k_nope": facts.nope, "v": facts.v}
    return {name: depths[name] // UNIT_ELEMS for name in names}


def k_rope_shape(facts: TensorFacts) -> tuple[int, int]:
    """Lanes that share a row of k_rope, and units of each."""
    units = facts.rope // UNIT_ELEMS
    lanes = min(K_ROPE_LANES, units & -units)
    return lanes, units // lanes


def _sizes(facts: TensorFacts) -> list[_Row]:
    rows: list[_Row] = [
        ("u32", "kInputBytes", _INPUT_BYTES, "of an element of q, kv and k_rope"),
        ("u32", "kUnitElems", UNIT_ELEMS, "elements of 16 bytes, a thread's load"),
        ("u32", "kNopeDepth", facts.nope, "elements, and bytes in e4m3, of a row of q_nope and k_nope"),
        ("u32", "kVDepth", facts.v, "elements, and bytes in e4m3, of a row of v"),
        ("u32", "kNopeOffsetBytes", 0, "nope in a row of q and kv"),
        ("u32", "kVOffsetBytes", facts.nope * _INPUT_BYTES, "v in a row of kv"),
    ]
    if facts.rope:
        rope_bytes = facts.rope * _ROPE_BYTES[facts.rope_dtype]
        rows += [
            ("u32", "kRopeOffsetBytes", facts.nope * _INPUT_BYTES, "rope in a row of q"),
            ("u32", "kRopeRowBytes", rope_bytes, f"of a row of q_rope and k_rope in {facts.rope_dtype}"),
        ]
    return rows


def _threads(parts: tuple[Part, ...], threads: int) -> list[_Row]:
    whole_lines = all(part.lanes == ROW_LANES for part in parts)
    units = max((part.thread_units for part in parts), default=0)
    ctas = 2 if units <= _MANY_UNITS and whole_lines else 1
    return [
        ("u32", "kThreads", threads, "of a CTA"),
        ("u32", "kWarps", threads // 32, "of a CTA"),
        ("u32", "kMinCtas", ctas, "of an SM at least, by registers"),
    ]


def _rows(facts: TensorFacts, part: Part) -> list[_Row]:
    prefix, lanes, steps = part.prefix, part.lanes, part.steps
    rows: list[_Row] = [
        ("u32", f"{prefix}Lanes", lanes, "that share a row"),
        ("u32", f"{prefix}Steps", steps, "rows that a thread has a part of"),
        (
            "u32",
            f"{prefix}StepRows",
            part.rows_per_cta // steps,
            f"kThreads / {prefix}Lanes: rows of all threads",
        ),
        ("u32", f"{prefix}Rows", part.rows_per_cta, "rows that the registers of a CTA hold"),
    ]
    units = row_units(facts, (segment.name for segment in part.segments))
    for segment in part.segments:
        comment = f"16 bytes each, of a lane in a row of {segment.name}"
        rows.append(("u32", segment.units, units[segment.name] // lanes, comment))
    return rows


def _k_rope(facts: TensorFacts) -> list[_Row]:
    lanes, units = k_rope_shape(facts)
    return [
        ("u32", "kKRopeLanes", lanes, "of a warp that share a row of k_rope"),
        ("u32", "kKRopeUnits", units, "16 bytes each, of a lane"),
    ]


def _columns(facts: TensorFacts, threads: int) -> list[_Row]:
    units = facts.v // UNIT_ELEMS
    return [
        ("u32", "kColumnGroups", threads // 32, f"of {V_GROUP_TOKENS} columns: one a warp"),
        ("u32", "kColumnUnits", COLUMN_UNITS, "units of a row of V that lanes side by side load"),
        ("u32", "kVRowUnits", units, "kVDepth / kUnitElems"),
        ("u32", "kVUnitRounds", -(-units // COLUMN_UNITS), "kVRowUnits / kColumnUnits, rounded up"),
    ]


def _scales(facts: TensorFacts, parts: tuple[Part, ...], largest_tokens: int) -> list[_Row]:
    scaled = [scale for part in parts for scale in part.scales]
    lift = float(2.0**_LIFT_LOG2).hex()
    rows: list[_Row] = [
        ("float", "kScalePerLargest", _reciprocal(E4M3_LARGEST), "1 / 448: the largest becomes 448"),
        ("float", "kSmallestScale", f"{SMALLEST_SCALE.hex()}f", "2^-126, whose reciprocal is finite"),
        ("float", "kLift", f"{lift}f", f"2^{_LIFT_LOG2}: what small scales are multiplied by"),
        (
            "float",
            "kLiftBelow",
            f"{float(2.0**-_LIFT_LOG2).hex()}f",
            f"2^-{_LIFT_LOG2}: which scales are small",
        ),
        ("u32", "kMagnitudes", "0x7fff7fffu", "two 16-bit floats without their signs"),
    ]
    if facts.rope_dtype != "e4m3" and any(scale.is_prescaled for scale in scaled):
        smallest = float(2.0**_QUICK_QUOTIENT_LOG2).hex()
        comment = f"2^{_QUICK_QUOTIENT_LOG2}: larger quotients are right the quick way"
        rows.append(("float", "kQuickQuotient", f"{smallest}f", comment))
    if facts.rope and any(scale.is_prescaled for scale in scaled):
        limit = ROPE_LARGEST[facts.rope_dtype]
        text = "2^48" if limit == 2.0**48 else f"{limit:g}"
        rows.append(
            ("float", "kScalePerRopeLargest", _reciprocal(limit), f"1 / {text}: rope becomes at most that")
        )
    if any(part.targets for part in parts):
        comment = "times the tokens of other CTAs: those of one that looks for largest"
        rows.append(("u32", "kLargestTokens", largest_tokens, comment))
    by_token = [part for part in parts if part.token_scales]
    if by_token:
        rows += [
            ("u32", "kSlots", max(part.rows_per_cta for part in by_token), "rows that leave their largest"),
            *(("u32", name, slot, f"place of {what} among two") for name, slot, what in _slots(by_token)),
        ]
    return rows


def _slots(parts: list[Part]) -> list[tuple[str, int, str]]:
    """The slots that the parts use, each once."""
    known = {
        "kQScaleSlot": (0, "q_nope and q_scale"),
        "kKScaleSlot": (0, "k_nope and k_scale"),
        "kQRopeSlot": (1, "q_rope"),
        "kVScaleSlot": (1, "v and v_scale"),
    }
    used = {name for part in parts for scale in part.token_scales for name in (scale.slot, scale.rope_slot)}
    return [(name, *place) for name, place in known.items() if name in used]


def _reciprocal(limit: float) -> str:
    """1 / limit as `quantize` has it: the float32 nearest to it."""
    nearest = struct.unpack("f", struct.pack("f", 1.0 / limit))[0]
    return f"{float(nearest).hex()}f"


def _group(title: str, rows: list[_Row]) -> ConstantGroup:
    return ConstantGroup(
        title=title,
        constants=tuple(
            Constant(ctype=ctype, name=name, literal=str(value), comment=comment)
            for ctype, name, value, comment in rows
        ),
    )
