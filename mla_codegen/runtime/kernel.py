"""A generated kernel as a Python callable."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mla_codegen.call.checks import output_shape, raise_if
from mla_codegen.call.description import lse_info, plan_mapping
from mla_codegen.call.faults import not_declared
from mla_codegen.call.numbers import checked_max_seqlen, checked_softmax_scale
from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import INPUT_NAMES
from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.allocation import empty_like_library
from mla_codegen.runtime.arrays import Array, view_array
from mla_codegen.runtime.build import KernelBuild
from mla_codegen.runtime.dispatch import Dispatcher
from mla_codegen.runtime.driver import Driver
from mla_codegen.runtime.streams import current_stream_function, stream_handle
from mla_codegen.runtime.variants import main_variant
from mla_codegen.runtime.warm import Arguments, WarmCalls


class Kernel:
    """Computes MLA prefill attention on GPU arrays.

    Calling it launches the kernel and returns `out`, or `(out, lse)` where the spec has an LSE. All argument
    errors are LaunchErrors (ValueErrors) raised before anything is launched. A call with `out=` allocates
    nothing on the device and never waits for it; after `warmup()` it can be captured in a CUDA graph.
    """

    def __init__(self, plan: Plan, source: str, build: KernelBuild, *, driver: Driver | None = None) -> None:
        """Loads nothing yet; `driver` stands in for the CUDA driver in tests."""
        self._plan = plan
        self._variant = main_variant(plan)
        self._source = source
        self._build = build
        self._dispatcher = Dispatcher(plan, build, driver=driver)
        self._warm = WarmCalls()

    def __call__(
        self,
        q_nope: Array,
        q_rope: Array | None,
        k_nope: Array,
        k_rope: Array | None,
        v: Array,
        *,
        q_scale: Array | None = None,
        k_scale: Array | None = None,
        v_scale: Array | None = None,
        k_rope_scale: Array | None = None,
        cu_seqlens_q: Array | None = None,
        cu_seqlens_k: Array | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        out: Array | None = None,
        lse: Array | None = None,
        stream: object = None,
        check: bool = False,
    ) -> Array:
        """Attention of the queries over the keys; `plan["arguments"]` has the dtypes and axes.

        Exactly the arguments that are there are passed; `q_rope` and `k_rope` are None where dims.rope is 0.
        `max_seqlen_q` belongs to ragged queries and is a capacity: no sequence may have more queries, which
        only `check=True` verifies, together with cu_seqlens and scales, at the price of one synchronisation.
        Dense queries have their length in their shape, and refuse it. `softmax_scale` defaults to
        1 / sqrt(nope + rope). `stream` is an integer handle or a stream object; default is the current stream
        of the library that q_nope comes from. An output that is not passed is allocated by that library, on
        its current stream; one that is passed must not share memory with an input, which nothing checks.
        """
        inputs = (
            q_nope, q_rope, k_nope, k_rope, v,
            q_scale, k_scale, v_scale, k_rope_scale, cu_seqlens_q, cu_seqlens_k,
        )  # fmt: skip
        arguments = (*inputs, out, lse, max_seqlen_q, softmax_scale)
        if out is not None and not check and self._warm.launch(arguments, stream):
            return out if lse is None else (out, lse)
        return self._call(arguments, stream, check)

    def _call(self, arguments: Arguments, stream: object, check: bool) -> Array:
        """A call that is not known yet: everything is checked, missing outputs are allocated."""
        *inputs, out, lse, max_seqlen_q, softmax_scale = arguments
        dispatcher = self._dispatcher
        tokens = checked_max_seqlen(max_seqlen_q, ragged=dispatcher.rules.ragged_q)
        scale = checked_softmax_scale(softmax_scale, dispatcher.rules.softmax_scale)
        handle = -1 if stream is None else stream_handle(stream)
        first = view_array(INPUT_NAMES[0], inputs[0], max(handle, 0))
        if handle < 0:
            handle = current_stream_function(first[1].library)(first[1].device)
        views = [first, *map(view_array, INPUT_NAMES[1:], inputs[1:], itertools.repeat(handle))]
        pointers, forms = zip(*views, strict=True)
        call = dispatcher.checked(pointers, forms, max_seqlen_q=tokens, softmax_scale=scale)
        if check:
            dispatcher.check_contents(call, pointers, handle)
        outputs = self._outputs(call.problem, inputs[0], out, lse)
        output_views = [
            view_array(rule.name, array, handle)
            for rule, array in zip(dispatcher.outputs, outputs, strict=True)
        ]
        launch = dispatcher.launch(call, pointers, output_views, handle)
        is_given = out is not None and (lse is not None or len(outputs) == 1)
        if launch is not None and is_given:
            self._warm.learn(arguments, [*call.present(forms), *(form for _, form in output_views)], launch)
        return outputs[0] if len(outputs) == 1 else outputs

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
        """The CUDA source."""
        return self._source

    @property
    def attributes(self) -> Mapping[str, int]:
        """Registers, shared memory and spills of the compiled kernel; compiles it where needed."""
        entry = self._build.get().entry(self._variant.entry)
        return MappingProxyType(
            {
                "registers": entry.registers,
                "shared_bytes": self._variant.launch.smem_bytes + entry.static_smem_bytes,
                "spill_bytes": entry.spill_store_bytes + entry.spill_load_bytes,
                "local_bytes": entry.stack_bytes,
                "barriers": entry.barriers,
                "threads": self._variant.launch.threads,
            }
        )

    @property
    def lse_info(self) -> Mapping[str, Any] | None:
        """Base of the logarithm, layout, value of rows that see no key; None where there is no LSE."""
        return lse_info(self._plan)

    def is_compiled(self) -> bool:
        """Whether a call would run without the compiler."""
        return self._build.find() is not None

    def warmup(self, device: int | None = None) -> None:
        """Compiles the kernel and loads it on `device` (default: the current one), so that no call has to."""
        self._dispatcher.kernel_on(self._dispatcher.driver.current_device() if device is None else device)

    def synchronize(self) -> None:
        """Waits for the devices that the kernel ran on; LaunchError, with a debug report, on failure."""
        for device in tuple(self._dispatcher.loaded):
            with self._dispatcher.driver.on_device(device):
                status = self._dispatcher.driver.synchronize()
            if status != 0:
                report = self.debug_report()
                name = self._dispatcher.driver.error_name(status)
                raise LaunchError.single(
                    "kernel-failed",
                    f"kernel {self._plan.name} failed on device {device} with {name}",
                    notes=() if report is None else (report,),
                    help=None if report else "load the kernel with debug=True to learn which wait hangs",
                )

    def debug_report(self) -> str | None:
        """Role, barrier, stage and phase of the wait that a debug build gave up; None where there is none."""
        for loaded in tuple(self._dispatcher.loaded.values()):
            report = None if loaded.record is None else loaded.record.report(self._variant)
            if report is not None:
                return report
        return None

    def _outputs(
        self, problem: Problem, like: Array, out: Array | None, lse: Array | None
    ) -> tuple[Array, ...]:
        """The arrays of all outputs, allocated where the call has none."""
        rules = self._dispatcher.outputs
        given = (out, lse)[: len(rules)]
        if lse is not None and len(rules) == 1:
            raise_if([not_declared("lse")])
        return tuple(
            empty_like_library(like, output_shape(rule, problem), DTYPES[rule.dtype], problem.device)
            if array is None
            else array
            for rule, array in zip(rules, given, strict=True)
        )
