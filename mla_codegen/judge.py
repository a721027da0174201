"""Runs a kernel on a random problem and judges the result against float64 and the accuracy contract.

Shared by the commands `run`, `emulate` and `demo` and by the tests; prints nothing. How a kernel is run, on a
GPU or emulated, is the caller's `Launch`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mla_codegen.accuracy import ContractBound, ErrorReport, contract_bound, measure
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.problems import random_problem
from mla_codegen.reference import natural_lse, reference
from mla_codegen.tensors import TensorFacts, tensor_facts

Launch: TypeAlias = Callable[
    [Mapping[str, Any], np.ndarray, "np.ndarray | None", int], "Sequence[str] | None"
]
"""Runs the kernel once: arguments, output and LSE to fill, number of the launch from 0 -> hazards seen.

None instead of hazards says that the backend cannot see any.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A random problem; one length for all sequences or one each; `batch` and `heads` may be left open."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    batch: int | None = None
    heads: int | None = None
    data: str = "normal"
    seed: int = 0

    def arguments(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The kernel's arguments; LaunchError where lengths, batch and heads do not fit the spec."""
        try:
            return random_problem(
                spec,
                batch=self.batch,
                heads=self.heads,
                q_lens=self.q_lens[0] if len(self.q_lens) == 1 else self.q_lens,
                kv_lens=self.kv_lens[0] if len(self.kv_lens) == 1 else self.kv_lens,
                data=self.data,
                seed=self.seed,
            )
        except ValueError as error:
            help = "change the lengths, the batch or the heads"
            raise LaunchError.single("problem", str(error), help=help) from error

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values under the names of the command line."""
        return {
            "batch": self.batch or max(len(self.q_lens), len(self.kv_lens)),
            "heads": self.heads,
            "q_len": list(self.q_lens),
            "kv_len": list(self.kv_lens),
            "data": self.data,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the launches of one problem gave; `error` is that of the worst launch."""

    spec: str
    arch: str
    problem: Problem
    launches: int
    hazards: tuple[str, ...] | None
    error: ErrorReport
    bound: ContractBound
    same_bits: bool
    seconds: float

    @property
    def contract_kept(self) -> bool:
        """Whether the errors are within the bounds and all launches gave the same bits."""
        return self.same_bits and self.error.kept(self.bound)

    @property
    def clean(self) -> bool:
        """Whether the contract is kept and no hazard was seen."""
        return self.contract_kept and not self.hazards

    def to_mapping(self) -> dict[str, Any]:
        """The object that `run --json` and `emulate --json` print."""
        error = self.error
        return {
            "spec": self.spec,
            "arch": self.arch,
            "problem": self.problem.to_mapping(),
            "seed": self.problem.seed,
            "schedules": self.launches,
            "hazards": None if self.hazards is None else list(self.hazards),
            "hazard_count": None if self.hazards is None else len(self.hazards),
            "error": {
                "rel_frobenius": _number(error.rel_frobenius),
                "worst_row": _number(error.worst_row),
                "worst_row_coordinate": list(error.worst_row_coordinate),
                "lse_abs": _number(error.lse_abs),
                "nonfinite_mismatch": [list(place) for place in error.nonfinite_mismatch],
                "lse_nonfinite_mismatch": [list(place) for place in error.lse_nonfinite_mismatch],
            },
            "bound": {"rel_frobenius": self.bound.rel_frobenius, "lse_abs": self.bound.lse_abs},
            "same_bits": self.same_bits,
            "contract_kept": self.contract_kept,
            "seconds": self.seconds,
        }


def judge(plan: Plan, problem: Problem, launch: Launch, *, launches: int = 2) -> Verdict:
    """Launches the kernel `launches` times, each on fresh outputs full of NaN, and judges what it wrote.

    LaunchError where the problem does not fit the spec.
    """
    assert launches > 0, f"{launches} launches judge nothing"
    arguments = problem.arguments(plan.spec)
    facts = tensor_facts(plan.spec)
    results: list[tuple[np.ndarray, np.ndarray | None]] = []
    hazards: list[str] | None = []
    seconds = 0.0
    for number in range(launches):
        out, lse = poisoned_outputs(facts, arguments)
        start = time.perf_counter()
        seen = launch(arguments, out, lse, number)
        seconds += time.perf_counter() - start
        hazards = None if seen is None or hazards is None else [*hazards, *seen]
        results.append((out, lse))
    expected, expected_lse = reference(plan.spec, **arguments)
    reports = [_measured(plan, facts, result, expected, expected_lse) for result in results]
    return Verdict(
        spec=plan.name,
        arch=plan.arch,
        problem=dataclasses.replace(problem, heads=int(arguments["q_nope"].shape[-2])),
        launches=launches,
        hazards=None if hazards is None else tuple(hazards),
        error=max(reports, key=_badness),
        bound=_bound(plan, facts, problem, arguments, expected),
        same_bits=all(_same_bits(results[0], other) for other in results[1:]),
        seconds=seconds,
    )


def poisoned_outputs(
    facts: TensorFacts, arguments: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Output and, where the spec has one, LSE for `arguments`, every element NaN."""
    *tokens, heads, _ = arguments["q_nope"].shape
    out = np.full((*tokens, heads, facts.v), np.nan, dtype=numpy_dtype(DTYPES[facts.out_dtype]))
    if facts.lse == "none":
        return out, None
    *batch, rows = tokens
    shape = (*batch, heads, rows) if facts.lse_layout == "head_token" else (*batch, rows, heads)
    return out, np.full(shape, np.nan, dtype=np.float32)


def _measured(
    plan: Plan,
    facts: TensorFacts,
    result: tuple[np.ndarray, np.ndarray | None],
    expected: np.ndarray,
    expected_lse: np.ndarray,
) -> ErrorReport:
    out, lse = result
    if lse is None:
        return measure(out, expected, out_dtype=facts.out_dtype)
    return measure(out, expected, natural_lse(plan.spec, lse), expected_lse, out_dtype=facts.out_dtype)


def _bound(
    plan: Plan, facts: TensorFacts, problem: Problem, arguments: Mapping[str, Any], expected: np.ndarray
) -> ContractBound:
    """The bounds for this problem; fp8 needs the error of an emulation that rounds P as the plan says."""
    with_mean = problem.data == "mean"
    if facts.qkv_dtype != "e4m3" or with_mean:
        return contract_bound(plan.spec, v_has_mean=with_mean)
    emulated, _ = reference(plan.spec, **arguments, p_rounding=plan.variants[0].p_rounding)
    return contract_bound(plan.spec, expected=expected, emulated=emulated)


def _badness(report: ErrorReport) -> tuple[int, float, float]:
    wrong_places = len(report.nonfinite_mismatch) + len(report.lse_nonfinite_mismatch)
    return wrong_places, report.rel_frobenius, report.lse_excess or 0.0


def _same_bits(
    one: tuple[np.ndarray, np.ndarray | None], other: tuple[np.ndarray, np.ndarray | None]
) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is None or b is None or a.tobytes() == b.tobytes() for a, b in pairs)


def _number(value: float | None) -> float | None:
    """A float that JSON can hold: None for infinity and NaN."""
    return value if value is not None and np.isfinite(value) else None
