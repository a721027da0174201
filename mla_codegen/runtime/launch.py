"""Launches of checked calls: everything but addresses and stream is packed once, for as many calls as come.

A block of memory has all of a launch, down to the objects that ctypes passes on. Each launch takes a block
that is idle, or makes one, so that threads need no lock. Addresses are checked and written where they are not
those that the block had before. What remains are two foreign calls: which context is current, and the launch.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mla_codegen.call.forms import ArrayForm
from mla_codegen.call.launch import grid_of, map_dimensions, param_value
from mla_codegen.call.problem import Problem
from mla_codegen.plan.model import TensorMap, Variant
from mla_codegen.runtime.driver import Driver
from mla_codegen.runtime.packing import ParamsLayout
from mla_codegen.runtime.tensormap import (
    TENSOR_MAP_ALIGN_BYTES,
    TENSOR_MAP_BYTES,
    PlacedTensorMap,
    TensorMapRequest,
)

_WORD_BYTES = 8
_LEAST_STRIDE_BYTES = 16
"""The driver takes strides in multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """All of a launch but addresses and stream.

    `order` has the arguments that are there, in the order in which their addresses come; `masks` has, for
    each of them, the bits of the address that must be 0; `forms` has their forms by name.
    """

    name: str
    variant: Variant
    layout: ParamsLayout
    function: int
    context: int
    problem: Problem
    forms: Mapping[str, ArrayForm]
    order: tuple[str, ...]
    masks: tuple[int, ...]


class PreparedLaunch:
    """A launch that can be started at any addresses, by several threads at once."""

    def __init__(self, driver: Driver, form: LaunchForm) -> None:
        """Allocates nothing yet: the first start encodes the tensor maps, since that needs addresses."""
        self.device = form.problem.device
        self._driver = driver
        self._form = form
        self._context = form.context
        self._idle: list[ArgumentBlock] = []

    def start(self, pointers: list[int], stream: int) -> bool:
        """Launches the kernel on arrays at these addresses; False, and no launch, where one is not aligned.

        LaunchError where the driver refuses.
        """
        driver = self._driver
        try:
            block = self._idle.pop()
        except IndexError:
            block = None
        if block is None or pointers != block.pointers:
            if any(map(operator.and_, pointers, self._form.masks)):
                return False
            block = block or ArgumentBlock(driver, self._form, pointers)
            block.point_to(pointers)
        block.stream.value = stream
        driver.read_context(block.context_place)
        if block.context.value == self._context:
            status = driver.launch_kernel(*block.launch)
        else:
            with driver.on_device(self.device):
                status = driver.launch_kernel(*block.launch)
        # The driver has copied the arguments: the block may be changed while the kernel still waits to run.
        self._idle.append(block)
        if status != 0:
            driver.check(f"the launch of {self._form.name}", status)
        return True


class ArgumentBlock:
    """Memory for one launch at a time: the tensor maps, then Params, the stream, and the thread's context.

    `launch` has the arguments of cuLaunchKernel; `stream` and `context` are rewritten in place.
    """

    def __init__(self, driver: Driver, form: LaunchForm, pointers: Sequence[int]) -> None:
        """Encodes the tensor maps for arrays at `pointers`; the addresses in Params come by `point_to`."""
        layout, tensor_maps = form.layout, form.variant.tensor_maps
        size_bytes = TENSOR_MAP_BYTES * len(tensor_maps) + layout.size_bytes
        self._storage = ctypes.create_string_buffer(size_bytes + TENSOR_MAP_ALIGN_BYTES)
        start = -(-ctypes.addressof(self._storage) // TENSOR_MAP_ALIGN_BYTES) * TENSOR_MAP_ALIGN_BYTES
        places = [start + TENSOR_MAP_BYTES * index for index in range(len(tensor_maps) + 1)]
        values = {
            field.name: 0
            if field.name in form.forms
            else param_value(field, form.variant, form.problem, form.forms)
            for field in form.variant.params
        }
        ctypes.memmove(places[-1], layout.pack(values), layout.size_bytes)
        self._words = (ctypes.c_uint64 * (layout.size_bytes // _WORD_BYTES)).from_address(places[-1])
        self._word_sources = [
            (layout.offsets[name] // _WORD_BYTES, source)
            for source, name in enumerate(form.order)
            if name in layout.offsets
        ]
        self._maps = []
        for place, tensor_map in zip(places, tensor_maps, strict=False):
            source = form.order.index(map_source(tensor_map, form.forms))
            request = map_request(tensor_map, form.forms[tensor_map.argument], pointers[source])
            self._maps.append((PlacedTensorMap(driver, place, request), source))
        self.pointers: list[int] = []
        self.context = ctypes.c_void_p()
        self.context_place = ctypes.byref(self.context)
        self.stream = ctypes.c_void_p()
        sizes = form.variant.launch
        self.launch = (
            ctypes.c_void_p(form.function),
            *grid_of(form.variant, form.problem),
            *(sizes.threads, 1, 1),
            sizes.smem_bytes,
            self.stream,
            (ctypes.c_void_p * len(places))(*places),
            None,
        )

    def point_to(self, pointers: list[int]) -> None:
        """Writes the addresses of a launch's arrays."""
        for tensor_map, source in self._maps:
            tensor_map.move_to(pointers[source])
        words = self._words
        for word, source in self._word_sources:
            words[word] = pointers[source]
        self.pointers = pointers


def map_source(tensor_map: TensorMap, forms: Mapping[str, ArrayForm]) -> str:
    """The argument whose address a map gets: q_nope's for a tensor without elements, which is never read."""
    return "q_nope" if forms[tensor_map.argument].is_empty else tensor_map.argument


def map_request(tensor_map: TensorMap, form: ArrayForm, address: int) -> TensorMapRequest:
    """What the driver is asked for; dimensions of length 1 get a stride that the driver takes.

    A tensor without elements is described as one row, since the driver takes no extent of 0.
    """
    (depth, _), *outer = map_dimensions(tensor_map, form)
    row_bytes = max(form.shape[tensor_map.dims[0]] * form.item_bytes, _LEAST_STRIDE_BYTES)
    if form.is_empty:
        outer = [(1, 0) for _ in outer]
    return TensorMapRequest(
        tensor_map.name,
        tensor_map.dtype,
        address,
        (max(depth, 1), *(extent for extent, _ in outer)),
        tuple(stride if extent > 1 else row_bytes for extent, stride in outer),
        tensor_map.box,
        tensor_map.swizzle_bytes,
    )
