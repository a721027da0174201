"""A few small launches for compute-sanitizer: `python -m tests.gpu.sanitized SPEC [--every-lane-arrives]`.

Uses CuPy alone, which starts faster than torch. Exits with 1 where a result is wrong.

`--every-lane-arrives` is for racecheck, which does not carry the order of `__syncwarp` over to the one lane
that arrives on a barrier for its warp, and so reports the key scales of a sound kernel. It edits the source
such that every lane arrives for itself, in the same places and with the arrival counts to match.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import mla_codegen as mla
from mla_codegen.digest import sha256
from mla_codegen.judge import Problem, judge
from mla_codegen.plan.model import Plan
from mla_codegen.runtime import make_kernel
from mla_codegen.runtime.host_arrays import launch_on_host_arrays
from tests.gpu.checks import spec_path

PROBLEMS = (
    Problem(q_lens=(1,), kv_lens=(1,), heads=1),
    Problem(q_lens=(70, 0, 5, 3), kv_lens=(150, 3, 0, 5), heads=2, seed=1),
    Problem(q_lens=(200, 50), kv_lens=(30, 500), heads=1, seed=2),
)


def with_every_lane_arriving(source: str) -> str:
    """The source with each arrival for a warp replaced by one of every lane."""
    arrivals = "warp_sync();\n  if (lane == 0) mbarrier_arrive("
    assert arrivals in source, "the source has no arrival of one lane for its warp"
    edited = source.replace(arrivals, "mbarrier_arrive(")

    def counted(match: re.Match[str]) -> str:
        scaled = match[1] == "kScaledLoadArrivals"
        return f"{match[1]} = {1 + 32 if scaled else 32 * int(match[2])};"

    return re.sub(r"(kScaledLoadArrivals|kConsumerArrivals|kTailArrivals) = (\d+);", counted, edited)


def main(spec: str, *, every_lane_arrives: bool) -> int:
    """Judges all problems; the number of wrong ones."""
    plan: Plan = mla.make_plan(mla.load_spec(spec_path(spec)))
    source = mla.render(plan)
    if every_lane_arrives:
        source = with_every_lane_arriving(source)
    plan = dataclasses.replace(plan, source_digest=sha256(source.encode("ascii")))
    kernel = make_kernel(plan, source)

    def launch(arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int) -> None:
        launch_on_host_arrays(kernel, arguments, out, lse)

    verdicts = [judge(plan, problem, launch, launches=2) for problem in PROBLEMS]
    for verdict in verdicts:
        print(verdict.to_mapping(), flush=True)
    return sum(not verdict.contract_kept for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], every_lane_arrives="--every-lane-arrives" in sys.argv[2:]) else 0)
