"""What a DLPack capsule says of its array, read here since `cupy.from_dlpack` refuses 8-bit floats."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mla_codegen.errors import LaunchError

_CUDA_DEVICE = 2
_LEGACY_DEFAULT_STREAM = 1
_TYPES = {0: "int", 1: "uint", 2: "float"}
_NAMES = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2", (6, 8): "bool"}


class DlpackArray(NamedTuple):
    """Address and layout; strides in elements, None where the array is contiguous."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    item_bytes: int
    dtype: str
    device: int


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """The first member of the structure behind a `dltensor` capsule (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def read_dlpack(name: str, array: Any, stream: int) -> DlpackArray:
    """What `array.__dlpack__` exports of argument `name`; LaunchError where it is not on a CUDA device."""
    device_type = int(array.__dlpack_device__()[0])
    if device_type != _CUDA_DEVICE:
        raise LaunchError.single(
            "host-array",
            f"{name} is on DLPack device type {device_type}, type {_CUDA_DEVICE} (CUDA) is needed",
            help="move it to the GPU, or load the kernel with backend='emulator'",
        )
    # 0 is no stream in DLPack. The capsule is only looked at: dropped under its own name, it frees what it
    # holds itself, and the memory stays with the array.
    capsule = array.__dlpack__(stream=stream or _LEGACY_DEFAULT_STREAM)
    tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    return DlpackArray(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        item_bytes=tensor.dtype.bits * tensor.dtype.lanes // 8,
        dtype=_dtype_name(tensor.dtype),
        device=tensor.device_id,
    )


def _dtype_name(dtype: _DataType) -> str:
    if dtype.code in _TYPES:
        return f"{_TYPES[dtype.code]}{dtype.bits}"
    return _NAMES.get((dtype.code, dtype.bits), f"dlpack code {dtype.code} of {dtype.bits} bits")
