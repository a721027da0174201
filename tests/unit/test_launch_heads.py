"""How many heads a CTA goes through: what the spec says, and what a launch decides by its tiles."""

from __future__ import annotations

import pytest

from mla_codegen.call.launch import grid_of, head_runs, run_heads
from mla_codegen.call.problem import Problem
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Variant
from mla_codegen.spec import Spec

FP8 = {"dtypes": {"qkv": "e4m3"}, "scales": {"q": "token", "k": "token", "rope": "prescaled"}}
"""192 rows and 96 keys."""


def variant(**sections: object) -> Variant:
    base = {"name": "k", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}, **FP8}
    return make_plan(Spec.from_mapping({**base, **sections})).variants[0]


def problem(tokens: int, *, heads: int = 128, batch: int = 1) -> Problem:
    """Of sequences with as many keys as queries."""
    total = tokens * batch
    return Problem(
        device=0,
        sizes={"batch": batch, "heads": heads, "total_q": total, "total_k": total},
        max_seqlen_q=tokens,
        softmax_scale=1.0,
    )


@pytest.mark.parametrize(("persistent", "expected"), [("auto", None), (True, 4), (False, 1)])
def test_the_spec_may_say_it(persistent: object, expected: int | None) -> None:
    made = variant(schedule={"persistent": persistent})
    assert made.launch.run_heads == expected
    for tokens in (64, 8192):
        found = run_heads(made, problem(tokens))
        assert found == (expected or {64: 1, 8192: 4}[tokens])


@pytest.mark.parametrize(
    ("tokens", "heads", "batch", "expected"),
    [
        (8192, 128, 1, 4),  # 43 tiles x 128 = 5504 >= 40 x 132 = 5280
        (8064, 128, 1, 4),  # 42 x 128 = 5376
        (7872, 128, 1, 2),  # 41 x 128 = 5248
        (4096, 128, 1, 2),  # 22 x 128 = 2816
        (1024, 128, 1, 2),  # 6 x 128 = 768 >= 5 x 132 = 660
        (960, 128, 1, 1),  # 5 x 128 = 640
        (100, 128, 8, 2),  # a tile for each of 8 sequences: 1024
        (4096, 16, 1, 1),  # 22 x 16 = 352
    ],
)
def test_a_causal_launch_counts_its_tiles(tokens: int, heads: int, batch: int, expected: int) -> None:
    assert run_heads(variant(), problem(tokens, heads=heads, batch=batch)) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 768 tiles, 11 blocks. 4: 2 x (4 x 13 + 4) = 112; 2: 3 x (2 x 13 + 4) = 90; 1: 6 x (13 + 4) = 102
        (1024, 2),
        # 1408 tiles, 22 blocks. 4: 3 x (4 x 24 + 4) = 300; 2: 6 x (2 x 24 + 4) = 312; 1: 11 x (24 + 4) = 308
        (2048, 4),
        # 2816 tiles, 43 blocks. 4: 6 x (4 x 45 + 4) = 1104; 2: 11 x (2 x 45 + 4) = 1034; 1: 22 x 49 = 1078
        (4096, 2),
        # 128 tiles, 1 block. 4: 1 x (4 x 3 + 4) = 16; 2: 1 x 10; 1: 1 x 7
        (96, 1),
    ],
)
def test_a_full_launch_takes_the_run_that_fits_the_multiprocessors(tokens: int, expected: int) -> None:
    assert run_heads(variant(mask="full"), problem(tokens)) == expected


@pytest.mark.parametrize(("heads", "runs"), [(1, 1), (4, 1), (5, 2), (6, 2), (128, 32)])
def test_the_grid_counts_runs(heads: int, runs: int) -> None:
    made = variant(schedule={"persistent": True})
    assert head_runs(made, problem(400, heads=heads)) == runs
    assert grid_of(made, problem(400, heads=heads)) == (3 * runs, 1, 1)  # 400 queries are 3 tiles


@pytest.mark.parametrize("persistent", ["auto", True])
def test_one_slot_of_v_beside_a_tail_warp_takes_one_head(persistent: object) -> None:
    said = {"schedule": {"persistent": persistent}, "pipeline": {"v_stages": 1}}
    assert variant(**said).launch.run_heads == (None if persistent == "auto" else 4)  # V is transposed here
    assert variant(**said, layout={"v": "transposed"}).launch.run_heads == 1
    assert variant(**said, dtypes={"qkv": "bf16"}, scales={}).launch.run_heads == 1
