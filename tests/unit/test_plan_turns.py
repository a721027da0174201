"""Who waits for whom, read off the rendered consumers and run against a model of the other roles.

Whatever blocks a warpgroup skips, turns and slots have to come out even: one that took fewer turns than the
others, or released a slot twice, would stop the CTA or hand out a slot that is still read.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pytest

from mla_codegen.plan import Plan, make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec

BASE: dict[str, object] = {"name": "k", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
FP8 = BASE | {"dtypes": {"qkv": "e4m3"}, "scales": {"q": "token", "k": "token", "rope": "prescaled"}}
BF16 = BASE | {"dtypes": {"qkv": "bf16"}}
V_SCALED = FP8 | {"scales": {"q": "token", "k": "tensor", "v": "token", "rope": "raw"}}
ORDERS = {
    "turns": FP8,
    "ping_pong": BF16,
    "turns_v_scaled": V_SCALED,  # releases K once softmax has read the scales of V
    "turns_v_transposed": FP8 | {"layout": {"v": "transposed"}},  # V comes from the load warp, and has a tail
}
WARPS = 4
"""Of a consumer warpgroup; one lane of each releases a slot."""


@functools.cache
def plan(order: str, consumers: int = 2) -> Plan:
    return make_plan(Spec.from_mapping(ORDERS[order] | {"schedule": {"consumers": consumers}}))


def clears_v_tail(order: str) -> bool:
    return plan(order).variants[0].features.clears_v_tail


@functools.cache
def code(order: str) -> str:
    """The source without comments and pragmas, and without blanks that mean nothing."""
    return glued(render(plan(order)))


def glued(text: str) -> str:
    return re.sub(r" ?([^\w ]) ?", r"\1", " ".join(re.sub(r"//.*|#pragma.*", "", text).split()))


def holds(text: str, condition: str, statement: str) -> bool:
    """Whether the statement starts what the text does under the condition, in braces or without."""
    return bool(re.search(rf"{re.escape(glued(condition))}\{{?{re.escape(glued(statement))}", text))


def function(order: str, called: str) -> str:
    text = code(order)
    start = re.search(rf"__device__ __forceinline__ \w+ {called}\([^{{}};]*\)\{{", text)
    assert start, f"no function {called}"
    depth, end = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start.end() : end - 1]


@dataclass(frozen=True)
class Event:
    """One step of a consumer that others can notice; `only_if` is its condition, or empty."""

    does: str
    what: str = ""
    only_if: str = ""


CONDITIONS = r"if\((has_turn|block>0|has_tail\(tile\))\)(?:\{([^{}]*)\}|([^;{}]*;))"
CALLS = (
    r"(?P<wait>mbarrier_wait)\((?P<full>\w+)\(|(?P<turn>bar_sync)\(turn_barrier\((?:consumer|self\.index)\)"
    r"|(?P<pass>pass_turn)\((?:consumer|self\.index),block\b|(?P<release>release_slot)\((?P<empty>\w+)\("
    r"|(?P<use>issue_(?:qk|pv))\(|\b(?P<ring>[kv])\.(?P<advance>advance)\(\)|(?P<scores>finish_scores)<"
)


def events(order: str, text: str) -> list[Event]:
    """What the text does, in its order."""
    found, done = [], 0
    for match in re.finditer(CONDITIONS, text):
        found += plain_events(order, text[done : match.start()], "")
        found += plain_events(order, match[2] or match[3], match[1])
        done = match.end()
    return [*found, *plain_events(order, text[done:], "")]


def plain_events(order: str, text: str, only_if: str) -> Iterator[Event]:
    for match in re.finditer(CALLS, text):
        if match["wait"]:
            yield Event("wait", match["full"], only_if)
        elif match["turn"]:
            yield Event("turn", only_if=only_if)
        elif match["pass"]:
            yield Event("pass", only_if=only_if)
        elif match["release"]:
            yield Event("release", match["empty"][0], only_if)
        elif match["use"]:
            yield Event("use", "k" if match["use"] == "issue_qk" else "v", only_if)
        elif match["advance"]:
            yield Event("advance", match["ring"], only_if)
        else:
            yield from plain_events(order, function(order, "finish_scores"), only_if)


@dataclass(frozen=True)
class Script:
    """The parts of a consumer's work, in the order of the source."""

    skip: list[Event]
    first: list[Event]
    step: list[Event]
    last: list[Event]


@functools.cache
def script(order: str) -> Script:
    text = function(order, "consumer_warpgroup")
    first = text.index("if(block>=0){")
    loop = text.index("for(--block;")
    last = text.rindex("mbarrier_wait(v_full")
    return Script(
        skip=events(order, function(order, "skip_block")),
        first=events(order, text[first:loop]),
        step=events(order, function(order, "kv_step")),
        last=events(order, text[last:]),
    )


