"""mbarriers of a Blackwell kernel: names, arrivals, bytes, who arrives and who waits.

Order, counts and arrivals are the seed's (its section on barriers). Two kinds are added. In the seed scales
come with Q and K, and a buffer of key scales may be overwritten once Q*K has read K, though softmax may still
read the scales; here the load warp carries them and they have barriers of their own, of which
``k_scale_empty`` is what softmax signals when it has read them. And the seed multiplies rows of V that lie
beyond the sequence by a P of 0, which a NaN there survives; ``v_tail_cleared`` says that these rows are zero.
The blockscale converter's barriers come last.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.sm100.attention import (
    NUM_PV_STAGES,
    NUM_QK_STAGES,
    Q_TILE_ROWS,
    FA4Config,
    KvRing,
)
from mla_codegen.plan.sm100.rings import (
    Ring,
    converter_stages,
    copy_bytes,
    k_tx_bytes,
    q_tx_bytes,
    scale_readers,
)

P_READY = "p_ready_"
FULL_S = "s_full"
FULL_O = "o_full"
MOST_MBARRIERS = 64
"""The seed's limit: one warp initialises them, two for each lane at most."""
TAIL_WARPS = 2
"""Warps that clear rows of V beyond the sequence."""
_WARPS = 4
"""Warps of a warpgroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Mbarrier:
    """``stages`` mbarriers of one kind at consecutive indices of ``mbar_base``.

    ``arrivals`` has one number for each stage. ``tx_bytes`` has every number of bytes that a phase expects,
    in the order in which they first occur (with Q, K alone, V); it is empty where no copy arrives.
    ``seed_name`` is empty for what the seed has not.
    """

    name: str
    seed_name: str
    stages: int
    first_index: int
    arrivals: tuple[int, ...]
    tx_bytes: tuple[int, ...]
    arrives: tuple[str, ...]
    waits: tuple[str, ...]
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    seed_name: str
    arrivals: tuple[int, ...]
    arrives: tuple[str, ...]
    waits: tuple[str, ...]
    comment: str
    tx_bytes: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        return len(self.arrivals)


def plan_mbarriers(config: FA4Config, ring: Ring, *, guards: bool = True) -> tuple[Sm100Mbarrier, ...]:
    """All mbarriers in the order of ``mbar_base``; without ``guards`` those of the seed alone."""
    kinds = [*_hand_offs(config), *_loads(config, ring, guards=guards), _output(config)]
    if guards:
        kinds.append(_v_tail(config))
    if guards and ring.k_scale_buffers:
        kinds += _scale_guards(config, ring)
    if guards and config.operands.converts_rope:
        kinds += _converter(config, ring)
    barriers, index = [], 0
    for kind in kinds:
        if kind.stages == 0:
            continue
        barriers.append(
            Sm100Mbarrier(
                name=kind.name,
                seed_name=kind.seed_name,
                stages=kind.stages,
                first_index=index,
                arrivals=kind.arrivals,
                tx_bytes=kind.tx_bytes,
                arrives=kind.arrives,
                waits=kind.waits,
                comment=kind.comment,
            )
        )
        index += kind.stages
    return tuple(barriers)


def count(barriers: tuple[Sm100Mbarrier, ...]) -> int:
    """How many mbarriers these are: num_mbars."""
    return sum(barrier.stages for barrier in barriers)


def _hand_offs(config: FA4Config) -> list[_Kind]:
    """Between softmax, correction and the MMA warp."""
    kinds = []
    for side in range(2):
        first = 2 * Q_TILE_ROWS
        kinds.append(
            _Kind(
                name=f"{P_READY}{side}",
                seed_name=f"S{side}_cons",
                arrivals=(first, *[Q_TILE_ROWS] * (NUM_PV_STAGES - 1)),
                arrives=("softmax", "correction"),
                waits=("mma",),
                comment="stage 0: the first part of P is written and O is rescaled; stage 1: the rest of P",
            )
        )
    for side in range(2):
        kinds += [
            _hand_off(
                f"alpha_full_{side}", f"C{side}_prod", "softmax", "correction", "the factors are written"
            ),
            _hand_off(
                f"alpha_empty_{side}", f"C{side}_cons", "correction", "softmax", "the factors are read"
            ),
        ]
    if config.orders_softmax:
        kinds.append(
            _Kind(
                name="softmax_turn",
                seed_name="order",
                arrivals=(Q_TILE_ROWS, Q_TILE_ROWS),
                arrives=("softmax",),
                waits=("softmax",),
                comment="the other softmax warpgroup has had its turn",
            )
        )
    kinds.append(_committed(FULL_S, "S_prod", 2, ("softmax",), "Q*K has written S0, S1"))
    return kinds


def _loads(config: FA4Config, ring: Ring, *, guards: bool) -> list[_Kind]:
    """Between the load and the MMA warp."""
    tx = copy_bytes(config)
    q, k = q_tx_bytes(config, guards=guards), k_tx_bytes(config, guards=guards)
    one_ring, kinds = ring.kind is not KvRing.SEPARATE, []
    if config.num_q == 2:
        kinds.append(_copied("q1_full", "Q1Sync", NUM_QK_STAGES, (q,), "second half of Q"))
    stages, name = ring.stages * NUM_QK_STAGES, "kv" if one_ring else "k"
    what = "K and V in turn" if one_ring else "a block of K"
    v_waits = ("mma", tail_role(config)) if guards else ("mma",)
    sizes = (q + k, k, tx.v) if one_ring else (q + k, k)
    kinds += [
        _copied(
            f"{name}_full",
            "K full",
            stages,
            sizes,
            f"{what}; first with Q",
            waits=v_waits if one_ring else ("mma",),
        ),
        _committed(f"{name}_empty", "K empty", stages, ("load",), "the products that read the slot are done"),
    ]
    if not one_ring:
        kinds += [
            _copied("v_full", "V full", ring.stages, (tx.v,), "a block of V", waits=v_waits),
            _committed(
                "v_empty", "V empty", ring.stages, ("load",), "the product that reads the slot is done"
            ),
        ]
    return kinds


def _output(config: FA4Config) -> _Kind:
    waits = ("correction", "softmax")
    return _committed(FULL_O, "O_prod", 2, waits, "P*V has written O0, O1")


def tail_role(config: FA4Config) -> str:
    """Who clears V's rows beyond the sequence: the converter, where there is one, on the side."""
    return "converter" if config.operands.converts_rope else "tail"


