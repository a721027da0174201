"""Tensor maps in memory: encoded once for a form of tensor, then moved from address to address."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError

TENSOR_MAP_BYTES = 128
"""Bytes of a CUtensorMap."""
TENSOR_MAP_ALIGN_BYTES = 64
"""Alignment that the driver wants of the memory that it writes a map to, and the kernel of its parameter."""

# Enumerators of cuda.h: CUtensorMapInterleave, ...Swizzle, ...L2promotion, ...FloatOOBfill.
_INTERLEAVE_NONE = 0
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_256B = 3
_OOB_FILL_NONE = 0


class TensorMapDriver(Protocol):
    """The part of the driver that writes tensor maps; both calls give the driver's status."""

    def encode_tiled(self, *arguments: object) -> int:
        """cuTensorMapEncodeTiled."""

    def replace_address(self, tensor_map: ctypes.c_void_p, address: ctypes.c_uint64) -> int:
        """cuTensorMapReplaceAddress."""

    def error_name(self, status: int) -> str:
        """The name of a status."""


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


class PlacedTensorMap:
    """A tensor map at a fixed place in host memory, over a tensor whose address may change."""

    def __init__(self, driver: TensorMapDriver, place: int, request: TensorMapRequest) -> None:
        """Encodes the map at address `place`; LaunchError with the whole request where the driver refuses."""
        self._driver = driver
        self._place = ctypes.c_void_p(place)
        self._request = request
        self._address = request.address
        self._new_address = ctypes.c_uint64()
        rank = len(request.extents)
        status = driver.encode_tiled(
            place,
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
            self._refuse("cuTensorMapEncodeTiled", status, request)

    def move_to(self, address: int) -> None:
        """Describes the tensor at `address`; LaunchError with the whole request where the driver refuses."""
        if address == self._address:
            return
        self._new_address.value = address
        status = self._driver.replace_address(self._place, self._new_address)
        if status != 0:
            self._refuse("cuTensorMapReplaceAddress", status, self._request._replace(address=address))
        self._address = address

    def _refuse(self, call: str, status: int, request: TensorMapRequest) -> None:
        name = self._driver.error_name(status)
        raise LaunchError.single(
            "tensor-map", f"{call} gave {name} for the tensor map of {request.describe()}"
        )
