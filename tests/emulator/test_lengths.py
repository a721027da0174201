"""Every length from 1 to 300, as many queries as keys and one query, each mask in one ragged call."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest

from mla_codegen.accuracy import measure
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import reference
from mla_codegen.render import render
from mla_codegen.spec import Spec
from tests.emulator.support import BOUNDS

LENGTHS = tuple(range(1, 301))
"""Past two blocks of 128 keys and three of 96, and past a tile of 192 queries."""
FEW_ROWS = 2
"""Allowance for one sequence, whose error is that of few roundings."""
QUERIES = {"as many queries": LENGTHS, "one query": (1,) * len(LENGTHS)}
DIMS = {"smallest": (16, 16, 16), "default": (128, 64, 128)}
SPECS = {
    "e4m3": {
        "dtypes": {"qkv": "e4m3"},
        "scales": {"q": "token", "k": "token", "v": "tensor", "rope": "prescaled"},
    },
    "e4m3 transposed": {"dtypes": {"qkv": "e4m3"}, "layout": {"v": "transposed"}},
    "bf16": {"dtypes": {"qkv": "bf16"}},
}
KERNELS = [
    ("e4m3", "smallest"),
    ("e4m3", "default"),
    ("e4m3 transposed", "smallest"),
    ("bf16", "smallest"),
    ("bf16", "default"),
]


@functools.cache
def kernel_of(kind: str, mask: str, dims: str) -> tuple[Plan, EmulatedKernel]:
    named = dict(zip(("nope", "rope", "v"), DIMS[dims], strict=True))
    spec = {"name": "lengths", "arch": "sm_90a", "dims": named, "mask": mask, **SPECS[kind]}
    plan = make_plan(Spec.from_mapping(spec))
    return plan, EmulatedKernel(plan, render(plan))


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(("kind", "dims"), KERNELS)
def test_every_length_is_right(kind: str, dims: str, mask: str, queries: str) -> None:
    plan, kernel = kernel_of(kind, mask, dims)
    arguments = random_problem(plan.spec, heads=1, q_lens=QUERIES[queries], kv_lens=LENGTHS, seed=8)
    out = np.full((*arguments["q_nope"].shape[:2], plan.spec["dims"]["v"]), np.nan, "bfloat16")
    report = kernel.run(**arguments, out=out)
    assert not report.hazards, report.render()
    assert report.unwritten_elements == 0
    expected, _ = reference(plan.spec, **arguments)
    bound = BOUNDS[plan.spec["dtypes"]["qkv"]]
    whole = measure(out, expected)
    assert not whole.nonfinite_mismatch
    assert whole.rel_frobenius <= bound
    for length, rows in zip(LENGTHS, pairwise(arguments["cu_seqlens_q"]), strict=True):
        error = measure(out[slice(*rows)], expected[slice(*rows)])
        assert error.rel_frobenius <= FEW_ROWS * bound, f"{length} keys: {error}"
