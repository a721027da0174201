"""The debug build's record of a barrier wait that never ended: who waited for what.

The record lies in host memory that the GPU can write, since nothing else survives a trap. Its layout is
`DebugRecord` of primitives/device/mbarrier_wait_debug.cuh.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Protocol

from mla_codegen.plan.model import Variant

RECORD_SYMBOL = "mla_debug_record"
RECORD_BYTES = 32
_BARRIER_BYTES = 8
_WARP_THREADS = 32
# Shared memory starts at a multiple of this, so the low bits of an address are those of its offset.
_SMEM_ALIGN_BYTES = 1024


class DebugDriver(Protocol):
    """The part of the driver that places the record."""

    def mapped_host_memory(self, size_bytes: int) -> tuple[int, int]:
        """Zeroed host memory: host and device address."""

    def global_address(self, module: int, name: str) -> int:
        """Device address of a module's variable."""

    def copy_to_device(self, target: int, data: bytes) -> None:
        """Copies bytes to the device."""


class DebugRecord:
    """The record of one loaded module."""

    def __init__(self, driver: DebugDriver, module: int) -> None:
        """Allocates the record and tells the module where it is."""
        self._host, device = driver.mapped_host_memory(RECORD_BYTES)
        driver.copy_to_device(driver.global_address(module, RECORD_SYMBOL), struct.pack("<Q", device))

    def report(self, variant: Variant) -> str | None:
        """What the record says, as one sentence; None where no wait gave up."""
        return format_record(ctypes.string_at(self._host, RECORD_BYTES), variant)


def format_record(record: bytes, variant: Variant) -> str | None:
    """The sentence for the 32 bytes of a record; None where it was never written."""
    claimed, thread, barrier, phase, x, y, z, written = struct.unpack("<8I", record)
    if not claimed:
        return None
    if not written:
        return "a barrier wait gave up, but its record was not finished"
    return (
        f"role {role_of(thread // _WARP_THREADS, variant)} (thread {thread}) of CTA ({x}, {y}, {z}) "
        f"waited in vain for {barrier_at(barrier, variant)}, phase {phase}"
    )


def role_of(warp: int, variant: Variant) -> str:
    """The name of the role that a warp plays."""
    for role in variant.roles:
        if role.first_warp <= warp < role.first_warp + role.num_warps:
            return role.name
    return f"of warp {warp}, which the plan does not have"


def barrier_at(address: int, variant: Variant) -> str:
    """`barrier name, stage i` for a shared-memory address; the address where the plan has none there."""
    base = next(field.offset_bytes for field in variant.smem.fields if field.name == "mbar_base")
    window_bytes = variant.num_mbars * _BARRIER_BYTES
    offset = address - base
    if window_bytes <= _SMEM_ALIGN_BYTES:
        offset %= _SMEM_ALIGN_BYTES
    else:
        offset -= _SMEM_ALIGN_BYTES
    for mbarrier in variant.mbarriers:
        stage = offset // _BARRIER_BYTES - mbarrier.first_index
        if offset % _BARRIER_BYTES == 0 and 0 <= stage < mbarrier.stages:
            return f"barrier {mbarrier.name}, stage {stage}"
    return f"a barrier at shared-memory address {address:#x}, which the plan does not have"
