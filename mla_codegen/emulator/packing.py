"""A checked call as the kernel takes it: members of Params, tensor maps, and the memory that it may touch."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from mla_codegen.emulator.arguments import Call
from mla_codegen.emulator.native import GlobalRange
from mla_codegen.plan.model import ParamField, TensorMap, Variant

_MAP_MAGIC = 0x70616D2D616C6D31
_MAP_FORMAT = "<QQ5Q4Q5HBBB"  # HostMap of tma.cpp
_MAP_BYTES = 128


def param_slot(field: ParamField, call: Call, variant: Variant) -> int:
    """A member of Params as 64 bits; KeyError where the plan asks for one that is not known here."""
    value = _param_value(field, call, variant)
    if isinstance(value, float):
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return value & 0xFFFFFFFFFFFFFFFF


def encode_map(tensor_map: TensorMap, call: Call) -> bytes:
    """The host form of a tensor map over the argument that it copies."""
    array = call.arrays[tensor_map.argument]
    address, extents, strides = array.ctypes.data, [], []
    places = {"tokens": 0, "heads": 1, "depth": array.ndim - 1}
    for axis in tensor_map.axes:
        shared = axis == "heads" and (array.ndim == 2 or _head_step(array) == 0)
        extents.append(1 if shared else array.shape[places[axis]])
        strides.append(0 if shared else array.strides[places[axis]])
    if array.size == 0:
        extents = [0 for _ in extents]
    return pack_map(address, extents, strides[1:], tensor_map.box, array.itemsize, tensor_map.swizzle_bytes)


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


def _param_value(field: ParamField, call: Call, variant: Variant) -> int | float:
    arrays, name = call.arrays, field.name
    if name in arrays:
        return arrays[name].ctypes.data
    if name.endswith("_head_step"):
        return _head_step(arrays[name.removesuffix("_head_step")])
    if name.endswith("_stride"):
        array = arrays[name.removesuffix("_token_stride").removesuffix("_head_stride")]
        return 0 if field.axis is None else array.strides[field.axis] // array.itemsize
    if name == "scale_log2":
        return call.softmax_scale * math.log2(math.e)
    if name == "query_tiles":
        return call.query_tiles(variant)
    return call.sizes[name]


def _head_step(array: np.ndarray) -> int:
    return 0 if array.shape[1] == 1 or array.strides[1] == 0 else 1


def _padded(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]
