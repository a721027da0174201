"""Scales: where those of a CTA start in global memory, and which numbers scores are multiplied by, when."""

from __future__ import annotations

from typing import Protocol

from mla_codegen.plan.model import Factors, ScaleArray, ScaleNames
from mla_codegen.plan.tiles import Tiles


class ScaleForms(Protocol):
    """What says which scales there are and how they lie: the tiles of a plan, of any architecture."""

    @property
    def q_scale(self) -> str: ...
    @property
    def k_scale(self) -> str: ...
    @property
    def v_scale(self) -> str: ...
    @property
    def q_dense(self) -> bool: ...
    @property
    def kv_dense(self) -> bool: ...
    @property
    def kv_head(self) -> str: ...


def placed_scales(tiles: ScaleForms) -> tuple[ScaleArray, ...]:
    """The scales of which a CTA does not start with the first, in the order of the call."""
    rows = (
        ("q_scale", tiles.q_scale, tiles.q_dense, "tile.head"),
        ("k_scale", tiles.k_scale, tiles.kv_dense, tiles.kv_head),
        ("v_scale", tiles.v_scale, tiles.kv_dense, tiles.kv_head),
    )
    arrays = (_scale_array(*row) for row in rows)
    return tuple(array for array in arrays if array.offsets)


def scale_names(tiles: ScaleForms) -> ScaleNames:
    """How the source says where the scales of a CTA start."""
    placed = {array.name: f"{array.function}(params, tile)" for array in placed_scales(tiles)}
    return ScaleNames(
        **{name: placed.get(f"{name}_scale", f"params.{name}_scale") for name in ("q", "k", "v")}
    )


def _scale_array(name: str, form: str, dense: bool, head: str) -> ScaleArray:
    offsets = []
    if dense and form in ("token", "token_head"):
        offsets.append(f"tile.sequence * params.{name}_batch_stride")
    if form in ("head", "token_head"):
        offsets.append(f"{head} * params.{name}_head_stride")
    return ScaleArray(name=name, function=f"{name}s", offsets=tuple(offsets))


def score_factors(tiles: Tiles) -> Factors:
    """The product of all is softmax_scale * log2(e) and the scales of Q and K that are not columns' own."""
    whole = "softmax_scale * log2(e)"
    per_row = [
        name for name, used in (("q_scale", tiles.scales_rows), ("k_scale", tiles.folds_k_scale)) if used
    ]
    scores = " * ".join(per_row)
    rest = whole if tiles.raw_rope else " * ".join([whole, *per_row])
    return Factors(
        softmax="1" if tiles.scales_p else rest,
        scores=scores if tiles.scales_raw_rows else "",
        scaled_p=rest if tiles.scales_p else "",
    )
