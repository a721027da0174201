"""A checked call as the kernel takes it: members of Params, tensor maps, and the memory that it may touch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from mla_codegen.call.launch import map_dimensions, param_value
from mla_codegen.emulator.arguments import Call
from mla_codegen.emulator.native import GlobalRange
from mla_codegen.plan.model import ParamField, TensorMap, Variant

_MAP_MAGIC = 0x70616D2D616C6D31
_MAP_FORMAT = "<QQ5Q4Q5HBBB"  # HostMap of tma.cpp
_MAP_BYTES = 128


def param_slot(field: ParamField, call: Call, variant: Variant) -> int:
    """A member of Params as 64 bits; KeyError where the plan asks for one that is not known here."""
    if field.name in call.arrays:
        return int(call.arrays[field.name].ctypes.data)
    value = param_value(field, variant, call.problem, call.forms)
    if isinstance(value, float):
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return value & 0xFFFFFFFFFFFFFFFF


def encode_map(tensor_map: TensorMap, call: Call) -> bytes:
    """The host form of a tensor map over the argument that it copies, all extents 0 where that is empty."""
    array, form = call.arrays[tensor_map.argument], call.forms[tensor_map.argument]
    extents, strides = zip(*map_dimensions(tensor_map, form), strict=True)
    if form.is_empty:
        extents = tuple(0 for _ in extents)
    address = int(array.ctypes.data)
    return pack_map(address, extents, strides[1:], tensor_map.box, form.item_bytes, tensor_map.swizzle_bytes)


def pack_map(
    address: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_bytes: int,
    swizzle_bytes: int,
) -> bytes:
    """The 128 bytes of the host form; dimensions innermost first, `strides` in bytes without the first."""
    packed = struct.pack(
        _MAP_FORMAT,
        _MAP_MAGIC,
        address,
        *_padded(extents, 5),
        *_padded(strides, 4),
        *_padded(box, 5),
        element_bytes,
        len(extents),
        swizzle_bytes,
    )
    return packed.ljust(_MAP_BYTES, b"\0")


def global_ranges(call: Call, outputs: frozenset[str], marks: Mapping[str, np.ndarray]) -> list[GlobalRange]:
    """What the kernel may touch: every array from its first to its last byte."""
    ranges = []
    for index, (name, array) in enumerate(call.arrays.items()):
        low, high = _byte_bounds(array)
        mark = marks[name].ctypes.data if name in marks else 0
        ranges.append(
            GlobalRange(address=low, bytes=high - low, marks=mark, writable=name in outputs, index=index)
        )
    return ranges


def new_marks(array: np.ndarray) -> np.ndarray:
    """A byte per 2 bytes of the memory that an output spans."""
    low, high = _byte_bounds(array)
    return np.zeros((high - low) // 2 + 1, np.uint8)


def unwritten_elements(out: np.ndarray, marks: np.ndarray | None) -> int:
    """Elements of an output that no store has marked."""
    if marks is None or out.size == 0:
        return out.size
    view = np.lib.stride_tricks.as_strided(marks, out.shape, [stride // 2 for stride in out.strides])
    return int(out.size - np.count_nonzero(view))


def _byte_bounds(array: np.ndarray) -> tuple[int, int]:
    """First byte of an array and the one behind its last; both the same where it is empty.

    No stride is negative: such arrays are refused.
    """
    address = int(array.ctypes.data)
    if array.size == 0:
        return address, address
    steps = ((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
    return address, address + sum(steps) + array.itemsize


def _padded(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]
