"""Tile sizes, consumer warpgroups and ring depths of sm_90a, from the spec and written rules.

The rules of ``auto`` (figures behind them: docs/notes/performance.md):

* consumers: 3 for e4m3, 2 for 16-bit types. An e4m3 consumer needs few enough registers that three fit, and
  three hide each other's softmax better; a 16-bit one does not.
* block_m: 64 rows per consumer, the M of wgmma.
* block_n: with 2 consumers 128, with 3 consumers 96 (e4m3) or 80 (16-bit); less where a deep ring is asked
  for and does not fit.
* kv_stages and v_stages: 3 and 3 (e4m3), 2 and 2 (16-bit); v_raw_stages 2. Where that does not fit,
  v_stages, then kv_stages, then v_raw_stages go down one by one to 2, 2 and 1; then block_n goes down by one
  step of P*V (32 keys of e4m3, 16 of 16-bit types) as far as 64, each time with the deepest of these rings
  that fit.
* schedule.order: turns for e4m3, ping_pong for 16-bit types, whose registers hold S, O and P at once.
* softmax.variant: lazy for e4m3, online for 16-bit types, where the lazy one has no bound to check against.
* flush_blocks (e4m3): as many as 1152 keys; 16-bit products are added in fp32 and need none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import Diagnostic

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

WGMMA_ROWS = 64
"""Rows of one warpgroup's product (PTX ISA, wgmma.mma_async: M is 64)."""
FLUSH_KEYS = 1152
"""Keys between two flushes of O: the error on a V with a mean is about 1.5e-5 per key of this window."""
E4M3_LARGEST = 448
"""Also the largest sum of a thread's P for which the lazy softmax keeps its reference point."""
LAZY_SUM_GOAL = 64
"""What that sum is brought below in an exact step: the next blocks then have room for 7 times as much."""
SWIZZLE_BYTES = 128
"""Width of a shared-memory chunk row: the widest swizzle mode."""
SMALLEST_BLOCK_N = 64
"""Fewest keys of a step: fewer leave the tensor core idle during softmax."""
LARGEST_BLOCK_N = 256
"""Most keys of a step (PTX ISA, wgmma.mma_async: N is at most 256)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The sizes that everything else follows from; depths and blocks in elements."""

    consumers: int
    block_m: int
    block_n: int
    nope_depth: int
    rope_depth: int
    ov_depth: int
    qkv: str
    rope: str
    out: str
    group: int
    q_scale: str
    k_scale: str
    v_scale: str
    lazy_softmax: bool
    asked_flush_blocks: int | None
    k_stages: int
    v_stages: int
    v_raw_stages: int

    @property
    def qkv_bytes(self) -> int:
        return DTYPES[self.qkv].bytes

    @property
    def rope_bytes(self) -> int:
        return DTYPES[self.rope].bytes

    @property
    def out_bytes(self) -> int:
        return DTYPES[self.out].bytes

    @property
    def transposes_v(self) -> bool:
        """8-bit V is used K-major only, so that its rows have to be transposed (PTX ISA, wgmma)."""
        return self.qkv == "e4m3"

    @property
    def scales_rows(self) -> bool:
        """q_scale goes into each row's factor."""
        return self.q_scale != "none"

    @property
    def scales_columns(self) -> bool:
        """Each key has a scale of its own: S is multiplied column by column."""
        return self.k_scale == "token"

    @property
    def folds_k_scale(self) -> bool:
        """One k_scale for all keys: it goes into each row's factor."""
        return self.k_scale == "tensor"

    @property
    def scales_output(self) -> bool:
        """One v_scale for all keys of a head: O is multiplied by it at the end."""
        return self.v_scale in ("tensor", "head")

    @property
    def qkv_chunk_elems(self) -> int:
        return SWIZZLE_BYTES // self.qkv_bytes

    @property
    def rope_chunk_elems(self) -> int:
        return SWIZZLE_BYTES // self.rope_bytes

    @property
    def k_stage_bytes(self) -> int:
        return self.block_n * (self.nope_depth * self.qkv_bytes + self.rope_depth * self.rope_bytes)

    @property
    def v_stage_bytes(self) -> int:
        return self.block_n * self.ov_depth * self.qkv_bytes

    @property
    def block_n_step(self) -> int:
        """Keys of one wgmma step of P*V: 32 bytes of a V column."""
        return block_n_step(fp8=self.transposes_v)

    @property
    def score_registers(self) -> int:
        """fp32 accumulators of S per thread: 64 x block_n over 128 threads."""
        return self.block_n // 2

    @property
    def flush_blocks(self) -> int:
        """KV blocks after which O leaves the accumulator of the tensor core; 0: never."""
        if not self.transposes_v:
            return 0
        if not self.lazy_softmax:
            return 1  # the online softmax flushes O where it rescales it
        return self.asked_flush_blocks or FLUSH_KEYS // self.block_n

    @property
    def lift_log2(self) -> float:
        """P is multiplied by 2 to this. e4m3 reaches 448: 2^8 where each P is at most 1.

        Less with the lazy softmax, whose P may pass 1 before the reference point moves: 2^5 leaves 2^3.8.
        """
        if not self.transposes_v:
            return 0.0
        return 5.0 if self.lazy_softmax else 8.0

    @property
    def lift_steps(self) -> int:
        """Halvings after which block_n / 4 columns of the largest P sum to LAZY_SUM_GOAL at most."""
        return max(0, math.ceil(math.log2(self.block_n // 4 * 2**self.lift_log2 / LAZY_SUM_GOAL)))

    @property
    def output_registers(self) -> int:
        return self.ov_depth // 2

    @property
    def prob_registers(self) -> int:
        """32-bit registers of packed P per thread."""
        return self.score_registers * self.qkv_bytes // 4


def block_n_step(*, fp8: bool) -> int:
    """Keys of one wgmma step of P*V (PTX ISA: K is 32 for 8-bit and 16 for 16-bit types)."""
    return 32 if fp8 else 16


def resolve_tiles(spec: Spec) -> tuple[Tiles, tuple[Diagnostic, ...]]:
    """The tiles with everything as asked or as large as preferred, and the faults of what was asked."""
    fp8 = spec.dtypes.qkv == "e4m3"
    faults: list[Diagnostic] = []
    consumers = _consumers(spec, fp8, faults)
    block_n = _block_n(spec, fp8, consumers, faults)
    if not fp8 and spec.pipeline.v_raw_stages != "auto":
        faults.append(_raw_v_fault(spec))
    tiles = Tiles(
        consumers=consumers,
        block_m=WGMMA_ROWS * consumers,
        block_n=block_n,
        nope_depth=spec.dims.nope,
        rope_depth=spec.dims.rope,
        ov_depth=spec.dims.v,
        qkv=spec.dtypes.qkv,
        rope=spec.dtypes.rope_mma,
        out=spec.dtypes.out,
        group=spec.heads.group,
        q_scale=spec.scales.q,
        k_scale=spec.scales.k,
        v_scale=spec.scales.v,
        lazy_softmax=fp8 and spec.softmax.variant != "online",
        asked_flush_blocks=_asked(spec.accumulation.flush_blocks),
        k_stages=1,
        v_stages=1,
        v_raw_stages=0,
    )
    return _with_preferred_rings(spec, tiles), tuple(faults)


def _with_preferred_rings(spec: Spec, tiles: Tiles) -> Tiles:
    """The tiles with rings as deep as asked, or as deep as still gains speed."""
    pipeline, fp8 = spec.pipeline, tiles.transposes_v
    return replace(
        tiles,
        k_stages=_stages(pipeline.kv_stages, 3 if fp8 else 2),
        v_stages=_stages(pipeline.v_stages, 3 if fp8 else 2),
        v_raw_stages=_stages(pipeline.v_raw_stages, 2) if fp8 else 0,
    )


def smaller(spec: Spec, tiles: Tiles) -> Tiles | None:
    """The next smaller ring depths or block_n that ``auto`` may take, or None where it may take none."""
    pipeline = spec.pipeline
    if pipeline.v_stages == "auto" and tiles.v_stages > 2:
        return replace(tiles, v_stages=tiles.v_stages - 1)
    if pipeline.kv_stages == "auto" and tiles.k_stages > 2:
        return replace(tiles, k_stages=tiles.k_stages - 1)
    if pipeline.v_raw_stages == "auto" and tiles.v_raw_stages > 1:
        return replace(tiles, v_raw_stages=tiles.v_raw_stages - 1)
    block_n = tiles.block_n - tiles.block_n_step
    if spec.tile.block_n == "auto" and block_n >= SMALLEST_BLOCK_N:
        return _with_preferred_rings(spec, replace(tiles, block_n=block_n))
    return None


def _consumers(spec: Spec, fp8: bool, faults: list[Diagnostic]) -> int:
    asked, block_m = spec.schedule.consumers, spec.tile.block_m
    by_rows = None
    if block_m != "auto":
        by_rows = block_m // WGMMA_ROWS
        if block_m % WGMMA_ROWS or by_rows not in (2, 3):
            faults.append(
                _tile_fault(
                    "block_m",
                    block_m,
                    "128, 192",
                    "a consumer warpgroup has 64 rows of the tile, and there are 2 or 3",
                )
            )
            by_rows = None
    if asked != "auto" and asked not in (2, 3):
        faults.append(
            Diagnostic(
                code="bad-consumers",
                field="schedule.consumers",
                message=f"schedule.consumers is {asked}, allowed on sm_90a: 2, 3 or auto",
                help="set schedule.consumers: auto",
            )
        )
        asked = "auto"
    if asked != "auto" and by_rows is not None and asked != by_rows:
        rows = f"tile.block_m {block_m}"
        faults.append(
            Diagnostic(
                code="bad-consumers",
                field="schedule.consumers",
                message=f"schedule.consumers is {asked}, allowed with {rows}: {by_rows} or auto",
                notes=("a consumer warpgroup has 64 rows of the tile",),
                help=f"set schedule.consumers: {by_rows}, or leave out one of the two",
            )
        )
    if asked != "auto":
        return asked
    return by_rows or (3 if fp8 else 2)


def _block_n(spec: Spec, fp8: bool, consumers: int, faults: list[Diagnostic]) -> int:
    asked = spec.tile.block_n
    default = 96 if fp8 and consumers == 3 else 80 if consumers == 3 else 128
    if asked == "auto":
        return default
    step = block_n_step(fp8=fp8)
    if asked % step or not SMALLEST_BLOCK_N <= asked <= LARGEST_BLOCK_N:
        allowed = f"multiples of {step} from {SMALLEST_BLOCK_N} to {LARGEST_BLOCK_N}"
        faults.append(_tile_fault("block_n", asked, allowed, f"one wgmma step of P*V takes {step} keys"))
        return default
    return asked


def _raw_v_fault(spec: Spec) -> Diagnostic:
    raw, qkv = spec.pipeline.v_raw_stages, spec.dtypes.qkv
    return Diagnostic(
        code="no-raw-v",
        field="pipeline.v_raw_stages",
        message=f"pipeline.v_raw_stages is {raw}, allowed with dtypes.qkv {qkv}: auto",
        notes=("16-bit V is used as it lies in memory, so that there is no ring of raw V",),
        help="leave pipeline.v_raw_stages out",
    )


def _tile_fault(name: str, found: int, allowed: str, reason: str) -> Diagnostic:
    return Diagnostic(
        code="bad-tile",
        field=f"tile.{name}",
        message=f"tile.{name} is {found}, allowed: {allowed} or auto",
        notes=(reason,),
        help=f"set tile.{name}: auto",
    )


def _asked(value: int | str) -> int | None:
    return None if value == "auto" else int(value)


def _stages(asked: int | str, preferred: int) -> int:
    return preferred if asked == "auto" else int(asked)
