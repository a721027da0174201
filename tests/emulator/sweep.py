"""Runs correct kernels on random problems and schedules; a hazard or a wrong result is a false alarm.

Run as `python -m tests.emulator.sweep [RUNS]`; prints the counts and exits with 1 where there is one.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from mla_codegen.emulator.kernel import POLICIES
from tests.emulator.support import BOUNDS, GENERATED, kernel_of, make_problem, plan_of, relative_error

LONGEST_Q, LONGEST_KV, MOST_SEQUENCES = 400, 1200, 4
ROW_SHARE = 256
"""Keys above which a problem's error is judged: with few keys one rounded P weighs too much."""


def lengths(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query and key lengths; a tenth are 0, a fifth lie within one of a multiple of 32."""
    count = int(rng.integers(1, MOST_SEQUENCES + 1))

    def one(longest: int) -> int:
        kind = rng.random()
        if kind < 0.1:
            return 0
        if kind < 0.3:
            return int(32 * rng.integers(1, longest // 32) + rng.integers(-1, 2))
        return int(rng.integers(1, longest))

    return tuple(one(LONGEST_Q) for _ in range(count)), tuple(one(LONGEST_KV) for _ in range(count))


def main(runs: int) -> int:
    """The number of runs with a hazard or a wrong result."""
    names = sorted(path.parent.name for path in GENERATED.glob("*/plan.json"))
    begin, alarms = time.perf_counter(), 0
    for index in range(runs):
        rng = np.random.default_rng(index)
        name = names[index % len(names)]
        q_lens, kv_lens = lengths(rng)
        problem = make_problem.__wrapped__(name, q_lens, kv_lens, int(rng.integers(1, 3)), seed=index)
        policy = POLICIES[int(rng.integers(len(POLICIES)))]
        report = kernel_of(name).run(**problem.arguments, seed=index, policy=policy)
        bound = BOUNDS[plan_of(name).spec["dtypes"]["qkv"]]
        wrong = sum(kv_lens) > ROW_SHARE and not relative_error(report.out, problem.expected) <= bound
        if report.hazards or wrong:
            alarms += 1
            print(f"{name}: q {q_lens}, kv {kv_lens}, seed {index}, {policy}: {report.render()}")
    print(f"{runs} runs, {alarms} with a hazard or a wrong result, {time.perf_counter() - begin:.0f} s")
    return alarms


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000) > 0)
