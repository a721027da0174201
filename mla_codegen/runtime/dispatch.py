"""Checked calls, found again by their arguments; loading and launching on each device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mla_codegen.plan.model import Plan
from mla_codegen.runtime.arguments import Problem, check_call, check_output, without_head_axis
from mla_codegen.runtime.arrays import ArrayView
from mla_codegen.runtime.build import KernelBuild
from mla_codegen.runtime.contents import check_contents
from mla_codegen.runtime.device import LoadedKernel, check_device, load_on_device
from mla_codegen.runtime.driver import Driver, the_driver
from mla_codegen.runtime.launch import PackedLaunch, encode_maps, grid_of, pack_launch
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.rules import call_rules
from mla_codegen.runtime.tensormap import EncodeFunction, TensorMapCache, encode

_MAX_CALLS = 256
_MAX_OUTPUTS = 32
INPUT_NAMES = (
    "q_nope",
    "q_rope",
    "k_nope",
    "k_rope",
    "v",
    "q_scale",
    "k_scale",
    "v_scale",
    "cu_seqlens_q",
    "cu_seqlens_k",
)
_UNKNOWN: Any = object()


@dataclass(slots=True)
class CheckedCall:
    """Inputs that passed all checks, with the launch for each output seen; no kernel where none runs."""

    problem: Problem
    views: dict[str, ArrayView]
    kernel: LoadedKernel | None
    encoded_maps: bytes
    launches: dict[tuple[ArrayView | None, ...], PackedLaunch | None] = field(default_factory=dict)


class Dispatcher:
    """What stands between arrays and driver; a repeated call costs two dictionary look-ups."""

    def __init__(
        self,
        plan: Plan,
        build: KernelBuild,
        *,
        driver: Driver | None,
        encode_function: EncodeFunction = encode,
    ) -> None:
        """Loads nothing yet; `driver` and `encode_function` stand in for the CUDA driver in tests."""
        self.rules = call_rules(plan)
        self.outputs = tuple(rule for rule in self.rules.arguments if rule.is_output)
        self.loaded: dict[int, LoadedKernel] = {}
        self._plan = plan
        self._variant = plan.variants[0]
        self._build = build
        self._given_driver = driver
        self._layout = params_layout(self._variant.params)
        self._maps = TensorMapCache(encode_function)
        self._calls: dict[tuple[object, ...], CheckedCall] = {}
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._lock = threading.RLock()

    @functools.cached_property
    def driver(self) -> Driver:
        return the_driver() if self._given_driver is None else self._given_driver

    def checked(self, given: tuple[ArrayView | None, ...], tokens: int, scale: float) -> CheckedCall:
        """The call with these inputs, in the order of INPUT_NAMES; LaunchError where they do not fit."""
        key = (given, tokens, scale)
        call = self._calls.get(key)
        if call is None:
            call = self._check(given, tokens, scale)
            self._store(self._calls, key, call)
        return call

    def check_contents(self, call: CheckedCall, handle: int) -> None:
        dtypes = {
            rule.name: rule.dtype
            for rule in self.rules.arguments
            if rule.name.startswith("cu_seqlens") or rule.name.endswith("_scale")
        }
        with self.driver.on_device(call.problem.device):
            check_contents(self.driver, dtypes, call.views, call.problem, handle)

    def launch(self, call: CheckedCall, outputs: tuple[ArrayView, ...], handle: int) -> None:
        packed = call.launches.get(outputs, _UNKNOWN)
        if packed is _UNKNOWN:
            packed = self._pack(call, outputs)
        kernel = call.kernel
        if packed is None or kernel is None:
            return
        driver, launch = self.driver, self._variant.launch
        if driver.current_context() == kernel.context:
            self._start(kernel, packed, launch.threads, launch.smem_bytes, handle)
            return
        with driver.on_device(call.problem.device):
            self._start(kernel, packed, launch.threads, launch.smem_bytes, handle)

    def kernel_on(self, device: int) -> LoadedKernel:
        loaded = self.loaded.get(device)
        if loaded is not None:
            return loaded
        with self._lock:
            if device not in self.loaded:
                check_device(self.driver, device, self._plan.name, self._plan.arch)
                cubin = self._build.get().cubin
                self.loaded[device] = load_on_device(self.driver, device, cubin, self._variant)
            return self.loaded[device]

    def _check(
        self, given: tuple[ArrayView | None, ...], max_seqlen_q: int, softmax_scale: float
    ) -> CheckedCall:
        views = dict(zip(INPUT_NAMES, given, strict=True))
        problem = self._problem(views, max_seqlen_q, softmax_scale)
        present = {name: view for name, view in views.items() if view is not None}
        if "k_rope" in present:
            present["k_rope"] = without_head_axis(present["k_rope"])
        if problem.is_empty:
            return CheckedCall(problem, present, None, b"")
        kernel = self.kernel_on(problem.device)
        return CheckedCall(problem, present, kernel, encode_maps(self._variant, problem, present, self._maps))

    def _problem(
        self, views: Mapping[str, ArrayView | None], max_seqlen_q: int, softmax_scale: float
    ) -> Problem:
        """The checked problem; other arrays of the same form, on known devices, are not checked again."""
        form = tuple(
            view and view._replace(pointer=view.pointer % self.rules.align_bytes) for view in views.values()
        )
        key = (form, max_seqlen_q, softmax_scale)
        problem = self._problems.get(key)
        if problem is None:
            problem = check_call(
                self.rules,
                views,
                max_seqlen_q=max_seqlen_q,
                softmax_scale=softmax_scale,
                device_of=self._pointer_device,
            )
            if all(view is None or view.device >= 0 for view in form):
                self._store(self._problems, key, problem)
        return problem

    def _pointer_device(self, pointer: int) -> int:
        return self.driver.pointer_device(pointer)

    def _store(self, store: dict[Any, Any], key: object, value: object) -> None:
        """Keeps `value`; the oldest of too many is dropped."""
        with self._lock:
            while len(store) >= _MAX_CALLS:
                del store[next(iter(store))]
            store[key] = value

    def _start(
        self, kernel: LoadedKernel, packed: PackedLaunch, threads: int, smem_bytes: int, handle: int
    ) -> None:
        x, y, z = packed.grid
        status = self.driver.launch_kernel(
            kernel.function, x, y, z, threads, 1, 1, smem_bytes, handle, packed.arguments, None
        )
        if status != 0:
            self.driver.check(f"the launch of {self._plan.name}", status)

    def _pack(self, call: CheckedCall, outputs: tuple[ArrayView, ...]) -> PackedLaunch | None:
        for rule, view in zip(self.outputs, outputs, strict=True):
            check_output(rule, view, call.problem, self.rules, self._pointer_device)
        named = {rule.name: view for rule, view in zip(self.outputs, outputs, strict=True)}
        packed = None
        if call.kernel is not None:
            packed = pack_launch(
                grid_of(self._variant, call.problem),
                call.encoded_maps,
                self._layout,
                call.problem,
                {**call.views, **named},
            )
        with self._lock:
            if len(call.launches) >= _MAX_OUTPUTS:
                call.launches.clear()
            call.launches[outputs] = packed
        return packed
