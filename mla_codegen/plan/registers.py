"""Registers of a thread of each warpgroup: what it gets (setmaxnreg), what it needs and what if too many."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mla_codegen.arch import ArchLimits
from mla_codegen.errors import Diagnostic
from mla_codegen.plan.barriers import WARPGROUP_THREADS
from mla_codegen.plan.tiles import K_STEP_BYTES, SMALLEST_BLOCK_N, TRANSPOSE_COLUMNS, WGMMA_ROWS, Tiles

WIDE_V = 128
"""Columns above which V is wide: O then takes more than 64 registers of a consumer."""

PLAIN_PRODUCER_REGISTERS = 24
"""Registers of a producer warpgroup that only issues copies: the least that setmaxnreg takes."""
TRANSPOSING_PRODUCER_REGISTERS = 32
"""The same where it transposes V: the least at which ptxas spills nothing."""
CARRYING_PRODUCER_REGISTERS = 32
"""The same where it does not transpose V, but its load warp carries scales of keys and is strained: by those
of K and of V, by 128 keys or more or by many copies. With 24 it spilled 16, 20 and 32 bytes."""
STRAINED_PRODUCER_REGISTERS = 40
"""The same where it transposes V and is strained: it carries scales of V per token beside those of K or from
dense tensors, issues many copies of these, or has few columns of V, whose pieces all have addresses of their
own. With 32 it spilled 8 to 92 bytes."""
WIDE_PRODUCER_REGISTERS = 56
"""The same where it transposes V for more keys than strain it, or carries scales of K and of V, which is not
wide, from dense tensors: with 40 it spilled 16, 88 and 136 bytes, and 20."""
FEW_COLUMNS = 2 * TRANSPOSE_COLUMNS
"""Columns of V up to which a producer is strained: 48 and 64 spilled 12 bytes, 80 none."""
MANY_COPIES = 6
"""Copies of a block of K that strain the load warp: 7 of dense tensors spilled 80 bytes, 9 beside scales of
keys 16."""
STRAINING_BLOCK = 128
"""Keys that strain a load warp which carries their scales; more than these strain the transposition."""

WORKING_REGISTERS = {2: 52, 3: 36}
"""Registers of a consumer beside S, O and P, by the number of consumers: measured with NVRTC 13.0, where 36
were enough for three consumers and V of 128, and 48 too few for the widest tile of two (4 bytes spilled)."""
WIDE_V_REGISTERS = {2: 12, 3: 8}
"""What wide V needs more where O has a master: with less, V of 160 and 240 spilled 20 and 28 bytes."""
SCALED_P_REGISTERS = {2: 8, 3: 12}
"""What lazy softmax needs more where V has scales per token: with none, 68 to 144 bytes spilled."""
RAW_SCALED_P_REGISTERS = 4
"""What the online softmax of three consumers needs more where V has such scales and rope is raw: with none, V
stored transposed spilled 4 bytes."""
ODD_V_REGISTERS = 16
"""What two consumers need more where K has scales per token and wide V is no multiple of 32: V of 240 spilled
76 to 96 bytes with 8 less, where V of 256 spilled none."""
WIDE_BLOCK = 160
"""Keys above which lazy softmax of two consumers needs more."""
WIDE_SCALED_P_BLOCK = 128
"""The same where P has the scales of V."""
WIDE_BLOCK_REGISTERS = 24
"""What it needs more there: 224 keys spilled 80 and 88 bytes; with scales of V 160 spilled 144, 192 spilled
48."""

PAIRED_STEPS_SPARE_REGISTERS = 4
"""Working registers that are free where two arrays of P take turns and V is not wide: 128 keys and V of 128
spilled nothing with these, 144 keys spilled 40 bytes; 64 keys and V of 256 spilled 24."""

FREE_STEPS = {2: 24, 3: 12}
"""wgmma steps of Q*K whose matrix descriptors the compiler keeps apart without cost, where O has no master or
is one of three consumers."""
STEP_REGISTERS = 8
"""What each further step needs: 32 steps and V of 192 spilled 16 bytes with two consumers, 15 steps and V of
128 spilled 20 with three."""
SCALED_P_STEPS_REGISTERS = 16
"""What three consumers need more above their free steps where P has the scales of V: 13 steps spilled 60 and
108 bytes with 4 and 12 to spare."""
SOME_STEPS = 16
"""Steps of 16-bit types above which two consumers need more."""
SOME_STEPS_REGISTERS = 10
"""What they need more: 17 and 27 steps spilled 116 bytes and more with 8 and 4 to spare, 19 none with 12."""
FREE_MASTER_STEPS = 10
"""The free steps of two consumers whose O has a master."""
MASTER_STEP_REGISTERS = 3
"""What each further step of these needs: 13 steps spilled with nothing to spare, 18 with 8, 20 with 24; 15
spilled none with 16."""
RAW_STEPS = 10
"""Steps from which these need more where raw rope is added before a lazy softmax."""
RAW_STEPS_REGISTERS = 6
"""What just so many steps need more: with V of 256 they spilled 148 bytes with nothing to spare and none
with 8."""
MORE_RAW_STEPS_REGISTERS = 18
"""What any greater number of steps needs more: 11 and V of 224 spilled 264 bytes with 16 to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """Registers per thread: what the launch allocates, and what setmaxnreg gives producer and consumers."""

    launch: int
    producer: int
    consumer: int