@dataclass
class Mbarrier:
    arrivals: int
    pending: int = 0
    completed: int = 0

    def arrive(self, times: int = 1) -> None:
        for _ in range(times):
            self.pending += 1
            if self.pending == self.arrivals:
                self.pending, self.completed = 0, self.completed + 1

    def passes(self, phase: int) -> bool:
        """A wait on a parity is over once the phase of that parity is complete."""
        return self.completed % 2 != phase


@dataclass
class Ring:
    stages: int
    consumers: int
    full: list[Mbarrier] = field(init=False)
    empty: list[Mbarrier] = field(init=False)
    holds: list[int | None] = field(init=False)
    released: dict[int, list[int]] = field(init=False)
    """By consumer, the blocks in the order in which it gave their slots back."""

    def __post_init__(self) -> None:
        self.full = [Mbarrier(1) for _ in range(self.stages)]
        self.empty = [Mbarrier(WARPS * self.consumers) for _ in range(self.stages)]
        self.holds = [None] * self.stages
        self.released = {consumer: [] for consumer in range(self.consumers)}


@dataclass
class State:
    ring: Ring
    phase: int
    stage: int = 0

    def advance(self) -> None:
        self.stage += 1
        if self.stage == self.ring.stages:
            self.stage, self.phase = 0, self.phase ^ 1

    def full(self) -> Callable[[], bool]:
        barrier, phase = self.ring.full[self.stage], self.phase
        return lambda: barrier.passes(phase)

    def empty(self) -> Callable[[], bool]:
        barrier, phase = self.ring.empty[self.stage], self.phase
        return lambda: barrier.passes(phase)


@dataclass
class NamedBarrier:
    """Of two warpgroups: complete once two have come, whoever they are."""

    came: list[str] = field(default_factory=list)
    generation: int = 0

    def come(self, how: str) -> None:
        self.came.append(how)
        if len(self.came) == 2:
            assert sorted(self.came) == ["arrive", "sync"], f"a turn began by {self.came}"
            self.came, self.generation = [], self.generation + 1


Process = Generator[Callable[[], bool], None, None]


