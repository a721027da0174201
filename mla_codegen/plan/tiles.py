"""Tile sizes, consumer warpgroups and ring depths of sm_90a, from the spec and written rules.

The rules of ``auto`` (figures behind them: docs/notes/performance.md):

* consumers: 3 for e4m3, 2 for 16-bit types. An e4m3 consumer needs few enough registers that three fit, and three hide
  each other's softmax better; a 16-bit one does not.
* block_m: 64 rows per consumer, the M of wgmma.
* block_n: 96 for e4m3 with 3 consumers, 128 otherwise; less where a deep ring is asked for and does not fit.
* kv_stages and v_stages: 3 and 3 (e4m3), 2 and 2 (16-bit); v_raw_stages 2. Where that does not fit, v_stages, then
  kv_stages, then v_raw_stages go down one by one to 2, 2 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import Diagnostic
from mla_codegen.plan.model import Choice

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

WGMMA_ROWS = 64
"""Rows of one warpgroup's product (PTX ISA, wgmma.mma_async: M is 64)."""
SWIZZLE_BYTES = 128
"""Width of a shared-memory chunk row: the widest swizzle mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The sizes that everything else follows from. ``k_step_elems`` are elements of one wgmma step along K (32 bytes)."""

    consumers: int
    block_m: int
    block_n: int
    nope_depth: int
    rope_depth: int
    ov_depth: int
    qkv_bytes: int
    rope_bytes: int
    out_bytes: int
    transposes_v: bool
    k_stages: int
    v_stages: int
    v_raw_stages: int

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
    def score_registers(self) -> int:
        """fp32 accumulators of S per thread: 64 x block_n over 128 threads."""
        return self.block_n // 2

    @property
    def output_registers(self) -> int:
        return self.ov_depth // 2

    @property
    def prob_registers(self) -> int:
        """32-bit registers of packed P per thread."""
        return self.score_registers * self.qkv_bytes // 4


def resolve_tiles(spec: Spec) -> tuple[Tiles, tuple[Choice, ...], tuple[Diagnostic, ...]]:
    """The tiles with stages as asked or as deep as preferred, the choices made, and what the user said that cannot be."""
    fp8 = spec.dtypes.qkv == "e4m3"
    faults: list[Diagnostic] = []
    consumers = _consumers(spec, fp8, faults)
    block_m = WGMMA_ROWS * consumers
    block_n = _block_n(spec, fp8, consumers, faults)
    pipeline = spec.pipeline
    if not fp8 and pipeline.v_raw_stages != "auto":
        faults.append(
            Diagnostic(
                code="no-raw-v",
                field="pipeline.v_raw_stages",
                message=f"pipeline.v_raw_stages is {pipeline.v_raw_stages}, but 16-bit V is used as it lies, so there is "
                "no ring of raw V",
                help="remove pipeline.v_raw_stages or set it to auto",
            )
        )
    tiles = Tiles(
        consumers=consumers,
        block_m=block_m,
        block_n=block_n,
        nope_depth=spec.dims.nope,
        rope_depth=spec.dims.rope,
        ov_depth=spec.dims.v,
        qkv_bytes=DTYPES[spec.dtypes.qkv].bytes,
        rope_bytes=DTYPES[spec.dtypes.rope_mma].bytes,
        out_bytes=DTYPES[spec.dtypes.out].bytes,
        transposes_v=fp8,
        k_stages=_stages(pipeline.kv_stages, 3 if fp8 else 2),
        v_stages=_stages(pipeline.v_stages, 3 if fp8 else 2),
        v_raw_stages=_stages(pipeline.v_raw_stages, 2) if fp8 else 0,
    )
    return tiles, _choices(spec, tiles), tuple(faults)


def shallower(spec: Spec, tiles: Tiles) -> Tiles | None:
    """The next smaller set of ring depths that ``auto`` may take, or None."""
    pipeline = spec.pipeline
    if pipeline.v_stages == "auto" and tiles.v_stages > 2:
        return replace(tiles, v_stages=tiles.v_stages - 1)
    if pipeline.kv_stages == "auto" and tiles.k_stages > 2:
        return replace(tiles, k_stages=tiles.k_stages - 1)
    if pipeline.v_raw_stages == "auto" and tiles.v_raw_stages > 1:
        return replace(tiles, v_raw_stages=tiles.v_raw_stages - 1)
    return None


