"""Launches of checked calls: everything but addresses and stream is packed once, for as many calls as come.

A block of memory has all of a launch, down to the objects that ctypes passes on. Each launch takes a block
that is idle, or makes one, so that threads need no lock. Addresses are checked and written where they are not
those that the block had before. What remains are two foreign calls: which context is current, and the launch.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mla_codegen.plan.model import ParamField, TensorMap, Variant
from mla_codegen.runtime.arrays import ArrayForm
from mla_codegen.runtime.driver import Driver
from mla_codegen.runtime.packing import ParamsLayout
from mla_codegen.runtime.problem import Problem
from mla_codegen.runtime.tensormap import (
    TENSOR_MAP_ALIGN_BYTES,
    TENSOR_MAP_BYTES,
    PlacedTensorMap,
    TensorMapRequest,
)

_WORD_BYTES = 8


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
        values = {field.name: param_value(field, form) for field in form.variant.params}
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


def grid_of(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """x = query tiles x heads; y and z count the sequences."""
    limit = variant.launch.grid_y_limit
    return (
        query_tiles(variant, problem) * problem.heads,
        min(problem.batch, limit),
        -(-problem.batch // limit),
    )


def query_tiles(variant: Variant, problem: Problem) -> int:
    """Tiles of the longest sequence that the call allows."""
    return -(-problem.max_seqlen_q // variant.launch.block_m)


def param_value(field: ParamField, form: LaunchForm) -> int | float:
    """The value of one member of Params, 0 for an address; KeyError where it is not known here."""
    forms, problem, name = form.forms, form.problem, field.name
    if name in forms:
        return 0
    if name.endswith("_head_step"):
        return head_step(forms[name.removesuffix("_head_step")])
    if name.endswith("_stride"):
        argument = name.removesuffix("_token_stride").removesuffix("_head_stride")
        return 0 if field.axis is None else _element_stride(forms[argument], field.axis)
    if name == "scale_log2":
        return problem.softmax_scale * math.log2(math.e)
    tiles = query_tiles(form.variant, problem)
    return {"batch": problem.batch, "heads": problem.heads, "query_tiles": tiles}[name]


def head_step(form: ArrayForm) -> int:
    """What a head number is multiplied by to get the coordinate: 0 where all heads lie in the same place."""
    return 0 if len(form.shape) == 2 or form.shape[1] == 1 or form.strides[1] == 0 else 1


def map_source(tensor_map: TensorMap, forms: Mapping[str, ArrayForm]) -> str:
    """The argument whose address a map gets: q_nope's for a tensor without tokens, which is never read."""
    return tensor_map.argument if forms[tensor_map.argument].shape[0] else "q_nope"


def map_request(tensor_map: TensorMap, form: ArrayForm, address: int) -> TensorMapRequest:
    """What the driver is asked for; dimensions of length 1 get a stride that the driver takes."""
    places = {"tokens": 0, "heads": 1, "depth": len(form.shape) - 1}
    is_empty = form.shape[0] == 0
    row_bytes = form.shape[-1] * form.item_bytes
    extents, strides = [], []
    for axis in tensor_map.axes:
        one = (axis == "heads" and head_step(form) == 0) or (axis != "depth" and is_empty)
        extent = 1 if one else form.shape[places[axis]]
        extents.append(extent)
        strides.append(form.strides[places[axis]] if extent > 1 else row_bytes)
    return TensorMapRequest(
        tensor_map.name,
        tensor_map.dtype,
        address,
        tuple(extents),
        tuple(strides[1:]),
        tensor_map.box,
        tensor_map.swizzle_bytes,
    )


def _element_stride(form: ArrayForm, axis: int) -> int:
    return form.strides[axis] // form.item_bytes
