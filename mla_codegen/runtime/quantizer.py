"""A generated quantiser as a Python callable on GPU arrays."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Mapping
from typing import Any

from mla_codegen.arch import ARCHS
from mla_codegen.call.forms import ArrayForm
from mla_codegen.call.quantizer import (
    QuantizerCall,
    QuantizerOutput,
    quantizer_call,
    refusal,
    too_large,
)
from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.runtime.arrays import Array, library_of_type, view_array
from mla_codegen.runtime.cache import CubinCache
from mla_codegen.runtime.driver import Driver, the_driver
from mla_codegen.runtime.limited import Limited
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.streams import current_stream_function

_CODES = {"e4m3": "uint8", "bf16": "uint16", "f16": "float16", "f32": "float32"}
"""Dtypes of outputs in CuPy, which has neither e4m3 nor bf16 of its own."""
_ALIGN_BYTES = 16
_WORD_BYTES = 4
_MAX_CALLS = 256
_LIBRARIES = ("cupy", "torch")


class Quantizer:
    """Makes a kernel's arguments of true q, kv and k_rope on the current stream of their library.

    Nothing is waited for, and with `out=` nothing is allocated, except a few words for scales per tensor or
    head. The first call on a device compiles and loads the kernels.
    """

    def __init__(
        self, plan: QuantizerPlan, source: str, *, cache: CubinCache, driver: Driver | None = None
    ) -> None:
        """Loads nothing yet; `driver` stands in for the CUDA driver in tests."""
        self._plan = plan
        self._source = source
        self._cache = cache
        self._given_driver = driver
        self._layout = params_layout(plan.params)
        self._functions: dict[int, Mapping[str, int]] = {}
        self._calls: Limited[tuple[Any, ...], QuantizerCall | str] = Limited(_MAX_CALLS)
        self._lock = threading.Lock()

    @property
    def source(self) -> str:
        """The CUDA source."""
        return self._source

    def refuses(self, inputs: Mapping[str, Array], cu_seqlens_k: Array | None = None) -> str | None:
        """Why the kernels do not read these arrays, in a few words; None where they do."""
        refused = _refused_library(inputs)
        if refused is not None:
            return refused
        call = self._call(*self._views(inputs), cu_seqlens_k)
        return call if isinstance(call, str) else None

    def __call__(
        self,
        inputs: Mapping[str, Array],
        *,
        cu_seqlens_k: Array | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array] | None:
        """The outputs by name for `q`, `kv` and, where there is rope, `k_rope`; None for what is refused.

        `cu_seqlens_k`, int32 on the device, is read where V is transposed and keys are ragged. `out` has
        arrays to write in place of new ones. LaunchError where one of them does not fit.
        """
        if _refused_library(inputs) is not None:
            return None
        pointers, forms = self._views(inputs)
        call = self._call(pointers, forms, cu_seqlens_k)
        if isinstance(call, str):
            return None
        like, device = inputs["q"], forms["q"].device
        library = library_of_type(type(like))
        outputs = {
            one.name: _new_array(library, like, one.shape, one.dtype, device)
            if out is None
            else _given(out, one, device)
            for one in call.outputs
        }
        addresses = {f"source_{name}": pointer for name, pointer in pointers.items()}
        addresses |= {name: view_array(name, array, 0)[0] for name, array in outputs.items()}
        if cu_seqlens_k is not None:
            addresses["cu_seqlens_k"] = view_array("cu_seqlens_k", cu_seqlens_k, 0)[0]
        stream = current_stream_function(library)(device)
        words = call.workspace_words
        workspace = _new_array(library, like, (words,), "f32", device) if words else None
        if workspace is not None:
            begin = view_array("workspace", workspace, 0)[0]
            addresses |= {name: begin + _WORD_BYTES * word for name, word in call.workspace.items()}
            with self._driver.on_device(device):
                self._driver.clear_words(begin, words, stream)
        self._launch(call, device, stream, {**call.values, **addresses})
        return outputs

    @property
    def _driver(self) -> Driver:
        return the_driver() if self._given_driver is None else self._given_driver

    def _views(self, inputs: Mapping[str, Array]) -> tuple[dict[str, int], dict[str, ArrayForm]]:
        """Addresses and forms, that of k_rope without its one head."""
        views = {name: view_array(name, array, 0) for name, array in inputs.items()}
        forms = {name: form for name, (_, form) in views.items()}
        if "k_rope" in forms and len(forms["k_rope"].shape) == len(forms["kv"].shape):
            forms["k_rope"] = forms["k_rope"].without(len(forms["k_rope"].shape) - 2)
        return {name: pointer for name, (pointer, _) in views.items()}, forms

    def _call(
        self, pointers: Mapping[str, int], forms: Mapping[str, ArrayForm], cu_seqlens_k: Array | None
    ) -> QuantizerCall | str:
        """The call, or why it is refused."""
        sequences = 1 if cu_seqlens_k is None else int(cu_seqlens_k.shape[0]) - 1
        key = (sequences, *forms.values(), *(pointer % _ALIGN_BYTES for pointer in pointers.values()))
        call = self._calls.get(key)
        if call is None:
            call = self._refused(pointers, forms) or quantizer_call(self._plan, forms, sequences)
            if isinstance(call, QuantizerCall) and too_large(call):
                call = "too many rows"
            self._calls.keep(key, call)
        return call

    def _refused(self, pointers: Mapping[str, int], forms: Mapping[str, ArrayForm]) -> str | None:
        refused = refusal(forms, pointers)
        if refused is not None:
            return refused
        devices = {form.device for form in forms.values()}
        if len(devices) > 1:
            return "the inputs are on different devices"
        found = self._driver.compute_capability(devices.pop())
        if found not in ARCHS[self._plan.arch].compute_capabilities:
            return f"compute capability {found[0]}.{found[1]}, the spec is for {self._plan.arch}"
        return None

    def _launch(self, call: QuantizerCall, device: int, stream: int, values: Mapping[str, int]) -> None:
        functions = self._functions_on(device)
        driver = self._driver
        params = ctypes.create_string_buffer(self._layout.pack(values), self._layout.size_bytes)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        with driver.on_device(device):
            for entry, ctas in call.launches:
                status = driver.launch_kernel(
                    ctypes.c_void_p(functions[entry]),
                    *(ctas, 1, 1),
                    *(self._plan.threads, 1, 1),
                    self._plan.smem_bytes,
                    ctypes.c_void_p(stream),
                    arguments,
                    None,
                )
                driver.check(f"the launch of {entry}", status)

    def _functions_on(self, device: int) -> Mapping[str, int]:
        """The kernels on a device, compiled and loaded at the first use."""
        with self._lock:
            if device not in self._functions:
                plan = self._plan
                cubin = self._cache.get(self._source, arch=plan.arch, name=f"{plan.name}_quantize").cubin
                with self._driver.on_device(device):
                    module = self._driver.load_module(cubin)
                    self._functions[device] = {
                        entry: self._driver.function(module, entry) for entry in plan.entries()
                    }
            return self._functions[device]


def _refused_library(inputs: Mapping[str, Array]) -> str | None:
    """Why arrays are refused for where they come from."""
    libraries = {library_of_type(type(array)) for array in inputs.values()}
    if len(libraries) > 1 or not libraries <= set(_LIBRARIES):
        return f"arrays of {' and '.join(sorted(libraries))}, all of CuPy or all of torch are read"
    if libraries == {"torch"}:
        if sys.modules["torch"].compiler.is_compiling():
            return "torch.compile traces operations of tensors"
        if not all(array.is_cuda for array in inputs.values()):
            return "tensors in host memory"
    return None


def _new_array(library: str, like: Array, shape: tuple[int, ...], dtype: str, device: int) -> Array:
    """A new array of the inputs' library on their device."""
    module = sys.modules[library]
    if library == "torch":
        return like.new_empty(shape, dtype=getattr(module, DTYPES[dtype].torch_dtype))
    with module.cuda.Device(device):
        return module.empty(shape, dtype=_CODES[dtype])


def _given(out: Mapping[str, Array], wanted: QuantizerOutput, device: int) -> Array:
    """The array of `out` for an output; LaunchError where it does not fit."""
    if wanted.name not in out:
        raise LaunchError.single(
            "out", f"out has no {wanted.name}", help="pass what an earlier call with such inputs gave"
        )
    array = out[wanted.name]
    pointer, form = view_array(wanted.name, array, 0)
    fits = form.shape == wanted.shape and DTYPES[wanted.dtype].accepts(form.dtype)
    if not fits or not form.is_contiguous() or pointer % _ALIGN_BYTES or form.device not in (device, -1):
        raise LaunchError.single(
            "out",
            f"{wanted.name} of out is {form.dtype}{list(form.shape)} with strides {list(form.strides)} on "
            f"device {form.device} at {pointer:#x}, {wanted.dtype}{list(wanted.shape)}, contiguous on device "
            f"{device}, at a multiple of {_ALIGN_BYTES} bytes is needed",
            help="pass what an earlier call with such inputs gave",
        )
    return array