def num_threads(tiles: Tiles) -> int:
    """One producer warpgroup and the consumers."""
    return WARPGROUP_THREADS * (1 + tiles.consumers)


def split_registers(tiles: Tiles, limits: ArchLimits) -> Registers:
    """What the producer gives up goes to the consumers.

    The pool of setmaxnreg is what the launch allocated (threads x launch cap), not the whole register file:
    at 384 threads 168 x 3 = 504 registers per thread position, so 240 + 240 + 24 but never 240 + 240 + 32.
    """
    launch = limits.launch_cap_regs(num_threads(tiles))
    launch -= launch % limits.setmaxnreg_step_regs
    producer = _producer_registers(tiles)
    pool = launch * (1 + tiles.consumers)
    consumer = min((pool - producer) // tiles.consumers, limits.thread_regs)
    consumer -= consumer % limits.setmaxnreg_step_regs
    return Registers(launch=launch, producer=pool - tiles.consumers * consumer, consumer=consumer)


def registers_fit(tiles: Tiles, limits: ArchLimits) -> bool:
    """Whether a consumer thread has room for S, O, P and what else its loop holds."""
    return _needed_registers(tiles) <= split_registers(tiles, limits).consumer


def _producer_registers(tiles: Tiles) -> int:
    """What the producer warpgroup needs, whose warps have one register count."""
    if _carries_both(tiles) and _is_dense(tiles) and tiles.ov_depth <= WIDE_V:
        return WIDE_PRODUCER_REGISTERS
    return _transposing_registers(tiles) if tiles.transposes_v else _loading_registers(tiles)


def _transposing_registers(tiles: Tiles) -> int:
    """What a producer needs that transposes V beside its copies."""
    if tiles.block_n > STRAINING_BLOCK:
        return WIDE_PRODUCER_REGISTERS
    strained = (
        _carries_both(tiles)
        or (_is_dense(tiles) and (tiles.scales_p or _issues_many_copies(tiles)))
        or tiles.v_columns <= FEW_COLUMNS
    )
    return STRAINED_PRODUCER_REGISTERS if strained else TRANSPOSING_PRODUCER_REGISTERS


def _loading_registers(tiles: Tiles) -> int:
    """What a producer needs that transposes nothing."""
    strained = _carries_both(tiles) or tiles.block_n >= STRAINING_BLOCK or _issues_many_copies(tiles)
    return CARRYING_PRODUCER_REGISTERS if tiles.scales_keys and strained else PLAIN_PRODUCER_REGISTERS


def _carries_both(tiles: Tiles) -> bool:
    """Whether the load warp carries scales of K and of V."""
    return tiles.scales_columns and tiles.scales_p


def _is_dense(tiles: Tiles) -> bool:
    return tiles.q_dense or tiles.kv_dense


def _issues_many_copies(tiles: Tiles) -> bool:
    return tiles.nope.count + tiles.rope_row.count >= MANY_COPIES


def _needed_registers(tiles: Tiles) -> int:
    arrays = tiles.score_registers + tiles.output_registers + _prob_registers(tiles)
    return arrays + _working_registers(tiles)


def _prob_registers(tiles: Tiles) -> int:
    """P, twice where two arrays of it take turns."""
    return tiles.prob_registers * (2 if tiles.paired_steps else 1)


def _working_registers(tiles: Tiles) -> int:
    """What the loop of a consumer holds beside its arrays."""
    needed = WORKING_REGISTERS[tiles.consumers]
    if tiles.paired_steps and tiles.ov_depth <= WIDE_V:
        needed -= PAIRED_STEPS_SPARE_REGISTERS
    if tiles.flush_blocks and tiles.ov_depth > WIDE_V:
        needed += WIDE_V_REGISTERS[tiles.consumers]
    if _scales_lazy_p(tiles):
        needed += SCALED_P_REGISTERS[tiles.consumers]
    if tiles.consumers == 3:
        raw_scaled_p = tiles.scales_p and tiles.raw_rope and not tiles.lazy_softmax
        return needed + _three_consumers_steps(tiles) + (RAW_SCALED_P_REGISTERS if raw_scaled_p else 0)
    steps = _two_consumers_master_steps(tiles) if tiles.flush_blocks else _two_consumers_steps(tiles)
    return needed + _large_tile_registers(tiles) + steps


def _large_tile_registers(tiles: Tiles) -> int:
    """What V and the block of keys take where only two consumers have room for them."""
    needed = 0
    if tiles.scales_columns and tiles.ov_depth > WIDE_V and tiles.ov_depth % 32:
        needed += ODD_V_REGISTERS
    wide = WIDE_SCALED_P_BLOCK if tiles.scales_p else WIDE_BLOCK
    if tiles.flush_blocks and tiles.lazy_softmax and tiles.block_n > wide:
        needed += WIDE_BLOCK_REGISTERS
    return needed


def _scales_lazy_p(tiles: Tiles) -> bool:
    return tiles.scales_p and tiles.lazy_softmax


def _qk_steps(tiles: Tiles) -> int:
    """wgmma steps of Q*K, whose matrix descriptors take registers where they are many."""
    return (tiles.nope.row_bytes + tiles.rope_row.row_bytes) // K_STEP_BYTES


def _three_consumers_steps(tiles: Tiles) -> int:
    """What the steps of Q*K take of three consumers."""
    further = max(0, _qk_steps(tiles) - FREE_STEPS[3])
    scaled = SCALED_P_STEPS_REGISTERS if further and _scales_lazy_p(tiles) else 0
    return scaled + STEP_REGISTERS * further


def _two_consumers_steps(tiles: Tiles) -> int:
    """The same of two whose O has no master, as with 16-bit types."""
    steps = _qk_steps(tiles)
    some = SOME_STEPS_REGISTERS if steps > SOME_STEPS else 0
    return some + STEP_REGISTERS * max(0, steps - FREE_STEPS[2])


def _two_consumers_master_steps(tiles: Tiles) -> int:
    """The same of two whose O has a master, as with e4m3."""
    steps, raw = _qk_steps(tiles), 0
    if tiles.raw_rope and tiles.lazy_softmax and steps >= RAW_STEPS:
        raw = RAW_STEPS_REGISTERS if steps == RAW_STEPS else MORE_RAW_STEPS_REGISTERS
    return raw + MASTER_STEP_REGISTERS * max(0, steps - FREE_MASTER_STEPS)


def register_faults(tiles: Tiles, limits: ArchLimits, *, asked: tuple[str, ...]) -> tuple[Diagnostic, ...]:
    """A diagnostic where S, O and P of one thread leave too few registers for the rest of the loop.

    ``asked`` are the fields about tiles that the user set.
    """
    if registers_fit(tiles, limits):
        return ()
    needed, there = _needed_registers(tiles), split_registers(tiles, limits).consumer
    to_auto = _fields_to_leave(tiles, limits, asked)
    ways = _ways_to_fewer_registers(tiles, limits, asked)
    if not to_auto:
        ways += [*_transposed_v(tiles, limits, asked), *_online_softmax(tiles, limits)]
    last = f"leave {' and '.join(to_auto)} to auto" if to_auto else "take smaller dims"
    return (
        Diagnostic(
            code="register-overflow",
            field=(to_auto or ("dims",))[0],
            message=f"needs {needed} registers a thread, {tiles.consumers} consumers leave {there} to each",
            notes=(
                f"S {tiles.score_registers} + O {tiles.output_registers} + P {_prob_registers(tiles)} + "
                f"working registers {_working_registers(tiles)}",
                f"block_n {tiles.block_n}, dims.v {tiles.ov_depth}, {num_threads(tiles)} threads",
            ),
            help=f"set {' or '.join(ways)}, or {last}" if ways else last,
        ),
    )


def _ways_to_fewer_registers(tiles: Tiles, limits: ArchLimits, asked: tuple[str, ...]) -> list[str]:
    """Changes of single fields, or of two that belong together, each of which is enough."""
    ways = []
    for block_n in range(tiles.block_n - tiles.block_n_step, SMALLEST_BLOCK_N - 1, -tiles.block_n_step):
        if registers_fit(replace(tiles, block_n=block_n), limits):
            ways.append(f"tile.block_n: {block_n}")
            break
    if tiles.consumers > 2 and registers_fit(_two_consumers(tiles), limits):
        ways.append(two_consumers(asked))
    return ways


def _transposed_v(tiles: Tiles, limits: ArchLimits, asked: tuple[str, ...]) -> list[str]:
    """V stored transposed, where a producer that need not turn it leaves the consumers enough."""
    stored = replace(tiles, stored_transposed=True, v_raw_stages=0)
    possible = tiles.transposes_v and "pipeline.v_raw_stages" not in asked
    return ["layout.v: transposed"] if possible and registers_fit(stored, limits) else []


def _online_softmax(tiles: Tiles, limits: ArchLimits) -> list[str]:
    """The other softmax as a way out, where the lazy one is what needs too much."""
    online = replace(tiles, lazy_softmax=False)
    possible = tiles.lazy_softmax and tiles.asked_flush_blocks is None
    return ["softmax.variant: online"] if possible and registers_fit(online, limits) else []


def _fields_to_leave(tiles: Tiles, limits: ArchLimits, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Fields that the user set and that ``auto`` has to decide for registers to fit; none if they cannot."""
    narrow, rows = replace(tiles, block_n=SMALLEST_BLOCK_N), ("tile.block_m", "schedule.consumers")
    for changed, fields in (
        (narrow, ("tile.block_n",)),
        (_two_consumers(tiles), rows),
        (_two_consumers(narrow), ("tile.block_n", *rows)),
    ):
        if registers_fit(changed, limits):
            return tuple(field for field in fields if field in asked)
    return ()


def _two_consumers(tiles: Tiles) -> Tiles:
    return replace(tiles, consumers=2, block_m=2 * WGMMA_ROWS)


def two_consumers(asked: tuple[str, ...]) -> str:
    """How a user who set the fields ``asked`` gets a kernel with two consumers."""
    if "tile.block_m" not in asked:
        return "schedule.consumers: 2"
    rows = f"tile.block_m: {2 * WGMMA_ROWS}"
    return f"schedule.consumers: 2 with {rows}" if "schedule.consumers" in asked else rows
