"""Tensor maps: box, swizzle and bytes of every bulk copy, and the bytes of each barrier phase."""

from __future__ import annotations

from mla_codegen.plan.barriers import TxBytes
from mla_codegen.plan.model import TensorMap, VTransposedChunk
from mla_codegen.plan.tiles import RowChunks, Tiles

_AXES = ("depth", "tokens", "heads", "batch")
"""Dimensions of a map over rows, innermost first; a ragged tensor has no batch."""
_ROWS = {False: (2, 0, 1), True: (3, 1, 2, 0)}
"""Axes of [tokens, heads, depth] and of the dense [batch, tokens, heads, depth] in the order of _AXES."""
_SHARED_ROWS = {False: (1, 0, -1), True: (2, 1, -1, 0)}
"""The same for k_rope, which has no axis of heads."""
_COLUMNS = {False: (2, 1, 0), True: (3, 2, 1, 0)}
"""Axes of transposed V, [heads, depth, tokens] or with a batch in front, from tokens outwards."""


def plan_tensor_maps(
    tiles: Tiles, chunks: tuple[VTransposedChunk, ...], *, qkv: str, rope: str
) -> tuple[TensorMap, ...]:
    """The maps in the order of the kernel's parameters; ``chunks`` are those of transposed V."""
    q_dense, kv_dense = tiles.q_dense, tiles.kv_dense
    q_rows = tiles.block_m // tiles.consumers
    maps = [_row_map("q_nope", qkv, tiles.nope, q_rows, _ROWS[q_dense])]
    if tiles.rope_depth:
        maps.append(_row_map("q_rope", rope, tiles.rope_row, q_rows, _ROWS[q_dense]))
    maps.append(_row_map("k_nope", qkv, tiles.nope, tiles.block_n, _ROWS[kv_dense]))
    if tiles.rope_depth:
        maps.append(_row_map("k_rope", rope, tiles.rope_row, tiles.block_n, _SHARED_ROWS[kv_dense]))
    if not tiles.stored_transposed:
        return (*maps, _row_map("v", qkv, tiles.v_row, tiles.block_n, _ROWS[kv_dense]))
    widths = dict.fromkeys(chunk.width_bytes for chunk in chunks)
    return (*maps, *(_column_map(tiles, chunks, qkv, width) for width in widths))


def tx_bytes(maps: tuple[TensorMap, ...]) -> TxBytes:
    """What one phase of q_full, k_full and the barrier of V expects: the sum of the boxes issued on it."""
    phases = {"q": ("q_nope", "q_rope"), "k": ("k_nope", "k_rope"), "v": ("v",)}
    return TxBytes(
        **{
            phase: sum(item.issue_bytes * item.issues for item in maps if item.argument in arguments)
            for phase, arguments in phases.items()
        }
    )


def _row_map(argument: str, dtype: str, row: RowChunks, rows: int, dims: tuple[int, ...]) -> TensorMap:
    return TensorMap(
        name=f"{argument}_map",
        argument=argument,
        dtype=dtype,
        axes=_AXES[: len(dims)],
        dims=dims,
        box=(row.elems, rows, *(1 for _ in dims[2:])),
        swizzle_bytes=row.width_bytes,
        issue_bytes=row.width_bytes * rows,
        issues=row.count,
        comment=f"box {rows} tokens x {row.elems} {dtype} of one head, {row.width_bytes}B swizzle",
    )


def _column_map(
    tiles: Tiles, chunks: tuple[VTransposedChunk, ...], dtype: str, width_bytes: int
) -> TensorMap:
    """Columns of V with ``width_bytes`` one-byte tokens each."""
    mine = [chunk for chunk in chunks if chunk.width_bytes == width_bytes]
    dims = _COLUMNS[tiles.kv_dense]
    return TensorMap(
        name=mine[0].map,
        argument="v",
        dtype=dtype,
        axes=("tokens", "depth", "heads", "batch")[: len(dims)],
        dims=dims,
        box=(width_bytes, tiles.ov_depth, *(1 for _ in dims[2:])),
        swizzle_bytes=width_bytes,
        issue_bytes=width_bytes * tiles.ov_depth,
        issues=len(mine),
        comment=f"box {tiles.ov_depth} columns x {width_bytes} tokens of one head, {width_bytes}B swizzle",
    )
