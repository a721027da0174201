"""What the compiler must not do to the main loop of a shipped kernel: both cost a fifth of the speed at once.

It may move the arrival that passes the turn on behind the softmax, so that the other warpgroups wait for it,
and the wait for P*V in front of the softmax, so that nothing runs beside the tensor core. Neither gives a
note. The machine code is read as one list of instructions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from mla_codegen.plan.model import Variant
from mla_codegen.runtime.nvrtc import compile_source
from tests.compile.support import SPECS, compiled, instructions, nvrtc_missing, planned, wheel_tool

pytestmark = [
    pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}"),
    pytest.mark.skipif(wheel_tool("cuobjdump") is None, reason="needs cuobjdump of mla-codegen[inspect]"),
]
NAMES = [name for name in SPECS if name.endswith("_sm90")]
LAZY = [name for name in NAMES if planned(name)[0].variants[0].features.lazy_softmax]
PING_PONG = [name for name in NAMES if "bf16" in name]
MOST_BEFORE_THE_ARRIVAL = 12
"""Instructions between the last product of a turn and the arrival that passes it on."""
OTHER_EXPONENTIALS = 2
"""Of a step, beside those of its scores: one for each row that is rescaled."""


class Turn(NamedTuple):
    """One copy of the main loop's step: its products, and what follows up to the next turn."""

    arrival: int
    """Instructions from the last product to the arrival."""
    code: list[str]
    """From the last product on."""

    def place(self, pattern: str) -> int:
        """Of the first instruction that matches, the number of all where there is none."""
        found = (place for place, text in enumerate(self.code) if re.match(pattern, text))
        return next(found, len(self.code))

    def count(self, name: str, first: int, last: int) -> int:
        return sum(text.startswith(name) for text in self.code[first:last])


def turns(name: str, folder: Path) -> tuple[Variant, list[Turn]]:
    """The steps whose products are Q*K and P*V; that of the highest block has no P*V."""
    (variant,) = planned(name)[0].variants
    return variant, turns_of(compiled(name).cubin, folder)


def turns_of(cubin: bytes, folder: Path) -> list[Turn]:
    """The same of a cubin."""
    file, tool = folder / "kernel.cubin", wheel_tool("cuobjdump")
    assert tool is not None
    file.write_bytes(cubin)
    code = instructions(file, tool)
    arrivals = [place for place, text in enumerate(code) if text.startswith("BAR.ARV")]
    found = []
    for arrival, after in zip(arrivals, [*arrivals[1:], len(code)], strict=True):
        products = [place for place in range(arrival) if "GMMA" in code[place]]
        if products:
            found.append(Turn(arrival - products[-1], code[products[-1] : after]))
    return found


def scores(variant: Variant) -> int:
    """Scores of a thread in a block."""
    numbers = {item.name: item.literal for group in variant.constants for item in group.constants}
    return int(numbers["kScoreRegs"])


def lazy(found: list[Turn]) -> list[Turn]:
    """The steps for blocks without hidden keys: they vote on whether the reference point may stay."""
    return [turn for turn in found if turn.place(r"VOTE\.ANY") < len(turn.code)]


@pytest.mark.parametrize("name", NAMES)
def test_the_turn_is_passed_on_at_once(name: str, tmp_path: Path) -> None:
    variant, found = turns(name, tmp_path)
    loops = lazy(found) if variant.features.lazy_softmax else found[1:]
    assert loops
    for turn in loops:
        assert turn.arrival <= MOST_BEFORE_THE_ARRIVAL
        assert turn.count("MUFU", 0, turn.arrival) == 0


@pytest.mark.parametrize("name", PING_PONG)
def test_softmax_runs_beside_the_products_of_p_and_v(name: str, tmp_path: Path) -> None:
    variant, found = turns(name, tmp_path)
    loops = lazy(found) if variant.features.lazy_softmax else found[-1:]
    assert loops
    for turn in loops:
        first, last = (turn.place(rf"WARPGROUP\.DEPBAR\.LE gsb0, 0x{pending}") for pending in (1, 0))
        assert turn.arrival < first < last < len(turn.code)
        assert turn.count("MUFU.EX2", first, last) >= scores(variant)


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_step_takes_one_exponential_a_score_and_no_maximum(name: str, tmp_path: Path) -> None:
    """The exact step that it falls back on is behind the vote."""
    variant, found = turns(name, tmp_path)
    for turn in lazy(found):
        vote = turn.place(r"VOTE\.ANY")
        assert scores(variant) <= turn.count("MUFU.EX2", 0, vote) <= scores(variant) + OTHER_EXPONENTIALS
        assert turn.count("FMNMX", 0, vote) == 0


LATE = ("  k.advance();\n}\n\n// A block that", "  if (kMasked) online_softmax")
"""Where a step ends, and where its softmax begins."""


@pytest.mark.parametrize("late", LATE)
def test_these_tests_notice_a_turn_that_is_passed_on_late(late: str, tmp_path: Path) -> None:
    plan, source = planned("dsv3_fp8_sm90")
    assert source.count("  pass_turn(self, block);\n  release_slot(v_empty") == 1 == source.count(late)
    moved = source.replace("  pass_turn(self, block);\n  release_slot(v_empty", "  release_slot(v_empty")
    moved = moved.replace(late, f"  pass_turn(self, block);\n{late}")
    cubin = compile_source(moved, arch=plan.arch, name="late").cubin
    loops = lazy(turns_of(cubin, tmp_path))
    assert loops and all(turn.arrival > MOST_BEFORE_THE_ARRIVAL for turn in loops)
