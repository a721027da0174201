"""What a spec says of scales, layouts, heads and outputs, beside the types and sizes of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

PER_TOKEN = ("token", "token_head")
"""Forms in which keys have scales of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Forms of scales as in the spec's ``scales``, types as in its ``dtypes``."""

    q_scale: str
    k_scale: str
    v_scale: str
    k_rope_scale: str
    q_dense: bool
    kv_dense: bool
    group: int
    out: str
    lse: str
    mask: str
    debug: bool

    @property
    def kv_head(self) -> str:
        """The expression for the head of K_nope and V that a CTA has."""
        return "tile.kv_head" if self.group > 1 else "tile.head"

    @property
    def scales_rows(self) -> bool:
        """Rows have factors of their own, which the load warp brings."""
        return self.q_scale != "none"

    @property
    def scales_p(self) -> bool:
        """Each key's V has a scale of its own: it goes into P before P is rounded."""
        return self.v_scale in PER_TOKEN

    @property
    def scales_output(self) -> bool:
        """One scale for the V of all keys: O is multiplied by it at the end."""
        return self.v_scale in ("tensor", "head")

    @property
    def scales_keys(self) -> bool:
        """Scales travel with each block of keys: of K, of V or of both."""
        return self.scales_columns or self.scales_p

    @property
    def carries_scales(self) -> bool:
        """The load warp brings factors, of rows or of keys."""
        return self.scales_rows or self.scales_keys

    @property
    def scales_columns(self) -> bool:
        """Columns of S have factors of their own."""
        return self.k_scale in PER_TOKEN

    @property
    def folds_k_scale(self) -> bool:
        """All keys of a CTA have one scale, which is part of the factor of softmax."""
        return self.k_scale in ("tensor", "head")


def forms_of(spec: Spec, *, debug: bool) -> Forms:
    """The forms of a spec that :mod:`mla_codegen.plan.sm100.support` lets pass."""
    return Forms(
        q_scale=spec.scales.q,
        k_scale=spec.scales.k,
        v_scale=spec.scales.v,
        k_rope_scale=spec.scales.rope_k,
        q_dense=spec.layout.q == "dense",
        kv_dense=spec.layout.kv == "dense",
        group=spec.heads.group,
        out=spec.dtypes.out,
        lse=spec.softmax.lse,
        mask=str(spec.mask),
        debug=debug,
    )
