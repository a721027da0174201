"""Tiles and rings that no committed kernel has: clean as they are, and their faults found."""

from __future__ import annotations

from typing import Any

import pytest

from mla_codegen.emulator import EmulatedKernel, EmulationReport
from mla_codegen.judge import Problem, judge
from mla_codegen.plan import Plan, make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec
from tests.emulator.support import plan_of

SKIPPED_TURN = "    bar_sync(turn_barrier(self.index), kTurnThreads);\n    pass_turn(self, block);\n"
TILES: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16, blocks of 64 keys": ("dsv3_bf16_sm90", {"tile": {"block_n": 64}}),
    "bf16, three consumers": ("dsv3_bf16_sm90", {"schedule": {"consumers": 3}}),
    "fp8, blocks of 64 keys": ("dsv3_fp8_sm90", {"tile": {"block_n": 64}}),
    "fp8, two consumers": ("dsv3_fp8_sm90", {"schedule": {"consumers": 2}}),
    "fp8, rings of one": (
        "dsv3_fp8_sm90",
        {"pipeline": {"kv_stages": 1, "v_stages": 1, "v_raw_stages": 1}},
    ),
    "fp8, flushed every 3 blocks": ("dsv3_fp8_sm90", {"accumulation": {"flush_blocks": 3}}),
    "fp8, online softmax": ("dsv3_fp8_sm90", {"softmax": {"variant": "online"}}),
}


def changed_plan(name: str, sections: dict[str, Any]) -> Plan:
    """The plan of a committed spec with some of its sections replaced."""
    spec = {**plan_of(name).to_mapping()["spec"], **sections}
    return make_plan(Spec.from_mapping({key: value for key, value in spec.items() if value is not None}))


@pytest.mark.parametrize("label", TILES)
def test_other_tiles_are_clean_and_keep_the_contract(label: str) -> None:
    plan = changed_plan(*TILES[label])
    kernel = EmulatedKernel(plan, render(plan))

    def launch(arguments: Any, out: Any, lse: Any, number: int) -> tuple[str, ...]:
        report = kernel.run(**arguments, out=out, seed=number)
        return tuple(hazard.message for hazard in report.hazards)

    problem = Problem(q_lens=(130, 0, 200), kv_lens=(900, 70, 333), heads=1)
    verdict = judge(plan, problem, launch, launches=3)
    assert verdict.hazards == ()
    assert verdict.contract_kept


def test_a_turn_that_a_skipped_block_does_not_take_is_found() -> None:
    plan = changed_plan(*TILES["bf16, three consumers"])
    source = render(plan)
    assert source.count(SKIPPED_TURN) == 1  # the first warpgroup sees two blocks less than the last

    def run(text: str) -> EmulationReport:
        arguments = Problem(q_lens=(192,), kv_lens=(721,), heads=1).arguments(plan.spec)
        return EmulatedKernel(plan, text).run(**arguments, schedules=3)

    assert not run(source).hazards
    assert run(source.replace(SKIPPED_TURN, "")).hazards
