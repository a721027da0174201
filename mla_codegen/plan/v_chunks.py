"""How transposed V lies in shared memory: a V column is a row of tokens, cut into swizzle widths."""

from __future__ import annotations

from mla_codegen.plan.mma import SWIZZLE_MODES
from mla_codegen.plan.model import VTransposedChunk
from mla_codegen.plan.tiles import K_STEP_BYTES, SWIZZLE_WIDTHS_BYTES, Tiles


def v_map_name(width_bytes: int) -> str:
    """The tensor map that copies chunks of this width where V is stored transposed."""
    return f"v_{width_bytes}_map"


def v_transposed_chunks(tiles: Tiles) -> tuple[VTransposedChunk, ...]:
    """block_n tokens as a sum of 128, 64 and 32; the widest first, so that every chunk starts aligned."""
    if not tiles.fp8:
        return ()
    chunks: list[VTransposedChunk] = []
    token = 0
    for width in SWIZZLE_WIDTHS_BYTES:
        while tiles.block_n - token >= width:
            index = len(chunks)
            chunks.append(
                VTransposedChunk(
                    name=f"v_chunk_{index}",
                    prefix=f"kVChunk{index}",
                    first_token=token,
                    width_bytes=width,
                    offset_bytes=token * tiles.v_columns,
                    swizzle_mode=SWIZZLE_MODES[width],
                    map=v_map_name(width),
                    first_step=token // K_STEP_BYTES,
                    steps=width // K_STEP_BYTES,
                )
            )
            token += width
    return tuple(chunks)
