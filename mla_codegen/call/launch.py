"""What a kernel is launched with: its grid, its numbers, and the dimensions of its tensor maps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mla_codegen.call.forms import ArrayForm
from mla_codegen.call.problem import Problem
from mla_codegen.plan.model import ParamField, TensorMap, Variant

_NO_AXIS = -1


def query_tiles(variant: Variant, problem: Problem) -> int:
    """Tiles of the longest sequence that the call allows."""
    return -(-problem.max_seqlen_q // variant.launch.block_m)


def grid_of(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """x = query tiles x heads; y and z count the sequences."""
    limit = variant.launch.grid_y_limit
    return (
        query_tiles(variant, problem) * problem.heads,
        min(problem.batch, limit),
        -(-problem.batch // limit),
    )


def param_value(
    field: ParamField, variant: Variant, problem: Problem, forms: Mapping[str, ArrayForm]
) -> int | float:
    """The value of one member of Params that is no address; KeyError where it is not known here."""
    stem, _, kind = field.name.rpartition("_")
    if kind in ("stride", "step"):
        if field.axis is None:
            return 0
        form = forms[stem.rpartition("_")[0]]
        if kind == "step":
            return 0 if form.is_one_along(field.axis) else 1
        return form.strides[field.axis] // form.item_bytes
    if field.name == "scale_log2":
        return problem.softmax_scale * math.log2(math.e)
    if field.name == "query_tiles":
        return query_tiles(variant, problem)
    return problem.sizes[field.name]


def map_dimensions(tensor_map: TensorMap, form: ArrayForm) -> list[tuple[int, int]]:
    """Extent and stride in bytes of each dimension, innermost first.

    (1, 0) stands for a dimension that the argument does not have, or along which all is in the same place:
    its only coordinate is 0. A box has many tokens, so that they keep their number, with a stride of 0 too.
    """
    dimensions = []
    for kind, axis in zip(tensor_map.axes, tensor_map.dims, strict=True):
        is_one = axis == _NO_AXIS or (form.strides[axis] == 0 and kind != "tokens")
        dimensions.append((1, 0) if is_one else (form.shape[axis], form.strides[axis]))
    return dimensions
