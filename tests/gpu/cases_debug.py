"""The debug build: right where the kernel is right, and an explanation where a barrier never completes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

import mla_codegen as mla
from mla_codegen.digest import sha256
from mla_codegen.errors import LaunchError
from mla_codegen.judge import Problem, judge, poisoned_outputs
from mla_codegen.plan.model import Plan
from mla_codegen.runtime import make_kernel
from mla_codegen.runtime.host_arrays import launch_on_host_arrays
from mla_codegen.tensors import tensor_facts
from tests.gpu.checks import spec_path

FAULTS = {
    "consumers keep their slots": "if (lane == 0) mbarrier_arrive(empty_barrier);",
    "the tail is never cleared": "if (lane == 0) mbarrier_arrive(v_tail_cleared());",
    "V is never handed over": "mbarrier_arrive(v_full(v.stage));",
}
"""What goes wrong -> the text that is taken out of the source; not every source has each."""

_RIGHT = Problem(q_lens=(130, 0, 7), kv_lens=(1500, 3, 50), heads=2)
_BROKEN = Problem(q_lens=(130,), kv_lens=(1500,), heads=2)
_REPORT = re.compile(
    r"role (?P<role>\w+) \(thread \d+\) of CTA \(\d+, 0, 0\) "
    r"waited in vain for barrier (?P<barrier>\w+), stage (?P<stage>\d+)"
)


def source_of(spec: str) -> str:
    """The source of the debug build; needs no GPU."""
    return mla.render(mla.make_plan(mla.load_spec(spec_path(spec)), debug=True))


def right(spec: str) -> dict[str, Any]:
    """The verdict on the debug build."""
    loaded = mla.load_spec(spec_path(spec))
    kernel = mla.load(loaded, debug=True)

    def launch(arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None, number: int) -> None:
        launch_on_host_arrays(kernel, arguments, out, lse)

    verdict = judge(mla.make_plan(loaded, debug=True), _RIGHT, launch)
    return {**verdict.to_mapping(), "report": kernel.debug_report()}


def broken(spec: str, fault: str) -> dict[str, Any]:
    """What a launch of the debug build with a fault in it ends with, and what the plan knows."""
    plan = mla.make_plan(mla.load_spec(spec_path(spec)), debug=True)
    source = mla.render(plan)
    assert FAULTS[fault] in source
    changed = source.replace(FAULTS[fault], "", 1)
    kernel = make_kernel(dataclasses.replace(plan, source_digest=sha256(changed.encode("ascii"))), changed)
    arguments = _BROKEN.arguments(plan.spec)
    out, lse = poisoned_outputs(tensor_facts(plan.spec), arguments)
    error = ""
    try:
        launch_on_host_arrays(_Synchronised(kernel), arguments, out, lse)
    except LaunchError as raised:
        error = str(raised)
    return {"error": error, **_named(error, plan)}


class _Synchronised:
    """A kernel whose calls wait for it, so that its error comes from it and not from the copy behind it."""

    def __init__(self, kernel: Any) -> None:
        """Wraps `kernel`."""
        self._kernel = kernel

    def __call__(self, **arguments: Any) -> None:
        self._kernel(**arguments)
        self._kernel.synchronize()


def _named(error: str, plan: Plan) -> dict[str, bool]:
    """Whether the error names a role, a barrier and a stage that the plan has."""
    variant = plan.variants[0]
    found = _REPORT.search(error)
    stages = {barrier.name: barrier.stages for barrier in variant.mbarriers}
    return {
        "role": found is not None and found["role"] in {role.name for role in variant.roles},
        "barrier": found is not None and found["barrier"] in stages,
        "stage": found is not None and int(found["stage"]) < stages.get(found["barrier"], 0),
    }
