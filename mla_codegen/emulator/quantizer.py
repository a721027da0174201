"""A generated quantiser that runs on the CPU: its source on NumPy arrays, and what its threads do wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from mla_codegen.call.forms import array_form
from mla_codegen.call.quantizer import quantizer_call, refusal
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.emulator.compiler import build_kernel
from mla_codegen.emulator.launcher import launcher_source
from mla_codegen.emulator.native import GlobalRange, KernelLibrary, RawHazard, RunConfig
from mla_codegen.errors import LaunchError
from mla_codegen.plan.quantizer_model import QuantizerPlan

_STACK_BYTES = 256 * 1024
_REGISTERS = 128
_ALIGN_BYTES = 256
_NO_DEVICE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedQuantization:
    """Outputs by name, and hazards of all launches; `unwritten` counts elements that no thread wrote."""

    outputs: Mapping[str, np.ndarray]
    hazards: tuple[RawHazard, ...]
    unwritten: Mapping[str, int]


class EmulatedQuantizer:
    """Runs the kernels of a quantiser one after the other."""

    def __init__(self, plan: QuantizerPlan, source: str) -> None:
        """Compiles the source for the CPU, where the cache does not have it."""
        self._plan = plan
        entries = plan.entries()
        variants = [
            SimpleNamespace(namespace=plan.namespace, entry=entry, tensor_maps=(), params=plan.params)
            for entry in entries
        ]
        stand_in: Any = SimpleNamespace(name=f"{plan.name}_quantize", variants=variants)
        self._variants = {entry: index for index, entry in enumerate(entries)}
        self._library = KernelLibrary(build_kernel(stand_in.name, source, launcher_source(stand_in)))

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        cu_seqlens_k: np.ndarray | None = None,
        seed: int = 0,
        policy: int = 0,
        workers: int = 1,
    ) -> EmulatedQuantization:
        """The outputs for `q`, `kv` and, where there is rope, `k_rope` [..., tokens, rope].

        LaunchError where quantisers do not read these arrays.
        """
        forms = {
            name: array_form(
                array.shape, array.strides, array.itemsize, array.dtype.name, _NO_DEVICE, "numpy"
            )
            for name, array in inputs.items()
        }
        refused = refusal(forms, {name: array.ctypes.data for name, array in inputs.items()})
        if refused:
            raise LaunchError.single("quantizer", f"the quantiser does not read them: {refused}")
        sequences = 1 if cu_seqlens_k is None else len(cu_seqlens_k) - 1
        call = quantizer_call(self._plan, forms, sequences)
        outputs = {output.name: _new_array(output.shape, output.dtype) for output in call.outputs}
        marks = {name: np.zeros(array.nbytes // 2 + 1, np.uint8) for name, array in outputs.items()}
        workspace = np.zeros(max(1, call.workspace_words), np.uint32)
        arrays = {f"source_{name}": array for name, array in inputs.items()} | outputs
        if cu_seqlens_k is not None:
            arrays["cu_seqlens_k"] = cu_seqlens_k
        slots = {name: int(array.ctypes.data) for name, array in arrays.items()}
        slots |= {name: int(workspace.ctypes.data) + 4 * word for name, word in call.workspace.items()}
        slots |= {name: value & 0xFFFFFFFFFFFFFFFF for name, value in call.values.items()}
        arrays["workspace"] = workspace
        ranges = [
            _range(index, array, marks.get(name), name in outputs or name == "workspace")
            for index, (name, array) in enumerate(arrays.items())
        ]
        hazards: list[RawHazard] = []
        for entry, ctas in call.launches:
            config = RunConfig(
                threads=self._plan.threads,
                smem_bytes=self._plan.smem_bytes,
                launch_registers=_REGISTERS,
                grid=(ctas, 1, 1),
                seed=seed,
                policy=policy,
                checks=1,
                workers=workers,
                stack_bytes=_STACK_BYTES,
            )
            members = [slots[field.name] for field in self._plan.params]
            hazards += self._library.run(self._variants[entry], config, ranges, b"", members).hazards
        unwritten = {name: _unwritten(array, marks[name]) for name, array in outputs.items()}
        return EmulatedQuantization(outputs=outputs, hazards=tuple(hazards), unwritten=unwritten)


def _new_array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array full of bytes that no quantiser writes, aligned as libraries of the GPU align theirs."""
    kind = numpy_dtype(DTYPES[dtype])
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.full(size + _ALIGN_BYTES, 0xFF, np.uint8)
    start = -raw.ctypes.data % _ALIGN_BYTES
    return raw[start : start + size].view(kind).reshape(shape)


def _range(index: int, array: np.ndarray, marks: np.ndarray | None, writable: bool) -> GlobalRange:
    """All bytes from the first to the last of an array, which may be a view."""
    steps = ((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
    size = sum(steps) + array.itemsize
    address = 0 if marks is None else marks.ctypes.data
    return GlobalRange(address=array.ctypes.data, bytes=size, marks=address, writable=writable, index=index)


def _unwritten(array: np.ndarray, marks: np.ndarray) -> int:
    """Pairs of bytes that no store has marked."""
    return int(array.nbytes // 2 - np.count_nonzero(marks[: array.nbytes // 2]))
