"""Which warps do what."""

from __future__ import annotations

from mla_codegen.plan.barriers import TRANSPOSE_WARPS, WARPS_PER_WARPGROUP
from mla_codegen.plan.model import Role
from mla_codegen.plan.registers import Registers
from mla_codegen.plan.tiles import Tiles


def plan_roles(tiles: Tiles, registers: Registers) -> tuple[Role, ...]:
    """The roles in warp order; every warp has one."""
    helper = _transpose(registers) if tiles.transposes_v else _tail(registers)
    idle = () if tiles.transposes_v else (_idle(registers),)
    v_ring = "v_raw" if tiles.transposes_v else "v"
    tail = "" if tiles.transposes_v else "v_tail_cleared, "
    scales = "; the warp carries the scales" if tiles.scales_rows or tiles.scales_keys else ""
    return (
        Role(
            name="load",
            first_warp=0,
            num_warps=1,
            end_constant="kLoadWarpEnd",
            registers=registers.producer,
            does=f"one lane issues all bulk copies{scales}",
            waits_on=f"q_empty, k_empty, {v_ring}_empty",
            signals=f"q_full, k_full, {v_ring}_full",
        ),
        helper,
        *idle,
        Role(
            name="consumer",
            first_warp=WARPS_PER_WARPGROUP,
            num_warps=WARPS_PER_WARPGROUP * tiles.consumers,
            end_constant="kConsumerWarpEnd",
            registers=registers.consumer,
            does=f"{tiles.consumers} warpgroups of 64 rows: Q*K, softmax, P*V, output",
            waits_on=f"q_full, k_full, v_full, {tail}its turn",
            signals="q_empty, k_empty, v_empty, the next turn",
        ),
    )


def _transpose(registers: Registers) -> Role:
    return Role(
        name="transpose",
        first_warp=1,
        num_warps=TRANSPOSE_WARPS,
        end_constant="kTransposeWarpEnd",
        registers=registers.producer,
        does="V rows -> transposed V; clears the tail of the sequence",
        waits_on="v_raw_full, v_empty",
        signals="v_raw_empty, v_full",
    )


def _tail(registers: Registers) -> Role:
    return Role(
        name="tail",
        first_warp=1,
        num_warps=1,
        end_constant="kTailWarpEnd",
        registers=registers.producer,
        does="clears V beyond the sequence, once a head",
        waits_on="q_empty, v_full of the last block",
        signals="v_tail_cleared",
    )


def _idle(registers: Registers) -> Role:
    return Role(
        name="idle",
        first_warp=2,
        num_warps=2,
        end_constant="kIdleWarpEnd",
        registers=registers.producer,
        does="nothing: they complete the producer warpgroup",
        waits_on="nothing",
        signals="nothing",
    )
