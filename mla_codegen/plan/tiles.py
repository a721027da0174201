"""Tile sizes, consumer warpgroups and ring depths of sm_90a, from the spec and written rules.

The rules of ``auto`` (figures behind them: docs/notes/performance.md):

* consumers: 3 for e4m3, 2 for 16-bit types. An e4m3 consumer needs few enough registers that three fit, and
  three hide each other's softmax better; a 16-bit one does not. 2 as well where V is too wide, or the
  tiles are too large, for three.
* block_m: 64 rows per consumer, the M of wgmma.
* block_n: with 2 consumers 128, with 3 consumers 96 (e4m3) or 80 (16-bit). Where S, O and P of a thread need
  more registers than there are, it goes down by one step of P*V (32 keys of e4m3, 16 of 16-bit types) as far
  as 64.
* kv_stages and v_stages: 3 and 3 (e4m3), 2 and 2 (16-bit); v_raw_stages 2. Where that does not fit,
  v_stages, then kv_stages, then v_raw_stages go down one by one to 2, 2 and 1; then block_n goes down as
  above, each time with the deepest of these rings that fit; then 2 consumers are tried; then rings of one
  stage.
* schedule.order: turns for e4m3, ping_pong for 16-bit types, whose registers hold S, O and P at once.
* softmax.variant: lazy, and online where the registers of the lazy one do not fit.
* flush_blocks (e4m3): as many as 576 keys; 16-bit products are added in fp32 and need none.
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
FLUSH_KEYS = 576
"""Keys between two flushes of O: the error on a V with a mean is about 1.5e-5 per key of this window where
logits are flat, and up to 4.2e-5 where they rise or fall."""
E4M3_LARGEST = 448
"""Also the largest sum of a thread's P for which the lazy softmax keeps its reference point."""
LAZY_SUM_GOAL = 64
"""What that sum is brought below in an exact step: the next blocks then have room for 7 times as much."""
SWIZZLE_WIDTHS_BYTES = (128, 64, 32)
"""Widths of a shared-memory chunk row: the swizzle modes, the widest first."""
K_STEP_BYTES = 32
"""Bytes of one wgmma step along K (PTX ISA: K is 32 for 8-bit and 16 for 16-bit types)."""
TILE_ALIGN_BYTES = 1024
"""Alignment of a tile in 128B swizzle mode: eight rows of 128 bytes (PTX ISA, wgmma: matrix descriptor)."""
SMALLEST_BLOCK_N = 64
"""Fewest keys of a step: fewer leave the tensor core idle during softmax."""
LARGEST_BLOCK_N = 256
"""Most keys of a step (PTX ISA, wgmma.mma_async: N is at most 256)."""
TRANSPOSE_COLUMNS = 32
"""Columns of V that a warp transposes at a time: what ldmatrix gives of one-byte elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunks:
    """How rows of an operand lie in shared memory: cut into ``count`` columns of ``width_bytes`` each.

    A row is padded with zeros to whole wgmma steps of 32 bytes; the width is the widest swizzle that divides
    it. ``elems`` are those of one chunk row, padding included.
    """

    row_bytes: int
    width_bytes: int
    element_bytes: int

    @property
    def count(self) -> int:
        return self.row_bytes // self.width_bytes

    @property
    def elems(self) -> int:
        return self.width_bytes // self.element_bytes

    @property
    def steps(self) -> int:
        """wgmma steps along a chunk row."""
        return self.width_bytes // K_STEP_BYTES


def row_chunks(depth: int, element_bytes: int) -> RowChunks:
    """The chunks of rows of ``depth`` elements; none at all for a depth of 0."""
    row_bytes = _round_up(depth * element_bytes, K_STEP_BYTES)
    width = next(width for width in SWIZZLE_WIDTHS_BYTES if row_bytes % width == 0)
    return RowChunks(row_bytes=row_bytes, width_bytes=width, element_bytes=element_bytes)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


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
    raw_rope: bool
    q_dense: bool
    kv_dense: bool
    stored_transposed: bool
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
    def fp8(self) -> bool:
        """P*V in e4m3: V is taken with the tokens contiguous only (PTX ISA, wgmma: 8-bit B is K-major)."""
        return self.qkv == "e4m3"

    @property
    def transposes_v(self) -> bool:
        """The kernel transposes rows of V itself; else V lies as its product takes it."""
        return self.fp8 and not self.stored_transposed

    @property
    def kv_head(self) -> str:
        """How the source says which head of K and V a CTA reads."""
        return "tile.kv_head" if self.group > 1 else "tile.head"

    @property
    def rope_first(self) -> bool:
        """A rope of e4m3 is multiplied before nope of 16 bits: its coarser sums then hold rope alone."""
        return self.rope_depth > 0 and self.rope == "e4m3" and not self.fp8

    @property
    def scales_rows(self) -> bool:
        """Each query row has a scale of its own, or one of its head or of all."""
        return self.q_scale != "none"

    @property
    def scales_columns(self) -> bool:
        """Each key has a scale of its own: S is multiplied column by column."""
        return self.k_scale in ("token", "token_head")

    @property
    def folds_k_scale(self) -> bool:
        """One k_scale for all keys of a head: it goes into each row's factor."""
        return self.k_scale in ("tensor", "head")

    @property
    def scales_output(self) -> bool:
        """One v_scale for all keys of a head: O is multiplied by it at the end."""
        return self.v_scale in ("tensor", "head")

    @property
    def scales_p(self) -> bool:
        """Each key's V has a scale of its own: it goes into P before P is rounded."""
        return self.v_scale in ("token", "token_head")

    @property
    def scales_raw_rows(self) -> bool:
        """Scales of rows go into S before an unscaled rope is added, and not into the factor of softmax."""
        return self.raw_rope and (self.scales_rows or self.folds_k_scale)

    @property
    def scales_scores(self) -> bool:
        """S is multiplied by scales; else the factor of softmax has all of them."""
        return self.scales_columns or self.scales_raw_rows

    @property
    def rereads_factors(self) -> bool:
        """The factors of softmax lie in shared memory: a read from there keeps it behind the turn.

        With nothing of the kind between the wait for S and softmax, the compiler moves most of softmax in
        front of the arrival that passes the turn on, and the other warpgroups wait.
        """
        return self.fp8 and not (self.scales_columns or self.raw_rope or self.scales_p)

    @property
    def scales_keys(self) -> bool:
        """Scales of the keys travel with each block: of K, of V or of both."""
        return self.scales_columns or self.scales_p

    @property
    def nope(self) -> RowChunks:
        return row_chunks(self.nope_depth, self.qkv_bytes)

    @property
    def rope_row(self) -> RowChunks:
        return row_chunks(self.rope_depth, self.rope_bytes)

    @property
    def v_row(self) -> RowChunks:
        """A row of V as it lies in memory; of no meaning where V is stored transposed."""
        return row_chunks(self.ov_depth, self.qkv_bytes)

    @property
    def v_columns(self) -> int:
        """Columns of a V tile in shared memory: whole pieces where a warp transposes them."""
        return _round_up(self.ov_depth, TRANSPOSE_COLUMNS) if self.transposes_v else self.ov_depth

    @property
    def k_nope_tile_bytes(self) -> int:
        return _round_up(self.block_n * self.nope.row_bytes, TILE_ALIGN_BYTES)

    @property
    def k_stage_bytes(self) -> int:
        rope = _round_up(self.block_n * self.rope_row.row_bytes, TILE_ALIGN_BYTES)
        return self.k_nope_tile_bytes + rope

    @property
    def v_stage_bytes(self) -> int:
        """Of the ring that P*V reads."""
        columns_bytes = self.v_columns if self.fp8 else self.v_row.row_bytes
        return _round_up(self.block_n * columns_bytes, TILE_ALIGN_BYTES)

    @property
    def v_raw_stage_bytes(self) -> int:
        """Of the ring of V rows that are transposed."""
        return _round_up(self.block_n * self.v_row.row_bytes, TILE_ALIGN_BYTES)

    @property
    def block_n_step(self) -> int:
        """Keys of one wgmma step of P*V: 32 bytes of a V column."""
        return block_n_step(fp8=self.fp8)

    @property
    def score_registers(self) -> int:
        """fp32 accumulators of S per thread: 64 x block_n over 128 threads."""
        return self.block_n // 2

    @property
    def flush_blocks(self) -> int:
        """KV blocks after which O leaves the accumulator of the tensor core; 0: never."""
        if not self.fp8:
            return 0
        if not self.lazy_softmax:
            return 1  # the online softmax flushes O where it rescales it
        return self.asked_flush_blocks or FLUSH_KEYS // self.block_n

    @property
    def masked_blocks(self) -> int:
        """KV blocks of a warpgroup that count as masked, at most: the last keys of 64 rows lie in 64
        successive keys, and these in so many blocks."""
        return (WGMMA_ROWS + self.block_n - 2) // self.block_n + 1

    @property
    def lift_log2(self) -> float:
        """P is multiplied by 2 to this. e4m3 reaches 448: 2^8 where each P is at most 1.

        Less with the lazy softmax, whose P may pass 1 before the reference point moves: 2^5 leaves 2^3.8.
        """
        if not self.fp8:
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
    def rereads_tile(self) -> bool:
        """Whether the load warp reads its tile again at every block, for the sake of its registers.

        With scales of V by token, or with scales of K by token and a dense side, 32 registers did not do: 8
        to 44 bytes were spilled.
        """
        return self.scales_p or (self.scales_columns and (self.q_dense or self.kv_dense))

    @property
    def renews_q(self) -> bool:
        """Whether the descriptors of Q, of 16-bit types, are made anew at every block.

        Kept over the blocks, those of 28 and 32 steps spilled 24 and 40 bytes, those of 24 none. With V of
        256, nope of 256 spilled 12 bytes, nope of 192 and rope of 64 none.
        """
        if self.fp8:
            return False
        steps = (self.nope.row_bytes + self.rope_row.row_bytes) // K_STEP_BYTES
        return steps > 24 or (self.nope_depth == 256 and self.ov_depth > 128)

    @property
    def paired_steps(self) -> bool:
        """Whether unmasked blocks go in pairs: the lazy softmax of 16-bit types writes one P beside another
        that the tensor core still reads, so two arrays take turns."""
        return self.lazy_softmax and not self.fp8

    @property
    def lazy_sum_limit(self) -> int:
        """Largest sum of a thread's P in a block for which the lazy softmax keeps its reference point.

        e4m3: its largest number. 16-bit types have room to spare; 2^8 keeps O as far from the limits of fp32
        as a sum over 256 times the keys would.
        """
        return E4M3_LARGEST if self.fp8 else 256

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
        raw_rope=spec.dims.rope > 0 and spec.scales.rope == "raw",
        q_dense=spec.layout.q == "dense",
        kv_dense=spec.layout.kv == "dense",
        stored_transposed=spec.layout.v == "transposed",
        lazy_softmax=spec.softmax.variant != "online",
        asked_flush_blocks=_asked(spec.accumulation.flush_blocks),
        k_stages=1,
        v_stages=1,
        v_raw_stages=0,
    )
    if not tiles.transposes_v and spec.pipeline.v_raw_stages != "auto":
        faults.append(_raw_v_fault(spec))
    return _with_preferred_rings(spec, tiles), tuple(faults)