def _v_tail(config: FA4Config) -> _Kind:
    return _Kind(
        name="v_tail_cleared",
        seed_name="",
        arrivals=(TAIL_WARPS,),
        arrives=(tail_role(config),),
        waits=("mma",),
        comment="once, before the first P*V: rows beyond the sequence are zero",
    )


def _scale_guards(config: FA4Config, ring: Ring) -> list[_Kind]:
    """Between the load warp, which carries the scales, and softmax, which reads them."""
    written = "the load warp has written the scales of"
    readers = scale_readers(config) * _WARPS
    return [
        _Kind(
            name="q_scale_full",
            seed_name="",
            arrivals=(1,),
            arrives=("load",),
            waits=("softmax",),
            comment=f"{written} all rows",
        ),
        _Kind(
            name="k_scale_full",
            seed_name="",
            arrivals=(1,) * ring.k_scale_buffers,
            arrives=("load",),
            waits=("softmax",),
            comment=f"{written} a block of keys",
        ),
        _Kind(
            name="k_scale_empty",
            seed_name="",
            arrivals=(readers,) * ring.k_scale_buffers,
            arrives=("softmax",),
            waits=("load",),
            comment="one lane of each warp that has read the scales",
        ),
    ]


def _converter(config: FA4Config, ring: Ring) -> list[_Kind]:
    """From the e4m3 rope that a copy brings to the bf16 rope that the product reads, in the same place.

    Only full ones: a buffer of rope is free when its K is, and Q is converted once, before the first K. The
    seed has empty ones beside them.
    """
    tx, stages = copy_bytes(config), converter_stages(config, ring)
    sides = config.num_q if stages else 0
    rows = (
        ("q_rope_raw_full", "", sides, tx.q_rope, "Q_rope of a half as it is stored"),
        ("rope_raw_full", "converter full", stages, tx.k_rope, "K_rope as it is stored"),
        ("rope_full", "converted full", stages, 0, "K_rope is converted, and Q_rope before the first"),
    )
    return [
        _Kind(
            name=name,
            seed_name=seed_name,
            arrivals=(1 if size else TAIL_WARPS,) * count_,
            arrives=("load",) if size else ("converter",),
            waits=("converter",) if size else ("mma",),
            comment=comment,
            tx_bytes=(size,) if size else (),
        )
        for name, seed_name, count_, size, comment in rows
    ]


def _hand_off(name: str, seed_name: str, arrives: str, waits: str, comment: str) -> _Kind:
    return _Kind(
        name=name,
        seed_name=seed_name,
        arrivals=(Q_TILE_ROWS,),
        arrives=(arrives,),
        waits=(waits,),
        comment=comment,
    )


def _committed(name: str, seed_name: str, stages: int, waits: tuple[str, ...], comment: str) -> _Kind:
    """tcgen05.commit arrives, once."""
    return _Kind(
        name=name,
        seed_name=seed_name,
        arrivals=(1,) * stages,
        arrives=("mma",),
        waits=waits,
        comment=comment,
    )


def _copied(
    name: str,
    seed_name: str,
    stages: int,
    sizes: tuple[int, ...],
    comment: str,
    *,
    waits: tuple[str, ...] = ("mma",),
) -> _Kind:
    """The lane that issues the copies arrives with the bytes that it expects."""
    return _Kind(
        name=name,
        seed_name=seed_name,
        arrivals=(1,) * stages,
        arrives=("load",),
        waits=waits,
        comment=comment,
        tx_bytes=sizes,
    )
