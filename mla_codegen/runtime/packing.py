"""The by-value `Params` struct: its layout by C's rules, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.plan.model import ParamField

TENSOR_MAP_BYTES = 128
"""Bytes of a CUtensorMap."""

# C type -> (code of the struct module, bytes); natural alignment is the size.
_SCALARS = {
    "u8": ("B", 1),
    "u16": ("H", 2),
    "u32": ("I", 4),
    "i32": ("i", 4),
    "u64": ("Q", 8),
    "i64": ("q", 8),
    "float": ("f", 4),
    "f32": ("f", 4),
}
_POINTER = ("Q", 8)


@dataclass(frozen=True, slots=True)
class ParamsLayout:
    """How the struct is packed: `format` for the struct module, little-endian with explicit padding."""

    format: str
    names: tuple[str, ...]
    size_bytes: int

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The bytes of the struct; KeyError where a member has no value."""
        return struct.pack(self.format, *(values[name] for name in self.names))


def params_layout(fields: tuple[ParamField, ...]) -> ParamsLayout:
    """The layout of the struct with these members; ValueError where a C type is not known."""
    text, offset, align = "<", 0, 1
    for field in fields:
        code, size = _scalar(field)
        padding = -offset % size
        text += "x" * padding + code
        offset += padding + size
        align = max(align, size)
    tail = -offset % align
    return ParamsLayout(text + "x" * tail, tuple(field.name for field in fields), offset + tail)


def _scalar(field: ParamField) -> tuple[str, int]:
    ctype = field.ctype.removeprefix("const ").strip()
    if "*" in ctype:
        return _POINTER
    if ctype not in _SCALARS:
        raise ValueError(f"member {field.name} of Params has the unknown type {field.ctype!r}")
    return _SCALARS[ctype]
