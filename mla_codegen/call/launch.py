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


def run_heads(variant: Variant, problem: Problem) -> int:
    """Heads that a CTA goes through, one after the other.

    The next head's K and V are fetched while the head before is still worked on, and a CTA is started
    once a run instead of once a head: that hides some `_GAP` blocks of time a head. But longer runs are
    harder to share evenly. With a causal mask, tiles of falling length level that out; with a full mask
    all runs are alike, and what counts is how well their number fits the multiprocessors.
    """
    launch = variant.launch
    if launch.run_heads is not None:
        return launch.run_heads
    tiles = _filled_tiles(variant, problem)
    if variant.features.causal:
        return next((run for run, waves in _WAVES.items() if tiles >= waves * launch.sms), 1)
    keys = problem.sizes.get("total_k", problem.sizes.get("kv_len", 0) * problem.batch)
    blocks = -(-keys // (problem.batch * launch.block_n))

    def cost(run: int) -> int:
        waves = -(-tiles // (run * launch.sms))
        return waves * (run * (blocks + _HEAD) + _GAP)

    return min((run for run in (4, 2, 1) if run <= launch.longest_run), key=cost)


_WAVES = {4: 40, 2: 5}
"""Run of heads: how many tiles there are at least for each multiprocessor. Measured with 128 heads: of 4,096
tokens, runs of two gain 1 % and runs of four nothing; of 8,192, both gain 1 %."""
_HEAD, _GAP = 2, 4
"""What a head and a CTA cost beside their blocks, in blocks; measured on an H200."""


def head_runs(variant: Variant, problem: Problem) -> int:
    """CTAs that it takes for all heads of a query tile."""
    return -(-problem.heads // run_heads(variant, problem))


def _filled_tiles(variant: Variant, problem: Problem) -> int:
    """Query tiles of all heads; lengths of single sequences are not known here."""
    rows = -(-problem.total_q // variant.launch.block_m)
    return max(rows, problem.batch) * problem.heads


def grid_of(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """x = query tiles x runs of heads; y and z count the sequences."""
    limit = variant.launch.grid_y_limit
    return (
        query_tiles(variant, problem) * head_runs(variant, problem),
        min(problem.batch, limit),
        -(-problem.batch // limit),
    )


_COUNTS = {"query_tiles": query_tiles, "run_heads": run_heads, "head_runs": head_runs}
"""Members of Params that the launch decides."""


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
    if field.name in _COUNTS:
        return _COUNTS[field.name](variant, problem)
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
