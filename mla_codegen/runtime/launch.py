"""One launch, packed: grid, tensor maps and Params of a checked call, ready for the driver at any time."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

from mla_codegen.plan.model import TensorMap, Variant
from mla_codegen.runtime.arguments import Problem
from mla_codegen.runtime.arrays import ArrayView
from mla_codegen.runtime.packing import TENSOR_MAP_BYTES, ParamsLayout
from mla_codegen.runtime.tensormap import TensorMapCache, TensorMapRequest, request_for

_SCALE_STEP_BYTES = 16


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """Grid and kernel arguments; `arguments` points into `storage`, one address per kernel parameter."""

    grid: tuple[int, int, int]
    arguments: ctypes.Array[ctypes.c_void_p]
    storage: ctypes.Array[ctypes.c_char]


def grid_of(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """x = query tiles x heads; y and z count the sequences."""
    limit = variant.launch.grid_y_limit
    return problem.query_tiles * problem.heads, min(problem.batch, limit), -(-problem.batch // limit)


def encode_maps(
    variant: Variant, problem: Problem, views: Mapping[str, ArrayView], maps: TensorMapCache
) -> bytes:
    """The tensor maps of a checked, non-empty problem, one after the other; they describe inputs only."""
    return b"".join(
        maps.get(problem.device, map_request(tensor_map, views)) for tensor_map in variant.tensor_maps
    )


def pack_launch(
    grid: tuple[int, int, int],
    encoded_maps: bytes,
    layout: ParamsLayout,
    problem: Problem,
    views: Mapping[str, ArrayView],
) -> PackedLaunch:
    """The launch of a checked, non-empty problem; `views` are all arguments given, outputs included."""
    params = layout.pack({name: param_value(name, problem, views) for name in layout.names})
    count = len(encoded_maps) // TENSOR_MAP_BYTES
    storage = ctypes.create_string_buffer(encoded_maps + params, len(encoded_maps) + len(params))
    start = ctypes.addressof(storage)
    addresses = (start + index * TENSOR_MAP_BYTES for index in range(count + 1))
    return PackedLaunch(grid, (ctypes.c_void_p * (count + 1))(*addresses), storage)


def param_value(name: str, problem: Problem, views: Mapping[str, ArrayView]) -> int | float:
    """The value of one member of Params; KeyError where the plan asks for one that is not known here."""
    if name in views:
        return views[name].pointer
    if name.endswith("_head_step"):
        return head_step(views[name.removesuffix("_head_step")])
    if name.endswith("_first"):
        return scale_first(views[name.removesuffix("_first")])
    if name.endswith("_token_stride"):
        return _element_stride(views[name.removesuffix("_token_stride")], 0)
    if name.endswith("_head_stride"):
        return _element_stride(views[name.removesuffix("_head_stride")], 1)
    if name == "scale_log2":
        return problem.softmax_scale * math.log2(math.e)
    return {"batch": problem.batch, "heads": problem.heads, "query_tiles": problem.query_tiles}[name]


def head_step(view: ArrayView) -> int:
    """What a head number is multiplied by to get the coordinate: 0 where all heads lie in the same place."""
    return 0 if view.shape[1] == 1 or view.strides[1] == 0 else 1


def scale_first(view: ArrayView) -> int:
    """Elements between the 16-byte boundary at which the scale's tensor map starts and the scale itself."""
    return view.pointer % _SCALE_STEP_BYTES // view.item_bytes


def map_request(tensor_map: TensorMap, views: Mapping[str, ArrayView]) -> TensorMapRequest:
    """What the driver is asked for; dimensions of length 1 get a stride that the driver takes."""
    view = views[tensor_map.argument]
    tokens = view.shape[0]
    if tensor_map.axes == ("tokens",):
        first = scale_first(view)
        address = view.pointer - first * view.item_bytes if tokens else _any_pointer(views)
        return request_for(tensor_map, address=address, extents=(max(first + tokens, 1),), strides=())
    places = {"tokens": 0, "heads": 1, "depth": len(view.shape) - 1}
    shares_heads = len(view.shape) == 2 or head_step(view) == 0
    row_bytes = view.shape[-1] * view.item_bytes
    extents, strides = [], []
    for axis in tensor_map.axes:
        one = axis != "depth" and (tokens == 0 or (axis == "heads" and shares_heads))
        extent = 1 if one else view.shape[places[axis]]
        extents.append(extent)
        strides.append(view.byte_strides()[places[axis]] if extent > 1 else row_bytes)
    address = view.pointer if tokens else _any_pointer(views)
    return request_for(tensor_map, address=address, extents=tuple(extents), strides=tuple(strides[1:]))


def _any_pointer(views: Mapping[str, ArrayView]) -> int:
    """A valid, aligned address for the map of a tensor without elements, which is never read."""
    return views["q_nope"].pointer


def _element_stride(view: ArrayView, axis: int) -> int:
    return view.byte_strides()[axis] // view.item_bytes
