"""mbarriers (arrivals, bytes, who arrives, who waits) and named barriers of sm_90a kernels."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import Mbarrier, NamedBarrier
from mla_codegen.plan.tiles import Tiles

WARPS_PER_WARPGROUP = 4
WARPGROUP_THREADS = 128
TRANSPOSE_WARPS = 3
LOAD_ARRIVALS = 1
"""The lane that issues the bulk copies arrives with the bytes that it expects."""
SCALED_LOAD_ARRIVALS = 2
"""That lane, and one lane for the warp when the scales are written."""
FIRST_NAMED_BARRIER = 1
"""Id 0 belongs to cta_sync (PTX ISA, bar)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxBytes:
    """Bytes that the copies of one phase bring."""

    q: int
    k: int
    v: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    stages: int
    stages_constant: str
    arrivals: int
    arrivals_constant: str
    tx_bytes: int
    arrives: str
    waits: str
    index: str = "stage"


def plan_mbarriers(tiles: Tiles, tx_bytes: TxBytes) -> tuple[Mbarrier, ...]:
    """All mbarriers in the order of ``mbar_base``."""
    barriers: list[Mbarrier] = []
    index = 0
    for kind in (*_qk_kinds(tiles, tx_bytes), *_v_kinds(tiles, tx_bytes)):
        ring = kind.stages_constant != "1"
        bytes_note = f" and {kind.tx_bytes} bytes" if kind.tx_bytes else ""
        count = f"{kind.arrivals} arrival{'s' if kind.arrivals > 1 else ''}"
        barriers.append(
            Mbarrier(
                name=kind.name,
                stages=kind.stages,
                first_index=index,
                arrivals=kind.arrivals,
                tx_bytes=kind.tx_bytes,
                arrives=kind.arrives,
                waits=kind.waits,
                comment=f"{count}{bytes_note} a phase; from {kind.arrives} to {kind.waits}",
                parameter=f"u32 {kind.index}" if ring else "",
                stage=kind.index if ring else "0",
                stages_constant=kind.stages_constant,
                arrivals_constant=kind.arrivals_constant,
            )
        )
        index += kind.stages
    return tuple(barriers)


def num_mbars(tiles: Tiles) -> int:
    """How many mbarriers the kernel has; they do not depend on bytes."""
    last = plan_mbarriers(tiles, TxBytes(q=0, k=0, v=0))[-1]
    return last.first_index + last.stages


def plan_named_barriers(tiles: Tiles) -> tuple[NamedBarrier, ...]:
    """One barrier per consumer: its turn at the tensor core, given by the consumer before it."""
    barriers = []
    for consumer in range(tiles.consumers):
        giver = (consumer - 1) % tiles.consumers
        threads = 2 * WARPGROUP_THREADS
        barriers.append(
            NamedBarrier(
                name=f"turn_{consumer}",
                id=FIRST_NAMED_BARRIER + consumer,
                threads=threads,
                comment=f"{threads} threads: consumer {consumer} waits, consumer {giver} arrives",
            )
        )
    return tuple(barriers)


def _load_arrivals(scaled: bool) -> int:
    return SCALED_LOAD_ARRIVALS if scaled else LOAD_ARRIVALS


def _load_constant(scaled: bool) -> str:
    return "kScaledLoadArrivals" if scaled else "kLoadArrivals"


def _qk_kinds(tiles: Tiles, tx_bytes: TxBytes) -> tuple[_Kind, ...]:
    return (
        _Kind(
            name="q_full",
            stages=tiles.consumers,
            stages_constant="kNumConsumers",
            index="consumer",
            arrivals=_load_arrivals(tiles.scales_rows),
            arrivals_constant=_load_constant(tiles.scales_rows),
            tx_bytes=tx_bytes.q,
            arrives="load",
            waits="consumer",
        ),
        _Kind(
            name="q_empty",
            stages=tiles.consumers,
            stages_constant="kNumConsumers",
            index="consumer",
            arrivals=WARPS_PER_WARPGROUP,
            arrivals_constant="kQEmptyArrivals",
            tx_bytes=0,
            arrives="consumer",
            waits="load" if tiles.transposes_v else "load and tail",
        ),
        _Kind(
            name="k_full",
            stages=tiles.k_stages,
            stages_constant="kKStages",
            arrivals=_load_arrivals(tiles.scales_keys),
            arrivals_constant=_load_constant(tiles.scales_keys),
            tx_bytes=tx_bytes.k,
            arrives="load",
            waits="consumer",
        ),
        _Kind(
            name="k_empty",
            stages=tiles.k_stages,
            stages_constant="kKStages",
            arrivals=tiles.consumers * WARPS_PER_WARPGROUP,
            arrivals_constant="kConsumerArrivals",
            tx_bytes=0,
            arrives="consumer",
            waits="load",
        ),
    )


def _v_kinds(tiles: Tiles, tx_bytes: TxBytes) -> tuple[_Kind, ...]:
    return _transposed_v_kinds(tiles, tx_bytes) if tiles.transposes_v else _plain_v_kinds(tiles, tx_bytes)


def _v_empty(tiles: Tiles, *, waits: str) -> _Kind:
    return _Kind(
        name="v_empty",
        stages=tiles.v_stages,
        stages_constant="kVStages",
        arrivals=tiles.consumers * WARPS_PER_WARPGROUP,
        arrivals_constant="kConsumerArrivals",
        tx_bytes=0,
        arrives="consumer",
        waits=waits,
    )


def _transposed_v_kinds(tiles: Tiles, tx_bytes: TxBytes) -> tuple[_Kind, ...]:
    """Raw V goes from load to transpose, transposed V from there to the consumers."""
    return (
        _Kind(
            name="v_raw_full",
            stages=tiles.v_raw_stages,
            stages_constant="kVRawStages",
            arrivals=1,
            arrivals_constant="kLoadArrivals",
            tx_bytes=tx_bytes.v,
            arrives="load",
            waits="transpose",
        ),
        _Kind(
            name="v_raw_empty",
            stages=tiles.v_raw_stages,
            stages_constant="kVRawStages",
            arrivals=TRANSPOSE_WARPS,
            arrivals_constant="kTransposeWarps",
            tx_bytes=0,
            arrives="transpose",
            waits="load",
        ),
        _Kind(
            name="v_full",
            stages=tiles.v_stages,
            stages_constant="kVStages",
            arrivals=TRANSPOSE_WARPS,
            arrivals_constant="kTransposeWarps",
            tx_bytes=0,
            arrives="transpose",
            waits="consumer",
        ),
        _v_empty(tiles, waits="transpose"),
    )


def _plain_v_kinds(tiles: Tiles, tx_bytes: TxBytes) -> tuple[_Kind, ...]:
    """V goes from load to the consumers; the tail warp clears what lies beyond the sequence, once."""
    return (
        _Kind(
            name="v_full",
            stages=tiles.v_stages,
            stages_constant="kVStages",
            arrivals=1,
            arrivals_constant="kLoadArrivals",
            tx_bytes=tx_bytes.v,
            arrives="load",
            waits="consumer and tail",
        ),
        _v_empty(tiles, waits="load"),
        _Kind(
            name="v_tail_cleared",
            stages=1,
            stages_constant="1",
            arrivals=1,
            arrivals_constant="kTailArrivals",
            tx_bytes=0,
            arrives="tail",
            waits="consumer",
        ),
    )