def _with_preferred_rings(spec: Spec, tiles: Tiles) -> Tiles:
    """The tiles with rings as deep as asked, or as deep as still gains speed."""
    pipeline = spec.pipeline
    return replace(
        tiles,
        k_stages=_stages(pipeline.kv_stages, 3 if tiles.fp8 else 2),
        v_stages=_stages(pipeline.v_stages, 3 if tiles.fp8 else 2),
        v_raw_stages=_stages(pipeline.v_raw_stages, 2) if tiles.transposes_v else 0,
    )


def shallower(spec: Spec, tiles: Tiles, *, least: int) -> Tiles | None:
    """Rings of one stage less that ``auto`` may take, at least ``least`` deep (raw V: 1); None for none."""
    pipeline = spec.pipeline
    if pipeline.v_stages == "auto" and tiles.v_stages > least:
        return replace(tiles, v_stages=tiles.v_stages - 1)
    if pipeline.kv_stages == "auto" and tiles.k_stages > least:
        return replace(tiles, k_stages=tiles.k_stages - 1)
    if pipeline.v_raw_stages == "auto" and tiles.v_raw_stages > 1:
        return replace(tiles, v_raw_stages=tiles.v_raw_stages - 1)
    return None


def narrower(spec: Spec, tiles: Tiles) -> Tiles | None:
    """The next smaller block_n that ``auto`` may take, with the preferred rings; None where there is none."""
    block_n = tiles.block_n - tiles.block_n_step
    if spec.tile.block_n != "auto" or block_n < SMALLEST_BLOCK_N:
        return None
    return _with_preferred_rings(spec, replace(tiles, block_n=block_n))


