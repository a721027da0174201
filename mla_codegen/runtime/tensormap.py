"""Tensor maps: what the driver's cuTensorMapEncodeTiled is asked for, and a cache of its answers."""

from __future__ import annotations

import collections
import ctypes
import threading
from collections.abc import Callable
from typing import NamedTuple

from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import TensorMap
from mla_codegen.runtime.driver import the_driver
from mla_codegen.runtime.packing import TENSOR_MAP_BYTES

# Enumerators of cuda.h: CUtensorMapInterleave, ...Swizzle, ...L2promotion, ...FloatOOBfill.
_INTERLEAVE_NONE = 0
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_256B = 3
_OOB_FILL_NONE = 0
_ALIGN_BYTES = 64


class TensorMapRequest(NamedTuple):
    """What decides the 128 bytes; dimensions innermost first, `strides` in bytes without the first."""

    name: str
    dtype: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int

    def describe(self) -> str:
        """The whole request on one line."""
        return (
            f"{self.name}: {DTYPES[self.dtype].tensor_map_type}, rank {len(self.extents)}, "
            f"address {self.address:#x}, extents {list(self.extents)}, strides {list(self.strides)} B, "
            f"box {list(self.box)}, element strides {[1] * len(self.box)}, swizzle {self.swizzle_bytes} B, "
            "L2 promotion 256 B"
        )


EncodeFunction = Callable[[TensorMapRequest], bytes]


def request_for(
    tensor_map: TensorMap, *, address: int, extents: tuple[int, ...], strides: tuple[int, ...]
) -> TensorMapRequest:
    """The request for one tensor map of the plan over the given memory."""
    return TensorMapRequest(
        tensor_map.name, tensor_map.dtype, address, extents, strides, tensor_map.box, tensor_map.swizzle_bytes
    )


def encode(request: TensorMapRequest) -> bytes:
    """The 128 bytes, made by the driver; LaunchError with the whole request where it refuses."""
    rank = len(request.extents)
    # The driver writes to memory that is aligned to 64 bytes.
    raw = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _ALIGN_BYTES)
    address = -(-ctypes.addressof(raw) // _ALIGN_BYTES) * _ALIGN_BYTES
    driver = the_driver()
    status = driver.encode_tiled(
        address,
        DTYPES[request.dtype].tensor_map_value,
        rank,
        request.address,
        (ctypes.c_uint64 * rank)(*request.extents),
        (ctypes.c_uint64 * rank)(*request.strides),
        (ctypes.c_uint32 * rank)(*request.box),
        (ctypes.c_uint32 * rank)(*(1 for _ in range(rank))),
        _INTERLEAVE_NONE,
        _SWIZZLES[request.swizzle_bytes],
        _L2_PROMOTION_256B,
        _OOB_FILL_NONE,
    )
    if status != 0:
        name = driver.error_name(status)
        raise LaunchError.single(
            "tensor-map", f"cuTensorMapEncodeTiled gave {name} for the tensor map of {request.describe()}"
        )
    return ctypes.string_at(address, TENSOR_MAP_BYTES)


class TensorMapCache:
    """Encoded tensor maps by device and request; the least recently used of more than `limit` is dropped."""

    def __init__(self, encode_function: EncodeFunction = encode, *, limit: int = 1024) -> None:
        self._encode = encode_function
        self._limit = limit
        self._lock = threading.Lock()
        self._maps: collections.OrderedDict[tuple[int, TensorMapRequest], bytes] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, device: int, request: TensorMapRequest) -> bytes:
        """The map's 128 bytes, encoded at the first request only."""
        key = (device, request)
        with self._lock:
            found = self._maps.get(key)
            if found is None:
                found = self._maps[key] = self._encode(request)
                while len(self._maps) > self._limit:
                    self._maps.popitem(last=False)
            else:
                self._maps.move_to_end(key)
            return found