class Cta:
    """One CTA: the consumers as the source has them, beside the producer of both rings."""

    def __init__(
        self, order: str, num_blocks: int, visible: tuple[int, ...], stages: tuple[int, int]
    ) -> None:
        self.script = script(order)
        self.num_blocks, self.visible = num_blocks, visible
        self.consumers = len(visible)
        self.k, self.v = (Ring(count, self.consumers) for count in stages)
        self.turns = [NamedBarrier() for _ in visible]
        self.taken: list[tuple[int, int]] = []
        """Block and consumer of each turn, in time."""
        self.raw: list[int] = []
        self.has_tail = clears_v_tail(order)
        self.tail_cleared = Mbarrier(1)

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        roles = [self.consumer(index) for index in range(self.consumers)]
        roles += [self.loads_k(), self.loads_v(), *([self.tail()] if self.has_tail else [])]
        waiting: list[tuple[Process, Callable[[], bool]]] = [(role, lambda: True) for role in roles]
        while waiting:
            ready = [item for item in waiting if item[1]()]
            assert ready, f"all wait; turns taken: {self.taken}"
            chosen = chance.choice(ready)
            waiting.remove(chosen)
            condition = next(chosen[0], None)
            if condition is not None:
                waiting.append((chosen[0], condition))

    def loads_k(self) -> Process:
        """One warp loads both rings in a fixed order: K(n), K(n-1), V(n), K(n-2), V(n-1) ..."""
        k, v = State(self.k, 1), State(self.v, 1)
        in_one_ring = self.has_tail  # elsewhere V takes a way of its own, through the transpose warps
        for block in range(self.num_blocks - 1, -2, -1):
            if block >= 0:
                yield k.empty()
                self.k.holds[k.stage] = block
                self.k.full[k.stage].arrive()
                k.advance()
            if block + 1 < self.num_blocks:
                if in_one_ring:
                    yield v.empty()
                    self._fill_v(v, block + 1)
                else:
                    yield lambda: not self.raw  # one slot of raw V, the fewest
                    self.raw.append(block + 1)

    def loads_v(self) -> Process:
        """The transpose warps; nothing where V is used as it lies in memory."""
        v = State(self.v, 1)
        for _ in range(0 if self.has_tail else self.num_blocks):
            yield lambda: bool(self.raw)
            yield v.empty()
            self._fill_v(v, self.raw.pop())

    def _fill_v(self, v: State, block: int) -> None:
        self.v.holds[v.stage] = block
        self.v.full[v.stage].arrive()
        v.advance()

    def tail(self) -> Process:
        yield lambda: self.v.full[0].passes(0)
        yield lambda: True  # clearing takes its time
        assert self.v.holds[0] == self.num_blocks - 1, "the slot was filled again before its tail was cleared"
        self.tail_cleared.arrive()

    def consumer(self, index: int) -> Process:
        k, v = State(self.k, 0), State(self.v, 0)
        if index + 1 == self.consumers and self.num_blocks > 1:
            self.turns[0].come("arrive")
        block = self.num_blocks - 1
        while block >= self.visible[index]:
            yield from self.play(self.script.skip, index, block, k, v)
            block -= 1
        if block >= 0:
            yield from self.play(self.script.first, index, block, k, v)
            yield from self.waits_for_tail()
            for later in range(block - 1, -1, -1):
                yield from self.play(self.script.step, index, later, k, v)
            yield from self.play(self.script.last, index, -1, k, v)

    def waits_for_tail(self) -> Process:
        if self.has_tail:
            yield lambda: self.tail_cleared.passes(0)

    def play(self, part: list[Event], index: int, block: int, k: State, v: State) -> Process:
        holds = {
            "has_turn": block + 1 < self.num_blocks,
            "block>0": block > 0,
            "has_tail(tile)": False,  # played by waits_for_tail
            "": True,
        }
        for event in part:
            state = {"k": k, "v": v}.get(event.what[:1])
            if not holds[event.only_if]:
                continue
            if event.does == "wait":
                yield state.full()
            elif event.does == "turn":
                self.turns[index].come("sync")
                mine = self.turns[index].generation + (1 if self.turns[index].came else 0)
                yield functools.partial(self.is_on, index, mine)
                self.taken.append((block, index))
            elif event.does == "pass":
                assert self.taken[-1:] == [(block, index)], "a turn was passed on by one who did not have it"
                if block > 0 or index + 1 < self.consumers:
                    self.turns[(index + 1) % self.consumers].come("arrive")
            elif event.does == "advance":
                state.advance()
            else:
                expected = block if event.what == "k" else block + 1
                assert state.ring.holds[state.stage] == expected, f"{event} finds another block"
                if event.does == "release":
                    state.ring.released[index].append(expected)
                    state.ring.empty[state.stage].arrive(WARPS)

    def is_on(self, index: int, generation: int) -> bool:
        return self.turns[index].generation >= generation


