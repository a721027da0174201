"""A generated kernel that runs on the CPU."""

from __future__ import annotations

import functools
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from mla_codegen.call.description import lse_info, plan_mapping
from mla_codegen.call.launch import grid_of
from mla_codegen.call.rules import call_rules
from mla_codegen.emulator.arguments import Call, check_call, check_contents
from mla_codegen.emulator.compiler import Libraries, build_kernel, find_kernel
from mla_codegen.emulator.launcher import launcher_source
from mla_codegen.emulator.names import PlanNames
from mla_codegen.emulator.native import KernelLibrary, RunConfig, RunResult
from mla_codegen.emulator.packing import (
    encode_map,
    global_ranges,
    new_marks,
    param_slot,
    unwritten_elements,
)
from mla_codegen.emulator.progress import Progress, reported
from mla_codegen.emulator.report import EmulationError, EmulationReport, Hazard, outputs_differ
from mla_codegen.emulator.trace import write_trace
from mla_codegen.errors import CompileError, Diagnostic, LaunchError
from mla_codegen.plan.model import Plan

POLICIES = ("late", "early", "random")
"""When a copy completes: as late as possible, at once, or at random."""
ARITHMETIC = ("tensor_core", "exact")
"""How fp8 products are summed: as the tensor cores do, or in fp32."""
_STACK_BYTES = 256 * 1024
_NO_RESULT = RunResult(hazards=(), counters={}, events=())