def stage_choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    """The ring depths as choices, once they are final."""
    rule = "the deepest rings that fit, up to what still gains speed"
    rows = [("kv_stages", tiles.k_stages), ("v_stages", tiles.v_stages)]
    if tiles.transposes_v:
        rows.append(("v_raw_stages", tiles.v_raw_stages))
    return tuple(
        Choice(field=f"pipeline.{name}", value=str(value), rule=_rule(getattr(spec.pipeline, name), rule))
        for name, value in rows
    )


def register_faults(spec: Spec, tiles: Tiles, consumer_registers: int) -> tuple[Diagnostic, ...]:
    """A diagnostic where S, O and P of one thread leave too few registers for the rest of the loop."""
    arrays = tiles.score_registers + tiles.output_registers + tiles.prob_registers
    needed = arrays + WORKING_REGISTERS
    if needed <= consumer_registers:
        return ()
    field = "tile.block_n" if spec.tile.block_n != "auto" else "schedule.consumers"
    return (
        Diagnostic(
            code="register-overflow",
            field=field,
            message=f"block_n {tiles.block_n} needs {needed} registers a thread, {tiles.consumers} consumers leave "
            f"{consumer_registers}",
            notes=(
                f"S {tiles.score_registers} + O {tiles.output_registers} + P {tiles.prob_registers} + "
                f"working registers {WORKING_REGISTERS}",
            ),
            help="set a smaller tile.block_n or fewer schedule.consumers",
        ),
    )


WORKING_REGISTERS = 36
"""Registers that the consumer loop needs beside S, O and P: measured, the smallest at which ptxas spills nothing."""


def _consumers(spec: Spec, fp8: bool, faults: list[Diagnostic]) -> int:
    asked, block_m = spec.schedule.consumers, spec.tile.block_m
    by_rows = None
    if block_m != "auto":
        by_rows = block_m // WGMMA_ROWS
        if block_m % WGMMA_ROWS or by_rows not in (2, 3):
            faults.append(_tile_fault("block_m", block_m, "128 or 192 (64 rows per consumer warpgroup, 2 or 3 of them)"))
            by_rows = None
    if asked != "auto" and asked not in (2, 3):
        faults.append(
            Diagnostic(
                code="bad-consumers",
                field="schedule.consumers",
                message=f"schedule.consumers is {asked}, sm_90a kernels have 2 or 3 consumer warpgroups",
                help="set schedule.consumers to 2, 3 or auto",
            )
        )
        asked = "auto"
    if asked != "auto" and by_rows is not None and asked != by_rows:
        faults.append(
            Diagnostic(
                code="bad-consumers",
                field="schedule.consumers",
                message=f"schedule.consumers is {asked}, but tile.block_m {block_m} is {by_rows} x 64 rows",
                help="set one of them to auto",
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
    step = 32 if fp8 else 16
    if asked % step or not 64 <= asked <= 256:
        faults.append(
            _tile_fault("block_n", asked, f"multiples of {step} from 64 to 256 (one wgmma step of P*V is {step} keys)")
        )
        return default
    return asked


def _tile_fault(name: str, found: int, allowed: str) -> Diagnostic:
    return Diagnostic(
        code="bad-tile",
        field=f"tile.{name}",
        message=f"tile.{name} is {found}, allowed are {allowed}",
        help=f"set tile.{name} to one of them or to auto",
    )


def _stages(asked: int | str, preferred: int) -> int:
    return preferred if asked == "auto" else int(asked)


def _rule(asked: object, rule: str) -> str:
    return rule if asked == "auto" else "as the spec says"


def _choices(spec: Spec, tiles: Tiles) -> tuple[Choice, ...]:
    kind = "e4m3" if tiles.transposes_v else "16-bit"
    count = "three warpgroups of it fit" if tiles.transposes_v else "S, O and P of two fill the registers"
    asked_m = spec.tile.block_m if spec.tile.block_m != "auto" else spec.schedule.consumers
    return (
        Choice(
            field="schedule.consumers",
            value=str(tiles.consumers),
            rule=_rule(asked_m, f"{kind}: {count}"),
        ),
        Choice(field="tile.block_m", value=str(tiles.block_m), rule=_rule(asked_m, "64 rows per consumer warpgroup")),
        Choice(
            field="tile.block_n",
            value=str(tiles.block_n),
            rule=_rule(spec.tile.block_n, "the widest S that leaves no spill and room for the rings"),
        ),
        Choice(field="schedule.order", value="turns", rule="one warpgroup's products at a time in the tensor core"),
    )
