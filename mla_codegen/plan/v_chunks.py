"""How transposed V lies in shared memory: a V column is a row of tokens, cut into swizzle widths."""

from __future__ import annotations

from mla_codegen.plan.mma import SWIZZLE_MODES
from mla_codegen.plan.model import VTransposedChunk
from mla_codegen.plan.tiles import Tiles

K_STEP_BYTES = 32
"""Bytes of one wgmma step along K (PTX ISA: K is 32 for 8-bit and 16 for 16-bit types)."""


def v_transposed_chunks(tiles: Tiles) -> tuple[VTransposedChunk, ...]:
    """block_n tokens as a sum of 128, 64 and 32; the widest first, so that every chunk starts aligned."""
    if not tiles.transposes_v:
        return ()
    chunks: list[VTransposedChunk] = []
    token = 0
    for width in (128, 64, 32):
        while tiles.block_n - token >= width:
            index = len(chunks)
            chunks.append(
                VTransposedChunk(
                    name=f"v_chunk_{index}",
                    prefix=f"kVChunk{index}",
                    first_token=token,
                    width_bytes=width,
                    offset_bytes=token * tiles.ov_depth,
                    swizzle_mode=SWIZZLE_MODES[width],
                    first_step=token // K_STEP_BYTES,
                    steps=width // K_STEP_BYTES,
                )
            )
            token += width
    return tuple(chunks)