def fewer_consumers(spec: Spec, tiles: Tiles) -> Tiles | None:
    """Two consumers in place of three that were not asked for; None where that is no choice."""
    if tiles.consumers == 2 or (spec.schedule.consumers, spec.tile.block_m) != ("auto", "auto"):
        return None
    asked = spec.tile.block_n
    block_n = preferred_block_n(fp8=tiles.fp8, consumers=2) if asked == "auto" else asked
    fewer = replace(tiles, consumers=2, block_m=2 * WGMMA_ROWS, block_n=block_n)
    return _with_preferred_rings(spec, fewer)


def online_instead(spec: Spec, tiles: Tiles) -> Tiles | None:
    """The online softmax in place of a lazy one that was not asked for; None where that is no choice."""
    asked = (spec.softmax.variant, spec.accumulation.flush_blocks)
    if not tiles.lazy_softmax or asked != ("auto", "auto"):
        return None
    block_n = spec.tile.block_n
    if block_n == "auto":
        block_n = preferred_block_n(fp8=tiles.fp8, consumers=tiles.consumers)
    return _with_preferred_rings(spec, replace(tiles, lazy_softmax=False, block_n=block_n))


def preferred_block_n(*, fp8: bool, consumers: int) -> int:
    """Keys of a step where registers and shared memory allow them."""
    if consumers == 2:
        return 128
    return 96 if fp8 else 80


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
    default = preferred_block_n(fp8=fp8, consumers=consumers)
    if asked == "auto":
        return default
    step = block_n_step(fp8=fp8)
    if asked % step or not SMALLEST_BLOCK_N <= asked <= LARGEST_BLOCK_N:
        allowed = f"multiples of {step} from {SMALLEST_BLOCK_N} to {LARGEST_BLOCK_N}"
        faults.append(_tile_fault("block_n", asked, allowed, f"one wgmma step of P*V takes {step} keys"))
        return default
    return asked


def _raw_v_fault(spec: Spec) -> Diagnostic:
    raw, qkv, layout = spec.pipeline.v_raw_stages, spec.dtypes.qkv, spec.layout.v
    fp8 = qkv == "e4m3"
    what = f"layout.v {layout}" if fp8 else f"dtypes.qkv {qkv}"
    kind = "V that is stored transposed" if fp8 else "16-bit V"
    return Diagnostic(
        code="no-raw-v",
        field="pipeline.v_raw_stages",
        message=f"pipeline.v_raw_stages is {raw}, allowed with {what}: auto",
        notes=(f"{kind} is used as it lies in memory, so that there is no ring of raw V",),
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