def workloads(consumers: int, most_blocks: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every number of blocks with every part of them that each consumer may see; one sees them all."""
    for num_blocks in range(1, most_blocks + 1):
        for visible in itertools.product(range(num_blocks + 1), repeat=consumers):
            if max(visible) == num_blocks:
                yield num_blocks, visible


@pytest.mark.parametrize("stages", [(1, 1), (2, 1), (1, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_turns_and_slots_come_out_even_whatever_is_skipped(
    order: str, consumers: int, stages: tuple[int, int]
) -> None:
    for seed, (num_blocks, visible) in enumerate(workloads(consumers, 5 if consumers == 2 else 4)):
        cta = Cta(order, num_blocks, visible, stages)
        cta.run(seed)
        # Each consumer has num_blocks - 1 turns, round by round.
        rounds = range(num_blocks - 2, -1, -1)
        assert cta.taken == [(block, index) for block in rounds for index in range(consumers)]
        assert [barrier.came for barrier in cta.turns] == [[]] * consumers
        # Each slot once per consumer and phase; V of block 0 comes last, and nobody waits for its slot.
        for index in range(consumers):
            assert cta.k.released[index] == list(range(num_blocks - 1, -1, -1))
            assert cta.v.released[index] == list(range(num_blocks - 1, 0, -1))
        for barrier in (*cta.k.empty, *cta.v.empty):
            assert barrier.pending == 0
        assert sum(barrier.completed for barrier in cta.k.empty) == num_blocks
        assert sum(barrier.completed for barrier in cta.v.empty) == num_blocks - 1


SPOILT: list[tuple[str, Callable[[Script], Script]]] = [
    ("a skipped block without its turn", lambda s: Script(without(s.skip, "turn"), s.first, s.step, s.last)),
    (
        "a skipped K slot that is kept",
        lambda s: Script(without(s.skip, "release", "k"), s.first, s.step, s.last),
    ),
    (
        "a skipped V slot that is kept",
        lambda s: Script(without(s.skip, "release", "v"), s.first, s.step, s.last),
    ),
    (
        "a skipped turn that is not passed on",
        lambda s: Script(without(s.skip, "pass"), s.first, s.step, s.last),
    ),
    ("a first block without its turn", lambda s: Script(s.skip, without(s.first, "turn"), s.step, s.last)),
    (
        "a step that releases V twice",
        lambda s: Script(s.skip, s.first, [*s.step, Event("release", "v")], s.last),
    ),
    (
        "a V slot released at the end",
        lambda s: Script(s.skip, s.first, s.step, [*s.last, Event("release", "v")]),
    ),
    (
        "a skipped V that nobody waited for",
        lambda s: Script(without(s.skip, "wait", "v"), s.first, s.step, s.last),
    ),
]


def without(part: list[Event], does: str, what: str = "") -> list[Event]:
    """The part without what it `does`, of which there has to be something."""
    kept = [event for event in part if not (event.does == does and event.what.startswith(what))]
    assert len(kept) < len(part)
    return kept


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", [name for name, _ in SPOILT])
def test_the_model_notices_what_would_go_wrong(
    order: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = dict(SPOILT)[fault](script(order))
    monkeypatch.setitem(globals(), "script", lambda _: spoilt)
    with pytest.raises(AssertionError):
        test_turns_and_slots_come_out_even_whatever_is_skipped(order, 2, (2, 1))


@pytest.mark.parametrize("order", ORDERS)
def test_what_the_model_takes_for_granted(order: str) -> None:
    text, consumer = code(order), function(order, "consumer_warpgroup")
    # One arrival a warp, and as many as the planner counts; one arrival of a warpgroup per turn.
    assert holds(function(order, "release_slot"), "if (lane == 0)", "mbarrier_arrive(empty_barrier")
    for consumers in (2, 3):
        (variant,) = plan(order, consumers).variants
        arrivals = {item.arrivals for item in variant.mbarriers if item.name in ("k_empty", "v_empty")}
        assert arrivals == {WARPS * consumers}
        assert {item.threads for item in variant.named_barriers} == {2 * 128}
    assert text.count("bar_arrive(turn_barrier(") == 2
    first = "if (consumer + 1 == kNumConsumers && tile.num_blocks > 1)"
    assert holds(consumer, first, "bar_arrive(turn_barrier(0), kTurnThreads")
    passes, last = function(order, "pass_turn"), "if (block > 0 || consumer + 1 < kNumConsumers)"
    following = "consumer + 1 < kNumConsumers ? consumer + 1 : 0"
    assert holds(passes, last, f"bar_arrive(turn_barrier({following}), kTurnThreads")
    assert "self.index=consumer;" in consumer
    # The loops: skipped blocks, the last visible one, masked ones, the others.
    for ring in ("kKStages> k{0, 0};", "kVStages> v{0, 0};"):
        assert glued(f"PipelineState<{ring}") in consumer
    loop = "i32 block = tile.num_blocks - 1; for (; block >= blocks.visible; --block)"
    assert holds(consumer, loop, "skip_block(k, v, self, block, block + 1 < tile.num_blocks)")
    assert holds(consumer, "if (block >= 0)", "const bool has_turn = block + 1 < tile.num_blocks;")
    assert consumer.index("skip_block(") < consumer.index("if(block>=0)") < consumer.index("for(--block;")
    assert holds(consumer, "for (--block; block >= blocks.unmasked; --block)", "kv_step<true>(")
    tail = holds(consumer, "if (has_tail(tile))", "mbarrier_wait(v_tail_cleared(), 0);")
    assert tail is clears_v_tail(order) is ("v_tail_cleared" in consumer)
    assert not tail or consumer.index("v_tail_cleared") < consumer.index("for(--block;")
    # The producer loads every block of the CTA, whoever sees it.
    loads = function(order, "load_warp")
    assert "i32 block=tile.num_blocks-1;" in loads
    assert holds(loads, "for (; block >= -1; --block)", "if (block >= 0)")
    assert "if(block+1<tile.num_blocks)" in loads


def test_the_script_of_a_consumer_is_read_whole() -> None:
    for order in ORDERS:
        told = script(order)
        assert [event.does for event in told.skip].count("wait") == 2
        assert {event.only_if for event in told.skip} == {"", "has_turn"}
        releases = [item.does for item in events(order, function(order, "finish_scores"))]
        assert releases == ["release"]
        for part in (told.skip, told.first, told.step):
            assert [event.does for event in part].count("turn") == 1
            assert [event.does for event in part].count("pass") == 1
            assert [event.what for event in part if event.does == "release"] != []
        assert [(event.does, event.what) for event in told.last] == [("wait", "v_full"), ("use", "v")]
