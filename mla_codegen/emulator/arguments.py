"""A call on NumPy arrays, checked by the rules of all calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mla_codegen.call.checks import check_inputs, check_limits, check_output, output_shape, raise_if
from mla_codegen.call.contents import content_faults
from mla_codegen.call.faults import fault, not_declared
from mla_codegen.call.forms import NO_FORM, ArrayForm, ArrayView, array_form
from mla_codegen.call.numbers import checked_max_seqlen, checked_softmax_scale
from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import INPUT_NAMES, ArgumentRule, CallRules
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import Diagnostic
from mla_codegen.plan.model import Variant

_NO_DEVICE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked call: arrays by argument name, their forms (k_rope's without its one head), and numbers."""

    arrays: Mapping[str, np.ndarray]
    forms: Mapping[str, ArrayForm]
    problem: Problem


def check_call(
    rules: CallRules,
    variant: Variant,
    given: Mapping[str, np.ndarray | None],
    max_seqlen_q: int | None,
    softmax_scale: float | None,
) -> Call:
    """The call, with an output full of NaN in place of each that was not passed.

    `given` holds all inputs by name and, where passed, outputs. LaunchError with every fault.
    """
    raise_if(_array_faults(given))
    inputs = {name: _view(given.get(name)) for name in INPUT_NAMES}
    checked = check_inputs(
        rules,
        inputs,
        max_seqlen_q=checked_max_seqlen(max_seqlen_q, ragged=rules.ragged_q),
        softmax_scale=checked_softmax_scale(softmax_scale, rules.softmax_scale),
    )
    problem = checked.problem
    check_limits(problem, variant)
    declared = {rule.name for rule in rules.outputs}
    extra = [name for name, array in given.items() if array is not None and name not in inputs]
    raise_if(not_declared(name) for name in extra if name not in declared)
    arrays = {name: array for name, array in given.items() if array is not None}
    forms = {name: view.form for name, view in checked.views.items()}
    for rule in rules.outputs:
        if rule.name not in arrays:
            arrays[rule.name] = _new_output(rule, problem)
        view = _view(arrays[rule.name])
        check_output(rule, view, problem, rules)
        raise_if(_read_only_faults(rule, arrays[rule.name]))
        forms[rule.name] = view.form
    return Call(arrays=arrays, forms=forms, problem=problem)


def check_contents(rules: CallRules, call: Call) -> None:
    """LaunchError where lengths or scales cannot be right."""
    copies = {rule.name: call.arrays[rule.name] for rule in rules.contents}
    raise_if(content_faults(rules, copies, call.problem))


def _array_faults(given: Mapping[str, np.ndarray | None]) -> Iterator[Diagnostic]:
    for name, array in given.items():
        if array is not None and not isinstance(array, np.ndarray):
            yield fault(
                "no-array",
                f"{name} is of type {type(array).__name__}, the emulator takes NumPy arrays",
                "copy it to host memory",
            )


def _view(array: np.ndarray | None) -> ArrayView:
    if array is None:
        return ArrayView(0, NO_FORM)
    dtype = array.dtype.name if array.dtype.isnative else f"{array.dtype.name} of the other byte order"
    form = array_form(array.shape, array.strides, array.itemsize, dtype, _NO_DEVICE, "numpy")
    return ArrayView(int(array.ctypes.data), form)


def _read_only_faults(rule: ArgumentRule, array: np.ndarray) -> Iterator[Diagnostic]:
    if not array.flags.writeable:
        message = f"{rule.name} is read-only, a writable array is needed"
        yield fault("read-only", message, f"copy {rule.name}")


def _new_output(rule: ArgumentRule, problem: Problem) -> np.ndarray:
    """An output full of NaN, aligned as the kernel needs it."""
    shape, dtype = output_shape(rule, problem), numpy_dtype(DTYPES[rule.dtype])
    size_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(size_bytes + rule.align_bytes, np.uint8)
    start = -raw.ctypes.data % rule.align_bytes
    array = raw[start : start + size_bytes].view(dtype).reshape(shape)
    array[...] = np.nan
    return array
