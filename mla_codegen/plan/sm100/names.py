"""How the source calls what the planner has placed: regions, barriers, products and the words around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mla_codegen.plan.model import (
    BarrierNames,
    Mbarrier,
    Region,
    RegionNames,
    Role,
    RoleTexts,
    Sm100Mma,
    Sm100Names,
)
from mla_codegen.plan.sm100.attention import KvRing
from mla_codegen.plan.sm100.barriers import P_READY, Sm100Mbarrier
from mla_codegen.plan.sm100.body import Body
from mla_codegen.plan.sm100.forms import Forms
from mla_codegen.plan.sm100.operands import mma_kind
from mla_codegen.plan.sm100.softmax import EXP2_ERROR

_BY_SIDE = ("alpha_full", "alpha_empty")
"""Barriers that each side has one of, ``<name>_0`` and ``<name>_1``."""
_PER_SIDE = ("s_full", "o_full", "q_rope_raw_full")
"""Barriers with a stage for each side."""
_STAGES = {
    "k_full": "kKStages",
    "k_empty": "kKStages",
    "v_full": "kVStages",
    "v_empty": "kVStages",
    "kv_full": "kKStages",
    "kv_empty": "kKStages",
    "s_full": "kSides",
    "o_full": "kSides",
    "q_rope_raw_full": "kQRopeSides",
    "rope_raw_full": "kRopeBuffers",
    "rope_full": "kRopeBuffers",
    "k_scale_full": "kKScaleBuffers",
    "k_scale_empty": "kKScaleBuffers",
}
_ARRIVALS = {
    "p_first": "kPFirstArrivals",
    "p_rest": "kSoftmaxArrivals",
    "alpha_full": "kSoftmaxArrivals",
    "alpha_empty": "kCorrectionArrivals",
    "v_tail_cleared": "kTailWarps",
    "rope_full": "kTailWarps",
    "k_scale_empty": "kScaleReaderWarps",
}
"""Barriers on which one lane arrives are not here."""


def mbarriers(body: Body) -> tuple[Mbarrier, ...]:
    """The barriers of a body, each with one number of arrivals: those of P are two kinds."""
    return tuple(barrier for item in body.mbarriers for barrier in _named(item))


def _named(barrier: Sm100Mbarrier) -> Iterator[Mbarrier]:
    if barrier.name.startswith(P_READY):
        side = barrier.name.removeprefix(P_READY)
        meanings = ("the first part of P is written and O is rescaled", "the rest of P is written")
        for stage, (part, meaning) in enumerate(zip(("p_first", "p_rest"), meanings, strict=True)):
            arrives = barrier.arrives if stage == 0 else barrier.arrives[:1]
            yield _mbarrier(barrier, f"{part}_{side}", stage, 1, arrives, meaning)
        return
    yield _mbarrier(barrier, barrier.name, 0, barrier.stages, barrier.arrives, barrier.comment)


def _mbarrier(
    barrier: Sm100Mbarrier, name: str, first: int, stages: int, arrives: tuple[str, ...], meaning: str
) -> Mbarrier:
    arrivals, stem = barrier.arrivals[first], name.removesuffix("_0").removesuffix("_1")
    count = f"{arrivals} arrival{'s' if arrivals > 1 else ''}"
    brought = f" and {_listed(barrier.tx_bytes)} bytes" if barrier.tx_bytes else ""
    constant = _STAGES.get(name)
    return Mbarrier(
        name=name,
        stages=stages,
        first_index=barrier.first_index + first,
        arrivals=arrivals,
        tx_bytes=barrier.tx_bytes[-1] if barrier.tx_bytes else 0,
        arrives=" and ".join(arrives),
        waits=" and ".join(barrier.waits),
        comment=f"{count}{brought} a phase; {meaning}",
        parameter="u32 stage" if constant else "",
        stage="stage" if constant else "0",
        stages_constant=constant or "1",
        arrivals_constant=_ARRIVALS.get(stem, "kOneArrival"),
    )


def _listed(sizes: tuple[int, ...]) -> str:
    """What phases expect: with Q, then K, and V where it shares the ring."""
    return " or ".join(str(size) for size in dict.fromkeys(sizes))


def barrier_accessors(body: Body) -> tuple[BarrierNames, ...]:
    """A function for each kind of barrier; of those that each side has, one for both sides."""
    names = [barrier.name for barrier in mbarriers(body)]
    made = [
        BarrierNames(function=part, parameter="u32 side", first=f"{part}_0", index="side * kSideBarriers")
        for part in ("p_first", "p_rest", *_BY_SIDE)
    ]
    for name in names:
        if name[:-2] in ("p_first", "p_rest", *_BY_SIDE):
            continue
        index = "side" if name in _PER_SIDE else "stage"
        indexed = name in _STAGES
        made.append(
            BarrierNames(
                function=name,
                parameter=f"u32 {index}" if indexed else "",
                first=name,
                index=index if indexed else "0",
            )
        )
    return tuple(made)


def region_names(regions: tuple[Region, ...]) -> tuple[RegionNames, ...]:
    """Accessors of the regions, in the order of the map."""
    return tuple(
        RegionNames(
            name=region.name,
            field=region.field,
            offset_constant=f"k{camel(region.name)}Offset",
            stride_constant=f"k{camel(region.name)}Stride",
        )
        for region in regions
    )


def camel(name: str) -> str:
    """``q_nope`` -> ``QNope``."""
    return "".join(part.capitalize() for part in name.split("_"))


def product_names(body: Body) -> Sm100Mma:
    """Wrappers by kind. Nope and rope are chains of their own here even where they could be one."""
    operands = body.config.operands
    stem = "tcgen05_mma_{}".format
    return Sm100Mma(
        nope=stem(mma_kind(operands.qkv)),
        rope=stem(mma_kind(operands.rope_mma)) if body.config.rope_depth else "",
        pv=stem(mma_kind(operands.qkv)),
    )


def words(body: Body, forms: Forms) -> Sm100Names:
    """The words of the role functions."""
    separate = body.ring.kind is KvRing.SEPARATE
    k, v = ("k", "v") if separate else ("kv", "kv")
    factors = ["softmax_scale * log2(e)"]
    factors += ["q_scale"] if forms.scales_rows else []
    factors += ["k_scale"] if forms.folds_k_scale else []
    qkv = body.config.operands.qkv
    return Sm100Names(
        k_nope_tile="k_nope_tile" if separate else "kv_nope_tile",
        v_tile="v_tile" if separate else "kv_nope_tile",
        v_cursor="at.v" if separate else "at.k",
        rope_cursor="at.rope" if body.ring.kind is KvRing.SHARED else "at.k",
        rope_scales=_rope_scales(forms),
        first_v_slot=_first_v_slot(body),
        helper="converter_warp" if converts(body) else "tail_warp",
        k_full=f"{k}_full",
        k_empty=f"{k}_empty",
        v_full=f"{v}_full",
        v_empty=f"{v}_empty",
        p_conversion="cvt_e4m3x4" if qkv == "e4m3" else f"cvt_{qkv}x2",
        out_conversion="bits_from_float" if forms.out == "f32" else f"cvt_{forms.out}x2",
        o_group_cols=str(body.staging.block_cols),
        softmax_factor=" * ".join(factors),
        row_factor="" if forms.scales_p else " * row.factor",
        row_offset=(
            "kLiftLog2 - reference" if forms.scales_p else "fma_f32(-reference, row.factor, kLiftLog2)"
        ),
        output_factor=" * v_scale" if forms.scales_output else "",
        exp2_error=f"{EXP2_ERROR:.1e} of the value",
    )


def _rope_scales(forms: Forms) -> str:
    """Where the scales of K_rope start for a CTA; empty where there are none."""
    if forms.k_rope_scale == "none":
        return ""
    batch = " + tile.sequence * params.k_rope_scale_batch_stride" if forms.kv_dense else ""
    return f"params.k_rope_scale{batch}"


def converts(body: Body) -> bool:
    """Rope is stored in one type and multiplied in another."""
    return body.config.operands.converts_rope and body.config.rope_depth > 0


def _first_v_slot(body: Body) -> str:
    """The slot of the first V: behind the first K, or the first two, where they share a ring."""
    if body.ring.kind is KvRing.SEPARATE:
        return "0"
    return "1" if body.config.num_q == 2 else "tile.num_blocks > 1 ? 2 : 1"


def body_name(body: Body) -> str:
    """The namespace of a body, and the stem of its partials."""
    if body.config.single_o:
        return "single_o"
    return "two_q" if body.config.num_q == 2 else "one_q"


def named_roles(body: Body) -> tuple[Role, ...]:
    """The roles with their barriers as the source calls them: one name for those of both sides."""
    barriers = mbarriers(body)

    def names(role: Role, end: str) -> str:
        found = [
            barrier.name.removesuffix("_0").removesuffix("_1")
            for barrier in barriers
            if role.name in getattr(barrier, end).split(" and ")
        ]
        return ", ".join(dict.fromkeys(found)) or "nothing"

    return tuple(
        replace(role, waits_on=names(role, "waits"), signals=names(role, "arrives")) for role in body.roles
    )


def role_texts(roles: tuple[Role, ...], field: str) -> RoleTexts:
    """What each role waits on, or signals; the converter is a tail warp that does more."""
    texts = {"tail" if role.name == "converter" else role.name: getattr(role, field) for role in roles}
    return RoleTexts(**{name: texts[name] for name in ("load", "tail", "mma", "correction", "softmax")})
