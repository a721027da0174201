"""Every committed kernel around the edges of its tiles and rings: no hazard, results inside the contract."""

from __future__ import annotations

import pytest

from mla_codegen.cli.run import emulated_launch
from mla_codegen.judge import Problem, judge
from mla_codegen.plan.model import Plan
from tests.emulator.support import GENERATED, plan_of, source_of

NAMES = sorted(path.parent.name for path in GENERATED.glob("*/plan.json"))
QUERIES = (63, 64, 65, *range(127, 130), *range(191, 194))
SCHEDULES = 30


def tile_counts(plan: Plan) -> list[int]:
    """KV tiles of a sequence around every ring depth: 1, s - 1, s, s + 1, 2s + 1."""
    barriers = [barrier for variant in plan.variants for barrier in variant.mbarriers]
    depths = {barrier.stages for barrier in barriers if barrier.name.endswith("_empty")}
    return sorted({count for s in depths for count in (1, s - 1, s, s + 1, 2 * s + 1)} - {0})


def edge_problem(name: str, plan: Plan) -> Problem:
    """The problem of a name in PROBLEMS; its sequences hold every edge."""
    m, n = (getattr(plan.variants[0].launch, size) for size in ("block_m", "block_n"))
    counts = tile_counts(plan)
    cycled = tuple((counts[i % len(counts)] * n + i % 3 - 1) for i in range(len(QUERIES)))
    lens = {
        "query edges, one tile of keys": (QUERIES, tuple(n + i % 3 - 1 for i in range(len(QUERIES)))),
        "query edges, all tile counts": (QUERIES, cycled),
        "full tiles": ((m,) * len(counts), tuple(count * n for count in counts)),
        "one key more, one query": ((1,) * len(counts), tuple(count * n + 1 for count in counts)),
        "one key less, two tiles of queries": ((m + 1,) * len(counts), tuple(c * n - 1 for c in counts)),
        "empty sequences and rows": ((0, 30, 0, m, m + 1, 65, 200), (5, 0, 0, 0, 1, 64, n + 1)),
    }[name]
    return Problem(q_lens=lens[0], kv_lens=lens[1], heads=1, seed=len(name))


PROBLEMS = (
    "query edges, one tile of keys",
    "query edges, all tile counts",
    "full tiles",
    "one key more, one query",
    "one key less, two tiles of queries",
    "empty sequences and rows",
)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_edges(name: str, problem: str) -> None:
    plan = plan_of(name)
    launch = emulated_launch(plan, source_of(name), seed=11 * PROBLEMS.index(problem))
    verdict = judge(plan, edge_problem(problem, plan), launch, launches=SCHEDULES)
    assert verdict.hazards == ()
    assert verdict.same_bits
    assert verdict.contract_kept, (
        f"error {verdict.error.rel_frobenius}, allowed {verdict.bound.rel_frobenius}"
    )


def test_every_kernel_runs_under_thirty_schedules_and_both_masks_are_there() -> None:
    assert SCHEDULES >= 30
    assert {str(plan_of(name).spec["mask"]) for name in NAMES} >= {"causal", "full"}
