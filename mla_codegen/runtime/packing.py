"""The by-value `Params` struct: its layout by C's rules."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.plan.model import ParamField

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
    """How the struct is packed: `format` for the struct module, little-endian with explicit padding.

    `offsets` are those of the members in bytes, in declared order.
    """

    format: str
    offsets: Mapping[str, int]
    size_bytes: int

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The bytes of the struct; KeyError where a member has no value."""
        return struct.pack(self.format, *(values[name] for name in self.offsets))

    def unpack(self, data: bytes) -> dict[str, int | float]:
        """The members by name."""
        return dict(zip(self.offsets, struct.unpack(self.format, data), strict=True))


def params_layout(fields: tuple[ParamField, ...]) -> ParamsLayout:
    """The layout of the struct with these members; ValueError where a C type is not known."""
    text, offset, align = "<", 0, 1
    offsets: dict[str, int] = {}
    for field in fields:
        code, size = _scalar(field)
        padding = -offset % size
        text += "x" * padding + code
        offsets[field.name] = offset + padding
        offset += padding + size
        align = max(align, size)
    tail = -offset % align
    return ParamsLayout(text + "x" * tail, offsets, offset + tail)


def _scalar(field: ParamField) -> tuple[str, int]:
    ctype = field.ctype.removeprefix("const ").strip()
    if "*" in ctype:
        return _POINTER
    if ctype not in _SCALARS:
        raise ValueError(f"member {field.name} of Params has the unknown type {field.ctype!r}")
    return _SCALARS[ctype]
