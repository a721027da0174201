"""Tensor maps of a Blackwell kernel: box, swizzle and bytes of every bulk copy.

A tile lies in shared memory in columns as wide as its swizzle row, and one issue brings one such column. The
maps are the same in 1Q and in 2Q, since a box has the 128 rows of a half of Q in both.
"""

from __future__ import annotations

from dataclasses import replace

from mla_codegen.dtypes import DTYPES
from mla_codegen.plan.model import TensorMap
from mla_codegen.plan.sm100.attention import Q_TILE_ROWS, FA4Config, align_up
from mla_codegen.plan.sm100.operands import swizzle_bytes

_ROWS = (2, 0, 1)
"""Axes of [tokens, heads, depth] in the order of a map: depth, tokens, heads."""
_SHARED_ROWS = (1, 0, -1)
"""The same for k_rope, which has no axis of heads."""


def plan_tensor_maps(config: FA4Config) -> tuple[TensorMap, ...]:
    """The maps in the order of the kernel's parameters.

    Scales have none: the load warp carries them, from any alignment and stride (the seed's maps of scales
    want multiples of 4). A page smaller than a block of keys makes as many boxes of a page.
    """
    operands, q_rows, keys = config.operands, Q_TILE_ROWS, box_keys(config)
    per_block = config.block_n // keys
    maps = (
        _tile("q_nope", operands.qkv, config.nope_depth, q_rows, 1, _ROWS),
        _tile("q_rope", operands.rope_gmem, config.rope_depth, q_rows, 1, _ROWS),
        _tile("k_nope", operands.qkv, config.nope_depth, keys, per_block, _ROWS),
        _tile("k_rope", operands.rope_gmem, config.rope_depth, keys, per_block, _SHARED_ROWS),
        _tile("v", operands.qkv, config.ov_depth, keys, per_block, _ROWS),
    )
    return tuple(item for item in maps if item.issues)


def with_batch_axes(item: TensorMap) -> TensorMap:
    """The map of the same tensor with a batch in front of its tokens, as dense layouts have it."""
    dims = tuple(axis if axis < 0 else axis + 1 for axis in item.dims)
    return replace(item, axes=(*item.axes, "batch"), dims=(*dims, 0), box=(*item.box, 1))


def box_keys(config: FA4Config) -> int:
    """Keys of one box: a block, or a page where pages are smaller."""
    if 0 < config.page_size < config.block_n:
        return config.page_size
    return config.block_n


def _tile(argument: str, dtype: str, depth: int, rows: int, boxes: int, dims: tuple[int, ...]) -> TensorMap:
    swizzle = swizzle_bytes(dtype)
    width = swizzle // DTYPES[dtype].bytes
    return TensorMap(
        name=f"{argument}_map",
        argument=argument,
        dtype=dtype,
        axes=("depth", "tokens", "heads"),
        dims=dims,
        box=(width, rows, 1),
        swizzle_bytes=swizzle,
        issue_bytes=swizzle * rows,
        issues=align_up(depth, width) // width * boxes,
        comment=f"box {rows} tokens x {width} {dtype} of one head, {swizzle}B swizzle",
    )
