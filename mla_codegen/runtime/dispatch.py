"""From array views to launches: forms that were checked before are found again, each device loads once.

Calls that are repeated with arrays of torch or CuPy do not come here, see `warm`.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mla_codegen.call.checks import check_inputs, check_limits, check_output
from mla_codegen.call.forms import NO_FORM, ArrayForm, ArrayView
from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import INPUT_NAMES, call_rules
from mla_codegen.plan.model import Plan, Variant
from mla_codegen.runtime.build import KernelBuild
from mla_codegen.runtime.contents import check_contents
from mla_codegen.runtime.device import LoadedKernel, check_device, load_on_device
from mla_codegen.runtime.driver import Driver, the_driver
from mla_codegen.runtime.launch import LaunchForm, PreparedLaunch
from mla_codegen.runtime.limited import Limited
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.variants import variant_for

_MAX_CALLS = 256
_MAX_OUTPUTS = 32
Pointers: TypeAlias = tuple[int, ...]
Forms: TypeAlias = tuple[ArrayForm, ...]


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """Input forms that passed all checks, with the launch for each form of the outputs.

    `masks` has, per input, the address bits that must be 0; `present` picks what belongs to inputs that are
    there. No kernel where there is nothing to launch.
    """

    problem: Problem
    variant: Variant
    forms: Mapping[str, ArrayForm]
    masks: tuple[int, ...]
    present: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    kernel: LoadedKernel | None
    outputs: Limited[Forms, CheckedOutputs] = field(default_factory=lambda: Limited(_MAX_OUTPUTS))


@dataclass(frozen=True, slots=True)
class CheckedOutputs:
    """Output forms that fit a call, the address bits that must be 0, and the launch."""

    masks: tuple[int, ...]
    launch: PreparedLaunch | None


class Dispatcher:
    """What stands between arrays and driver; a call in forms that were seen before costs a few look-ups."""

    def __init__(self, plan: Plan, build: KernelBuild, *, driver: Driver | None) -> None:
        """Loads nothing yet; `driver` stands in for the CUDA driver in tests."""
        self.rules = call_rules(plan)
        self.outputs = self.rules.outputs
        self.loaded: dict[int, LoadedKernel] = {}
        self._plan = plan
        self._layouts = {variant.entry: params_layout(variant.params) for variant in plan.variants}
        self._build = build
        self._given_driver = driver
        self._calls: Limited[tuple[Forms, int | None, float], CheckedCall] = Limited(_MAX_CALLS)
        self._lock = threading.RLock()

    @functools.cached_property
    def driver(self) -> Driver:
        return the_driver() if self._given_driver is None else self._given_driver

    def checked(
        self, pointers: Pointers, forms: Forms, *, max_seqlen_q: int | None, softmax_scale: float
    ) -> CheckedCall:
        """The call with these inputs, in the order of INPUT_NAMES; LaunchError where they do not fit.

        `max_seqlen_q` is None where queries are dense.
        """
        key = (forms, max_seqlen_q, softmax_scale)
        call = self._calls.get(key)
        if call is None or any(map(operator.and_, pointers, call.masks)):
            located = self._located(pointers, forms)
            if located != forms:
                return self.checked(pointers, located, max_seqlen_q=max_seqlen_q, softmax_scale=softmax_scale)
            call = self._check(pointers, forms, max_seqlen_q, softmax_scale)
            self._calls.keep(key, call)
        return call

    def check_contents(self, call: CheckedCall, pointers: Pointers, stream: int) -> None:
        """LaunchError where lengths or scales cannot be right; waits for the stream."""
        places = dict(zip(INPUT_NAMES, pointers, strict=True))
        views = {name: ArrayView(places[name], form) for name, form in call.forms.items()}
        with self.driver.on_device(call.problem.device):
            check_contents(self.driver, self.rules, views, call.problem, stream)

    def launch(
        self, call: CheckedCall, pointers: Pointers, outputs: Iterable[tuple[int, ArrayForm]], stream: int
    ) -> PreparedLaunch | None:
        """Launches a checked call, and gives the launch; LaunchError where the outputs do not fit it."""
        output_pointers, forms = zip(*outputs, strict=True)
        checked = call.outputs.get(forms)
        if checked is None or any(map(operator.and_, output_pointers, checked.masks)):
            located = self._located(output_pointers, forms)
            if located != forms:
                return self.launch(call, pointers, zip(output_pointers, located, strict=True), stream)
            checked = self._check_outputs(call, list(map(ArrayView, output_pointers, forms)))
            call.outputs.keep(forms, checked)
        if checked.launch is not None:
            started = checked.launch.start([*call.present(pointers), *output_pointers], stream)
            assert started, "an address that was checked is not aligned"
        return checked.launch

    def kernel_on(self, device: int) -> LoadedKernel:
        """The kernel on a device, loaded at the first use; LaunchError where it cannot run there."""
        loaded = self.loaded.get(device)
        if loaded is not None:
            return loaded
        with self._lock:
            if device not in self.loaded:
                check_device(self.driver, device, self._plan.name, self._plan.arch)
                cubin = self._build.get().cubin
                self.loaded[device] = load_on_device(self.driver, device, cubin, self._plan)
            return self.loaded[device]

    def _check(
        self, pointers: Pointers, forms: Forms, max_seqlen_q: int | None, softmax_scale: float
    ) -> CheckedCall:
        given = dict(zip(INPUT_NAMES, map(ArrayView, pointers, forms), strict=True))
        checked = check_inputs(self.rules, given, max_seqlen_q=max_seqlen_q, softmax_scale=softmax_scale)
        problem = checked.problem
        variant = variant_for(self._plan, problem)
        check_limits(problem, variant)
        found = {name: view.form for name, view in checked.views.items()}
        kernel = None if problem.is_empty else self.kernel_on(problem.device)
        present = operator.itemgetter(*(index for index, form in enumerate(forms) if form is not NO_FORM))
        return CheckedCall(problem, variant, found, self._masks(INPUT_NAMES, forms), present, kernel)

    def _check_outputs(self, call: CheckedCall, outputs: Sequence[ArrayView]) -> CheckedOutputs:
        for rule, view in zip(self.outputs, outputs, strict=True):
            check_output(rule, view, call.problem, self.rules)
        names = [rule.name for rule in self.outputs]
        forms = [view.form for view in outputs]
        masks = self._masks(names, forms)
        if call.kernel is None:
            return CheckedOutputs(masks, None)
        entry = call.variant.entry
        form = LaunchForm(
            name=self._plan.name,
            variant=call.variant,
            layout=self._layouts[entry],
            function=call.kernel.functions[entry],
            context=call.kernel.context,
            problem=call.problem,
            forms={**call.forms, **dict(zip(names, forms, strict=True))},
            order=(*call.present(INPUT_NAMES), *names),
            masks=(*call.present(call.masks), *masks),
        )
        return CheckedOutputs(masks, PreparedLaunch(self.driver, form))

    def _masks(self, names: Sequence[str], forms: Sequence[ArrayForm]) -> tuple[int, ...]:
        """Per argument the address bits that must be 0: none of an empty or absent one."""
        align_bytes = {rule.name: rule.align_bytes for rule in self.rules.arguments}
        return tuple(
            0 if form is NO_FORM or form.is_empty else align_bytes[name] - 1
            for name, form in zip(names, forms, strict=True)
        )

    def _located(self, pointers: Pointers, forms: Forms) -> Forms:
        """The forms with their devices asked from the driver where a library does not say."""
        return tuple(
            form if form.device >= 0 or not pointer else form.on(self.driver.pointer_device(pointer))
            for pointer, form in zip(pointers, forms, strict=True)
        )