class EmulatedKernel:
    """Computes MLA prefill attention on NumPy arrays, as the kernel would on the GPU.

    Calling it returns `out`, or `(out, lse)` where the spec has an LSE, and raises EmulationError where the
    run met a hazard; `run` returns a report instead. Argument errors are LaunchErrors (ValueErrors), as on
    the GPU.
    """

    def __init__(self, plan: Plan, source: str, *, may_compile: bool = True) -> None:
        """Compiles nothing yet, and never where it may not: then the cache has to hold the kernel."""
        self._plan = plan
        self._may_compile = may_compile
        self._rules = call_rules(plan)
        self._variant = plan.variants[0]
        self._source = source
        self._library: KernelLibrary | None = None

    @functools.cached_property
    def plan(self) -> Mapping[str, Any]:
        """The contents of plan.json, read-only."""
        return plan_mapping(self._plan)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The complete spec that the kernel was planned for, read-only."""
        spec: Mapping[str, Any] = self.plan["spec"]
        return spec

    @property
    def source(self) -> str:
        """The generated source."""
        return self._source

    @property
    def lse_info(self) -> Mapping[str, Any] | None:
        """Base of the logarithm, layout, value of rows that see no key; None where there is no LSE."""
        return lse_info(self._plan)

    @property
    def attributes(self) -> Mapping[str, int]:
        """`threads` and `shared_bytes` of a CTA, as on the GPU; nothing is compiled for them.

        Registers, spills and barriers are what the CUDA compiler made of the source: the GPU kernel has them.
        """
        launch = self._variant.launch
        return MappingProxyType({"shared_bytes": launch.smem_bytes, "threads": launch.threads})

    def warmup(self) -> None:
        """Loads the kernel, and compiles it before where the cache does not hold it.

        CompileError where that fails, or where the kernel was loaded with compile="never".
        """
        if self._library is None:
            self._library = KernelLibrary(self._libraries())

    def is_compiled(self) -> bool:
        """Whether a call would run without the compiler."""
        return self._library is not None or self._find() is not None

    def _find(self) -> Libraries | None:
        return find_kernel(self._plan.name, self._source, launcher_source(self._plan))

    def _libraries(self) -> Libraries:
        if self._may_compile:
            return build_kernel(self._plan.name, self._source, launcher_source(self._plan))
        found = self._find()
        if found is None:
            raise CompileError.single(
                "late-compile",
                f"kernel {self._plan.name} is not compiled for the emulator, and compile='never' forbids to "
                "do it now",
                help="load it once with compile='auto', which keeps it in the cache",
            )
        return found

    def __call__(
        self,
        q_nope: np.ndarray,
        q_rope: np.ndarray | None,
        k_nope: np.ndarray,
        k_rope: np.ndarray | None,
        v: np.ndarray,
        *,
        q_scale: np.ndarray | None = None,
        k_scale: np.ndarray | None = None,
        v_scale: np.ndarray | None = None,
        k_rope_scale: np.ndarray | None = None,
        cu_seqlens_q: np.ndarray | None = None,
        cu_seqlens_k: np.ndarray | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        out: np.ndarray | None = None,
        lse: np.ndarray | None = None,
        stream: object = None,
        check: bool = False,
    ) -> Any:
        """Attention of the queries over the keys; the call of the GPU kernel, `stream` means nothing here."""
        report = self.run(
            q_nope, q_rope, k_nope, k_rope, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
            k_rope_scale=k_rope_scale,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale, out=out, lse=lse, check=check,
        )  # fmt: skip
        if report.hazards:
            raise EmulationError(
                Diagnostic(
                    code=f"hazard-{hazard.kind}",
                    message=hazard.message,
                    path=report.source_name,
                    line=hazard.line or None,
                    notes=(f"CTA {hazard.cta}, {hazard.role}; seed {hazard.seed}, policy {hazard.policy}",),
                )
                for hazard in report.hazards
            )
        return report.out if report.lse is None else (report.out, report.lse)

    def run(
        self,
        q_nope: np.ndarray,
        q_rope: np.ndarray | None,
        k_nope: np.ndarray,
        k_rope: np.ndarray | None,
        v: np.ndarray,
        *,
        q_scale: np.ndarray | None = None,
        k_scale: np.ndarray | None = None,
        v_scale: np.ndarray | None = None,
        k_rope_scale: np.ndarray | None = None,
        cu_seqlens_q: np.ndarray | None = None,
        cu_seqlens_k: np.ndarray | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        out: np.ndarray | None = None,
        lse: np.ndarray | None = None,
        check: bool = False,
        seed: int = 0,
        policy: str | None = None,
        schedules: int = 1,
        workers: int = 1,
        arithmetic: str = "tensor_core",
        hazard_checks: bool = True,
        trace: str | os.PathLike[str] | None = None,
        trace_cta: int = 0,
        progress: Progress | None = None,
    ) -> EmulationReport:
        """Runs the kernel under `schedules` schedules and reports what it computed and which hazards it met.

        Schedule i has seed `seed + i`; `policy` is one of POLICIES, or None for all three in rotation. The
        same seed and policy replay the same run. `workers` CTAs run at a time, each on a thread of its own.
        With `hazard_checks=False` only deadlocks and accesses out of bounds are found, at about twice the
        speed. `trace` names a file for the events of CTA `trace_cta` (x fastest) in the first schedule.
        `check=True` also looks at cu_seqlens and scales. Queries beyond `max_seqlen_q` or behind the last
        sequence are not written, which is no hazard; `unwritten_elements` of the report counts them.
        `progress` is called a few times a second with the CTAs done and the CTAs of all schedules.
        """
        _check_choice("policy", policy, (None, *POLICIES))
        _check_choice("arithmetic", arithmetic, ARITHMETIC)
        for name, count in (("schedules", schedules), ("workers", workers)):
            _check_count(name, count)
        given = {
            "q_nope": q_nope, "q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope, "v": v,
            "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "k_rope_scale": k_rope_scale,
            "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "out": out, "lse": lse,
        }  # fmt: skip
        call = check_call(self._rules, self._variant, given, max_seqlen_q, softmax_scale)
        if check:
            check_contents(self._rules, call)
        self.warmup()
        outputs = frozenset(rule.name for rule in self._rules.outputs)
        config = RunConfig(
            threads=self._variant.launch.threads,
            smem_bytes=self._variant.launch.smem_bytes,
            launch_registers=self._variant.launch.launch_registers,
            grid=grid_of(self._variant, call.problem),
            checks=hazard_checks,
            exact_arithmetic=arithmetic == "exact",
            workers=workers,
            trace_cta=trace_cta,
            stack_bytes=_STACK_BYTES,
        )
        ctas = math.prod(config.grid)
        if trace is not None and not 0 <= trace_cta < max(1, ctas):
            message = f"trace_cta is {trace_cta}, the grid has the CTAs 0 to {ctas - 1}"
            raise LaunchError.single("trace-cta", message, help="pass the number of one of them, x fastest")
        with reported(progress, config, total=schedules * ctas):
            return self._run_schedules(call, outputs, config, seed, policy, schedules, trace)

    def _run_schedules(
        self,
        call: Call,
        outputs: frozenset[str],
        config: RunConfig,
        seed: int,
        policy: str | None,
        schedules: int,
        trace: str | os.PathLike[str] | None,
    ) -> EmulationReport:
        names = PlanNames(self._variant, tuple(call.arrays))
        hazards: dict[tuple[str, int, int], Hazard] = {}
        counts: Counter[str] = Counter()
        used: list[tuple[int, str]] = []
        first_output: bytes | None = None
        marks: dict[str, np.ndarray] = {}
        seconds = 0.0
        for index in range(schedules):
            chosen = POLICIES[index % len(POLICIES)] if policy is None else policy
            config.seed, config.policy = seed + index, POLICIES.index(chosen)
            config.trace = trace is not None and index == 0
            used.append((seed + index, chosen))
            marks = {name: new_marks(call.arrays[name]) for name in outputs}
            result, elapsed = self._run_once(call, outputs, config, marks)
            seconds += elapsed
            for raw in result.hazards:
                hazard = Hazard(
                    kind=raw.kind,
                    message=names.text(raw.text),
                    cta=raw.cta,
                    role=names.thread(raw.thread),
                    line=raw.line,
                    other_line=raw.other_line,
                    count=raw.count,
                    seed=seed + index,
                    policy=chosen,
                )
                hazards.setdefault((hazard.kind, hazard.line, hazard.other_line), hazard)
            counts.update(result.counters)
            if trace is not None and index == 0:
                write_trace(trace, result.events, names)
            content = b"".join(call.arrays[name].tobytes() for name in sorted(outputs))
            if first_output is None:
                first_output = content
            elif content != first_output and not hazards:
                hazards["schedule", 0, 0] = outputs_differ(used)
        counts.pop("hazards", None)
        return EmulationReport(
            source_name=f"{self._plan.name}.cu",
            out=call.arrays["out"],
            lse=call.arrays.get("lse"),
            hazards=tuple(hazards.values()),
            schedules=tuple(used),
            counts=dict(counts),
            unwritten_elements=unwritten_elements(call.arrays["out"], marks.get("out")),
            seconds=seconds,
        )

    def _run_once(
        self, call: Call, outputs: frozenset[str], config: RunConfig, marks: Mapping[str, np.ndarray]
    ) -> tuple[RunResult, float]:
        """One run of the grid and its seconds; nothing runs where the grid is empty."""
        if call.problem.is_empty:
            return _NO_RESULT, 0.0
        assert self._library is not None, "the kernel is compiled before it runs"
        maps = b"".join(encode_map(tensor_map, call) for tensor_map in self._variant.tensor_maps)
        slots = [param_slot(field, call, self._variant) for field in self._variant.params]
        ranges = global_ranges(call, outputs, marks)
        begin = time.perf_counter()
        result = self._library.run(0, config, ranges, maps, slots)
        return result, time.perf_counter() - begin


def load_emulated(plan: Plan, source: str, *, may_compile: bool = True) -> EmulatedKernel:
    """The emulated kernel of a plan and its source; CompileError where the source does not compile.

    Where it may not be compiled, no compiler runs, now or later: a call of a kernel that the cache does not
    hold is a CompileError.
    """
    kernel = EmulatedKernel(plan, source, may_compile=may_compile)
    if may_compile:
        kernel.warmup()
    return kernel


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        message = f"{name} is {value!r}, an integer of at least 1 is needed"
        raise LaunchError.single("count", message, help=f"pass {name}=1 or more, or leave it out")


def _check_choice(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        texts = " or ".join(repr(item) for item in allowed)
        raise LaunchError.single(name, f"{name} is {value!r}, {texts} is allowed")
