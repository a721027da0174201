"""Tensor maps: box, swizzle and bytes of every bulk copy, and the bytes of each barrier phase."""

from __future__ import annotations

from mla_codegen.plan.barriers import TxBytes
from mla_codegen.plan.model import TensorMap
from mla_codegen.plan.tiles import SWIZZLE_BYTES, Tiles

_NONE = -1
"""In place of the axis of an argument: the dimension has extent 1."""


def plan_tensor_maps(tiles: Tiles, *, qkv: str, rope: str) -> tuple[TensorMap, ...]:
    """The maps in the order of the kernel's parameters."""
    nope, rope_elems = tiles.qkv_chunk_elems, tiles.rope_chunk_elems
    return (
        _tile_map("q_nope", qkv, nope, tiles.block_m, tiles.nope_depth // nope),
        _tile_map("q_rope", rope, rope_elems, tiles.block_m, tiles.rope_depth // rope_elems),
        _tile_map("k_nope", qkv, nope, tiles.block_n, tiles.nope_depth // nope),
        _tile_map("k_rope", rope, rope_elems, tiles.block_n, tiles.rope_depth // rope_elems),
        _tile_map("v", qkv, nope, tiles.block_n, tiles.ov_depth // nope),
    )


def tx_bytes(maps: tuple[TensorMap, ...]) -> TxBytes:
    """What one phase of q_full, k_full and the barrier of V expects: the sum of the boxes issued on it."""
    total = {item.argument: item.issue_bytes * item.issues for item in maps}
    return TxBytes(
        q=total["q_nope"] + total["q_rope"],
        k=total["k_nope"] + total["k_rope"],
        v=total["v"],
    )


def _tile_map(argument: str, dtype: str, width_elems: int, rows: int, issues: int) -> TensorMap:
    return TensorMap(
        name=f"{argument}_map",
        argument=argument,
        dtype=dtype,
        axes=("depth", "tokens", "heads"),
        dims=(1, 0, _NONE) if argument == "k_rope" else (2, 0, 1),
        box=(width_elems, rows, 1),
        swizzle_bytes=SWIZZLE_BYTES,
        issue_bytes=SWIZZLE_BYTES * rows,
        issues=issues,
        comment=f"box {rows} tokens x {width_elems} {dtype} of one head, 128B swizzle",
    )
