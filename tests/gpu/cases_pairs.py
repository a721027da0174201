"""Every two features of the planner in one kernel, and every shipped spec: numbers, guards, NaN around."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import mla_codegen as mla
from mla_codegen.dtypes import DTYPES
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Argument, Plan
from mla_codegen.spec import Spec
from tests.gpu import batches, harness
from tests.gpu.checks import Case, Checks, run_cases, shipped_names, spec_path
from tests.pairs import BEHIND, as_bytes, faults_of, pairwise_specs, problem_for

_LONGEST_STEP_TEST = 300
_GUARD = 1024
_POISON = {2: 0x7FAB, 4: 0x7FABCDEF}
_OUTPUTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def run(shard: int, shards: int) -> dict[str, list[dict[str, Any]]]:
    """All cases of every `shards`-th spec from number `shard` on."""
    cases: dict[str, Case] = {}
    for name in list(_specs())[shard::shards]:
        spec = _specs()[name]
        for what, (q_lens, kv_lens) in _problems(spec).items():
            cases[f"{name}: {what}"] = functools.partial(_keeps, name, q_lens, kv_lens)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


@functools.cache
def _specs() -> dict[str, Spec]:
    """Specs with every pair of features, and the shipped ones."""
    return {**pairwise_specs(), **{name: mla.load_spec(spec_path(name)) for name in shipped_names()}}


@functools.cache
def _loaded(name: str) -> tuple[Plan, Any]:
    spec = _specs()[name]
    return make_plan(spec), mla.load(spec)


def _problems(spec: Spec) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    launch = make_plan(spec).variants[0].launch
    m, n = launch.block_m, launch.block_n
    step = range(1, _LONGEST_STEP_TEST + 1)
    problems: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        "one key": ((1,), (1,)),
        "one tile and a tail": ((70,), (150,)),
        "several sequences": ((5, 0, 130), (300, 7, 33)),
        "tile edges": ((m + 1, m, m - 1, 1, 64), (2 * n + 1, n, n - 1, 600, 2 * n)),
    }
    if (spec.layout.q, spec.layout.kv) == ("ragged", "ragged"):
        problems["q_len = kv_len = 1..300"] = (step, step)
        problems["q_len 1, kv_len 1..300"] = ([1] * len(step), step)
    return problems


def _keeps(name: str, q_lens: Sequence[int], kv_lens: Sequence[int], checks: Checks) -> None:
    plan, kernel = _loaded(name)
    spec = _specs()[name]
    arguments = problem_for(spec, q_lens, kv_lens, seed=len(q_lens))
    on_gpu = {key: _on_device(value) for key, value in arguments.items()}
    outputs = {item.name: _Guarded(item, arguments) for item in plan.arguments if item.kind == "output"}
    given = {key: output.view for key, output in outputs.items()}
    kernel(**on_gpu, **given)
    first = {key: view.clone() for key, view in given.items()}
    kernel(**on_gpu, **given)
    for key, output in outputs.items():
        checks.true(f"a second launch gives equal bits of {key}", batches.same_bits(first[key], output.view))
        checks.equal(f"elements written around {key}", output.written_around(), 0)
    host = {key: value.float().cpu().numpy() for key, value in first.items()}
    broken, _ = faults_of(plan, arguments, host["out"], host.get("lse"))
    checks.equal("broken promises", broken, [])


class _Guarded:
    """A poisoned output with the same pattern on both sides."""

    def __init__(self, argument: Argument, arguments: Mapping[str, Any]) -> None:
        """Allocates and poisons."""
        q, v = arguments["q_nope"], argument.axes[-1]
        sizes = {"heads": q.shape[-2]}
        tokens = dict(zip(("batch", "q_len") if q.ndim == 4 else ("total_q",), q.shape, strict=False))
        shape = tuple({**sizes, **tokens}.get(axis) or int(v) for axis in argument.axes)
        dtype = _OUTPUTS[argument.dtype]
        size = DTYPES[argument.dtype].bytes
        self._poison, self._used = _POISON[size], math.prod(shape)
        codes = batches.CODES[size]
        self._raw = torch.full((self._used + 2 * _GUARD,), self._poison, dtype=codes, device=harness.DEVICE)
        self.view = self._raw[_GUARD : _GUARD + self._used].view(dtype).view(shape)

    def written_around(self) -> int:
        """Elements on both sides that do not hold the pattern any more."""
        sides = torch.cat([self._raw[:_GUARD], self._raw[_GUARD + self._used :]])
        return int((sides != self._poison).sum())


def _on_device(value: Any) -> Any:
    """An array as a tensor with the same gaps; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.flags.c_contiguous:
        return torch.from_numpy(as_bytes(value)).to(harness.DEVICE)
    wide = value.base
    assert wide is not None and wide.shape[1] == value.shape[1] + BEHIND, "only dense batches have gaps"
    return torch.from_numpy(as_bytes(wide)).to(harness.DEVICE)[:, : value.shape[1]]
