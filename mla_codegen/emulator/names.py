"""Names of the plan in place of the numbers that the engine knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mla_codegen.emulator.native import NO_THREAD
from mla_codegen.plan.model import SmemField, Variant

SMEM_BASE = 1024
"""Address at which shared memory starts under the emulator (`kSmemBase` of engine_api.hpp)."""

_TOKEN = re.compile(r"@([tbscng])(\d+)|@r(\d+)_(\d+)")
_MBARRIER_BYTES = 8


class PlanNames:
    """Looks up threads, addresses, barriers and arrays in one variant of a plan."""

    def __init__(
        self, variant: Variant, arrays: Sequence[str], *, tmem: Sequence[tuple[str, int, int]] = ()
    ) -> None:
        """`arrays` are the names of the global arrays by index, `tmem` regions of tensor memory.

        A region has a name, its first column and how many it has; regions may overlap.
        """
        self._variant = variant
        self._arrays = arrays
        self._tmem = tmem
        self._mbarriers = {
            _mbar_base(variant) + (barrier.first_index + stage) * _MBARRIER_BYTES: (
                f"{barrier.name}[{stage}]" if barrier.stages > 1 else barrier.name
            )
            for barrier in variant.mbarriers
            for stage in range(barrier.stages)
        }

    def text(self, template: str) -> str:
        """The engine's text with every token replaced."""
        return _TOKEN.sub(
            lambda match: (
                self.threads(int(match[3]), int(match[4]))
                if match[1] is None
                else self._replace(match[1], int(match[2]))
            ),
            template,
        )

    def _replace(self, kind: str, number: int) -> str:
        if kind == "t":
            return self.thread(number)
        if kind == "b":
            return self.mbarrier(number)
        if kind == "s":
            return self.address(number)
        if kind == "c":
            return self.tmem_column(number)
        if kind == "n":
            return self.named_barrier(number)
        return self._arrays[number] if number < len(self._arrays) else f"array {number}"

    def thread(self, thread: int) -> str:
        """Role, warp and lane of a thread; empty for none."""
        if thread == NO_THREAD:
            return ""
        return f"{self.role(thread // 32)} (warp {thread // 32}, lane {thread % 32})"

    def threads(self, first: int, last: int) -> str:
        """Roles and warps of a range of threads; lanes where it does not hold whole warps."""
        if first == last:
            return self.thread(first)
        if first % 32 or last % 32 != 31:
            return f"{self.thread(first)} to {self.thread(last)}"
        low, high = first // 32, last // 32
        warps = f"warp {low}" if low == high else f"warps {low}-{high}"
        roles = dict.fromkeys(self.role(warp) for warp in range(low, high + 1))
        return f"{', '.join(roles)} ({warps})"

    def role(self, warp: int) -> str:
        """The role of a warp, numbered by warpgroup where it has several."""
        for role in self._variant.roles:
            if role.first_warp <= warp < role.first_warp + role.num_warps:
                if role.num_warps > 4:
                    return f"{role.name} {(warp - role.first_warp) // 4}"
                return role.name
        return "idle"

    def mbarrier(self, address: int) -> str:
        """Barrier and stage at an address."""
        return self._mbarriers.get(address - SMEM_BASE, f"the word at offset {address - SMEM_BASE}")

    def named_barrier(self, barrier: int) -> str:
        """The named barrier with an id."""
        for named in self._variant.named_barriers:
            if named.id == barrier:
                return named.name
        return "cta_sync" if barrier == 0 else f"named barrier {barrier}"

    def tmem_column(self, column: int) -> str:
        """Every region that has a column of the allocation, and the offset in it."""
        regions = [
            f"{name} + {column - first}"
            for name, first, count in self._tmem
            if first <= column < first + count
        ]
        return f"tensor memory {' = '.join(regions)}" if regions else f"tensor-memory column {column}"

    def address(self, address: int) -> str:
        """Field, stage and offset of an address of shared memory."""
        offset = address - SMEM_BASE
        for field in self._variant.smem.fields:
            if field.offset_bytes <= offset < field.offset_bytes + field.size_bytes:
                return self._in_field(field, offset - field.offset_bytes)
        return f"shared-memory offset {offset}"

    def _in_field(self, field: SmemField, inside: int) -> str:
        stages = self._stages(field.name.removesuffix("_smem"))
        if field.name == "mbar_base" or stages == 1 or field.size_bytes % stages:
            return f"{field.name} + {inside}"
        stage_bytes = field.size_bytes // stages
        return f"{field.name}[stage {inside // stage_bytes}] + {inside % stage_bytes}"

    def _stages(self, stem: str) -> int:
        """Stages of the ring that a field belongs to: that of the `_full` barrier whose stem fits best."""
        best, stages = "", 1
        for barrier in self._variant.mbarriers:
            prefix = barrier.name.removesuffix("_full")
            if prefix != barrier.name and stem.startswith(prefix) and len(prefix) > len(best):
                best, stages = prefix, barrier.stages
        return stages


def _mbar_base(variant: Variant) -> int:
    for field in variant.smem.fields:
        if field.name == "mbar_base":
            return field.offset_bytes
    return 0
