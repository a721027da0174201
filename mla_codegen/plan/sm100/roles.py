"""Which warps do what in a Blackwell kernel, and the registers that setmaxnreg gives them.

Warps are the seed's. Of its registers, 184 and 96 are 200 and 64 here, so that softmax does not spill; and
it gives the warps of the last warpgroup 48 and 24, where setmaxnreg wants one number from all warps of a
warpgroup (PTX ISA, setmaxnreg); here they have 48. Two warps that are idle in the seed clear the rows of V
beyond the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import Role
from mla_codegen.plan.sm100.barriers import TAIL_WARPS, Sm100Mbarrier


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRegisters:
    """Per thread: of softmax, of correction, and of the last warpgroup."""

    softmax: int
    correction: int
    last: int


TWO_WARPGROUPS = RoleRegisters(softmax=200, correction=64, last=48)
"""With 184 for softmax, the seed's number, some forms spill on one target or another: S alone is 128."""
NARROW = RoleRegisters(softmax=184, correction=80, last=64)
"""The same for at most 96 keys per step, whose load warp may have scales of three tensors in registers."""
NARROW_KEYS = 96
ONE_WARPGROUP = RoleRegisters(softmax=208, correction=96, last=48)
WARPGROUP_WARPS = 4
WARP_THREADS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duty:
    name: str
    warps: int
    registers: int
    does: str


def plan_roles(
    barriers: tuple[Sm100Mbarrier, ...], *, num_threads: int, block_n: int, converts_rope: bool
) -> tuple[Role, ...]:
    """The roles in warp order; every warp has one. 384 threads have one softmax warpgroup, 512 have two."""
    warps = softmax_warps(num_threads)
    roles, first = [], 0
    for duty in _duties(warps, _registers(warps, block_n), converts_rope):
        roles.append(
            Role(
                name=duty.name,
                first_warp=first,
                num_warps=duty.warps,
                end_constant=f"k{duty.name.capitalize()}WarpEnd",
                registers=duty.registers,
                does=duty.does,
                waits_on=_names(barriers, duty.name, "waits"),
                signals=_names(barriers, duty.name, "arrives"),
            )
        )
        first += duty.warps
    return tuple(roles)


def softmax_warps(num_threads: int) -> int:
    """What correction and the last warpgroup leave."""
    return num_threads // WARP_THREADS - 2 * WARPGROUP_WARPS


def _registers(warps: int, block_n: int) -> RoleRegisters:
    if warps == WARPGROUP_WARPS:
        return ONE_WARPGROUP
    return NARROW if block_n <= NARROW_KEYS else TWO_WARPGROUPS


def _duties(warps: int, registers: RoleRegisters, converts_rope: bool) -> tuple[_Duty, ...]:
    last = registers.last
    helper = (
        _Duty(
            name="converter",
            warps=TAIL_WARPS,
            registers=last,
            does="e4m3 rope -> bf16; clears V rows beyond the sequence, once",
        )
        if converts_rope
        else _Duty(
            name="tail", warps=TAIL_WARPS, registers=last, does="clears V rows beyond the sequence, once"
        )
    )
    return (
        _Duty(
            name="softmax",
            warps=warps,
            registers=registers.softmax,
            does="scores -> P, row maximum and sum; at the end the output",
        ),
        _Duty(
            name="correction",
            warps=WARPGROUP_WARPS,
            registers=registers.correction,
            does="rescales O where the reference point moved",
        ),
        _Duty(name="mma", warps=1, registers=last, does="one lane issues all products"),
        _Duty(name="load", warps=1, registers=last, does="one lane issues all bulk copies"),
        helper,
    )


def _names(barriers: tuple[Sm100Mbarrier, ...], role: str, side: str) -> str:
    names = [barrier.name for barrier in barriers if role in getattr(barrier, side)]
    return ", ".join(names) or "nothing"
