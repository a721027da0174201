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
from dataclasses import dataclass, field, replace

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
TAIL_BEFORE = "has_tail(tile) && (kKStages > 1 || block == 0)"
TAIL_BEHIND = "kKStages == 1 && block > 0 && has_tail(read_work_tile(done))"
"""When the cleared tail is waited for before the first softmax of a head, and when behind it."""
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


CONDITIONS = (
    r"if\((has_turn|block>0|block==0|has_tail\(tile\)(?:&&\(kKStages>1\|\|block==0\))?"
    r"|kKStages==1&&block>0&&has_tail\(read_work_tile\(done\)\))\)(?:\{([^{}]*)\}|([^;{}]*;))"
)
CALLS = (
    r"(?P<wait>mbarrier_wait)\((?P<full>\w+)\(|(?P<turn>bar_sync)\(turn_barrier\((?:consumer|self\.index)\)"
    r"|(?P<pass>pass_turn)\(self,block\b|(?P<release>release_slot)\((?P<empty>\w+)\("
    r"|(?P<use>issue_(?:qk|pv))\(|\b(?P<ring>[kv])\.(?P<advance>advance)\(\)"
    r"|(?P<part>finish_scores(?=<)|release_keys|issue_in_turn)"
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
            assert not only_if, "a part of the work has no condition around it"
            yield from events(order, function(order, match["part"]))


@dataclass(frozen=True)
class Script:
    """The parts of a consumer's work, in the order of the source."""

    skip: list[Event]
    unseen: list[Event]
    """What follows the skipped blocks where none is left."""
    first: list[Event]
    step: list[Event]
    product: list[Event]
    """The last P * V; nothing where no block was left."""
    last: list[Event]


@functools.cache
def script(order: str) -> Script:
    text = function(order, "consumer_warpgroup")
    unseen = text.index("if(blocks.visible==0){")
    first = text.index("}else{", unseen)
    loop = text.index("for(--block;")
    product = text.rindex("mbarrier_wait(v_full")
    last = text.index("}", product)
    return Script(
        skip=events(order, function(order, "skip_block")),
        unseen=events(order, text[unseen:first]),
        first=events(order, text[first:loop]),
        step=events(order, function(order, "kv_step")),
        product=events(order, text[product:last]),
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


Block = tuple[int, int]
"""A head and one of its blocks."""


@dataclass
class Queries:
    """Of one consumer: the slot of its rows."""

    full: Mbarrier = field(default_factory=lambda: Mbarrier(1))
    empty: Mbarrier = field(default_factory=lambda: Mbarrier(WARPS))
    head: int | None = None
    released: list[int] = field(default_factory=list)


@dataclass
class Ring:
    stages: int
    consumers: int
    full: list[Mbarrier] = field(init=False)
    empty: list[Mbarrier] = field(init=False)
    holds: list[Block | None] = field(init=False)
    released: dict[int, list[Block]] = field(init=False)
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
        self, order: str, num_blocks: int, visible: tuple[int, ...], stages: tuple[int, int], heads: int = 1
    ) -> None:
        self.script, self.heads = script(order), heads
        self.num_blocks, self.visible = num_blocks, visible
        self.consumers = len(visible)
        self.k, self.v = (Ring(count, self.consumers) for count in stages)
        self.queries = [Queries() for _ in visible]
        self.turns = [NamedBarrier() for _ in visible]
        self.taken: list[tuple[int, int, int]] = []
        """Head, block and consumer of each turn, in time."""
        self.raw: list[Block] = []
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
        """One warp loads all in a fixed order: K(n), Q, K(n-1), V(n), K(n-2), V(n-1) ..., head by head."""
        k, v = State(self.k, 1), State(self.v, 1)
        in_one_ring = self.has_tail  # elsewhere V takes a way of its own, through the transpose warps
        for head, block in itertools.product(range(self.heads), range(self.num_blocks - 1, -2, -1)):
            if block >= 0:
                yield k.empty()
                self.k.holds[k.stage] = head, block
                self.k.full[k.stage].arrive()
                k.advance()
            if block + 1 == self.num_blocks:
                yield from self.loads_q(head)
            if block + 1 < self.num_blocks:
                if in_one_ring:
                    yield v.empty()
                    self._fill_v(v, (head, block + 1))
                else:
                    yield lambda: not self.raw  # one slot of raw V, the fewest
                    self.raw.append((head, block + 1))

    def loads_q(self, head: int) -> Process:
        for queries in self.queries:
            yield functools.partial(queries.empty.passes, 1 - head % 2)
            queries.head = head
            queries.full.arrive()

    def loads_v(self) -> Process:
        """The transpose warps; nothing where V is used as it lies in memory."""
        v = State(self.v, 1)
        for _ in range(0 if self.has_tail else self.heads * self.num_blocks):
            yield lambda: bool(self.raw)
            yield v.empty()
            self._fill_v(v, self.raw.pop())

    def _fill_v(self, v: State, block: Block) -> None:
        self.v.holds[v.stage] = block
        self.v.full[v.stage].arrive()
        v.advance()

    def tail(self) -> Process:
        v = State(self.v, 0)
        for head in range(self.heads):
            for queries in self.queries:
                yield functools.partial(queries.empty.passes, 1 - head % 2)
            yield v.full()
            yield lambda: True  # clearing takes its time
            first = head, self.num_blocks - 1
            assert self.v.holds[v.stage] == first, "the slot was filled again before its tail was cleared"
            assert self.tail_cleared.completed == head
            self.tail_cleared.arrive()
            for _ in range(self.num_blocks):
                v.advance()

    def consumer(self, index: int) -> Process:
        k, v = State(self.k, 0), State(self.v, 0)
        if index + 1 == self.consumers and self.num_blocks > 1:
            self.turns[0].come("arrive")
        for head in range(self.heads):
            yield functools.partial(self.queries[index].full.passes, head % 2)
            block = self.num_blocks - 1
            while block >= self.visible[index]:
                yield from self.play(self.script.skip, index, head, block, k, v)
                block -= 1
            if block < 0:
                yield from self.play(self.script.unseen, index, head, block, k, v)
            else:
                yield from self.play(self.script.first, index, head, block, k, v)
                for later in range(block - 1, -1, -1):
                    yield from self.play(self.script.step, index, head, later, k, v)
                yield from self.play(self.script.product, index, head, -1, k, v)
            yield from self.play(self.script.last, index, head, -1, k, v)

    def play(self, part: list[Event], index: int, head: int, block: int, k: State, v: State) -> Process:
        holds = {
            "has_turn": block + 1 < self.num_blocks,
            "block>0": block > 0,
            "block==0": block == 0,
            "has_tail(tile)": self.has_tail,
            glued(TAIL_BEFORE): self.has_tail and (self.k.stages > 1 or block == 0),
            glued(TAIL_BEHIND): self.has_tail and self.k.stages == 1 and block > 0,
            "": True,
        }
        for event in part:
            state = {"k": k, "v": v}.get(event.what[:1])
            if not holds[event.only_if]:
                continue
            if event.what == "v_tail_cleared":
                yield functools.partial(self.tail_cleared.passes, head % 2)
            elif event.does == "wait":
                yield state.full()
            elif event.does == "turn":
                self.turns[index].come("sync")
                mine = self.turns[index].generation + (1 if self.turns[index].came else 0)
                yield functools.partial(self.is_on, index, mine)
                self.taken.append((head, block, index))
            elif event.does == "pass":
                holder = self.taken[-1:]
                assert holder == [(head, block, index)], "a turn was passed on by one who did not have it"
                if block > 0 or index + 1 < self.consumers or head + 1 < self.heads:
                    self.turns[(index + 1) % self.consumers].come("arrive")
            elif event.does == "advance":
                state.advance()
            elif event.what == "q":
                queries = self.queries[index]
                assert queries.head == head, "Q was released that is not there"
                queries.released.append(head)
                queries.empty.arrive(WARPS)
            else:
                expected = head, block if event.what == "k" else block + 1
                if event == Event("use", "k"):
                    assert self.queries[index].released == list(range(head)), "Q is read that was released"
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


def assert_even(cta: Cta) -> None:
    """Turns, slots and queries after all roles have come to their ends."""
    heads, consumers = range(cta.heads), range(cta.consumers)
    # Each consumer has num_blocks - 1 turns of a head, round by round.
    rounds = range(cta.num_blocks - 2, -1, -1)
    assert cta.taken == list(itertools.product(heads, rounds, consumers))
    assert [barrier.came for barrier in cta.turns] == [[]] * cta.consumers
    # Each slot once per consumer and phase.
    blocks = list(itertools.product(heads, range(cta.num_blocks - 1, -1, -1)))
    for ring in (cta.k, cta.v):
        assert all(ring.released[index] == blocks for index in consumers)
        assert all(barrier.pending == 0 for barrier in ring.empty)
        assert sum(barrier.completed for barrier in ring.empty) == len(blocks)
    for queries in cta.queries:
        assert queries.released == list(heads)
        assert (queries.empty.pending, queries.empty.completed) == (0, cta.heads)
    assert cta.tail_cleared.completed == (cta.heads if cta.has_tail else 0)


@pytest.mark.parametrize("stages", [(1, 1), (2, 1), (1, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_turns_and_slots_come_out_even_whatever_is_skipped(
    order: str, consumers: int, stages: tuple[int, int]
) -> None:
    for seed, (num_blocks, visible) in enumerate(workloads(consumers, 5 if consumers == 2 else 4)):
        cta = Cta(order, num_blocks, visible, stages)
        cta.run(seed)
        assert_even(cta)


@pytest.mark.parametrize("stages", [(1, 1), (1, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("heads", [2, 3, 4])
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_they_do_so_however_many_heads_a_cta_has(
    order: str, consumers: int, heads: int, stages: tuple[int, int]
) -> None:
    if clears_v_tail(order) and stages[1] == 1:
        assert_one_head(order)
        return
    for seed, (num_blocks, visible) in enumerate(workloads(consumers, 3)):
        cta = Cta(order, num_blocks, visible, stages, heads)
        cta.run(seed)
        assert_even(cta)


def assert_one_head(order: str) -> None:
    """With one slot of V, the tail warp would take the fill before for that of its head."""
    said = {"pipeline": {"v_stages": 1}, "schedule": {"persistent": True}}
    assert make_plan(Spec.from_mapping(ORDERS[order] | said)).variants[0].launch.run_heads == 1


def spoil(**parts: Callable[[list[Event]], list[Event]]) -> Callable[[Script], Script]:
    """The script with parts changed."""
    return lambda told: replace(told, **{name: how(getattr(told, name)) for name, how in parts.items()})


SPOILT: list[tuple[str, Callable[[Script], Script]]] = [
    ("a skipped block without its turn", spoil(skip=lambda part: without(part, "turn"))),
    ("a skipped K slot that is kept", spoil(skip=lambda part: without(part, "release", "k"))),
    ("a skipped V slot that is kept", spoil(skip=lambda part: without(part, "release", "v"))),
    ("a skipped turn that is not passed on", spoil(skip=lambda part: without(part, "pass"))),
    ("a first block without its turn", spoil(first=lambda part: without(part, "turn"))),
    ("a step that releases V twice", spoil(step=lambda part: [*part, Event("release", "v")])),
    ("a V slot kept at the end", spoil(last=lambda part: without(part, "release", "v"))),
    ("a skipped V that nobody waited for", spoil(skip=lambda part: without(part, "wait", "v"))),
    ("a last V that nobody waited for", spoil(product=lambda part: without(part, "wait", "v"))),
    ("an unseen V that nobody waited for", spoil(unseen=lambda part: without(part, "wait", "v"))),
    ("queries that are kept", spoil(step=lambda part: without(part, "release", "q"))),
    (
        "queries that are kept where there is one block",
        spoil(first=lambda part: without(part, "release", "q")),
    ),
    ("unseen queries that are kept", spoil(unseen=lambda part: without(part, "release", "q"))),
    ("queries released twice", spoil(first=lambda part: [*part, Event("release", "q")])),
    (
        "queries released before the last product",
        spoil(step=lambda part: [Event("release", "q", "block==0"), *without(part, "release", "q")]),
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
        test_they_do_so_however_many_heads_a_cta_has(order, 2, 2, (3, 2))


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
    first = "if (done == 0 && consumer + 1 == kNumConsumers && tile.num_blocks > 1)"
    assert holds(consumer, first, "bar_arrive(turn_barrier(0), kTurnThreads")
    passes, last = function(order, "pass_turn"), "if (block > 0 || !is_last || !self.last_head)"
    assert glued("const bool is_last = self.index + 1 == kNumConsumers;") in passes
    assert holds(passes, last, "bar_arrive(turn_barrier(is_last ? 0 : self.index + 1), kTurnThreads")
    assert glued("self.last_head = tile.heads_left == 1;") in consumer
    assert "self.index=consumer;" in consumer
    # The loops: skipped blocks, the last visible one, masked ones, the others.
    head = "for (i32 done = 0;; ++done) {const u32 q_phase = (u32)done % 2;"
    one_head = consumer.index(glued(head + "const WorkTile tile = read_work_tile(done);"))
    for ring in ("kKStages> k{0, 0};", "kVStages> v{0, 0};"):
        assert 0 <= consumer.index(glued(f"PipelineState<{ring}")) < one_head
    assert consumer.endswith("if(finished.heads_left==1)return;}")
    assert "const WorkTile finished=read_work_tile(done);" in consumer
    assert "mbarrier_wait(q_full(consumer),q_phase);" in consumer
    loop = "i32 block = tile.num_blocks - 1; for (; block >= blocks.visible; --block)"
    assert holds(consumer, loop, "skip_block(k, v, self, block, block + 1 < tile.num_blocks)")
    assert holds(consumer, "else", "const bool has_turn = block + 1 < tile.num_blocks;")
    places = [consumer.index(part) for part in ("skip_block(", "if(blocks.visible==0){", "for(--block;")]
    assert places == sorted(places)
    assert holds(consumer, "for (--block; block >= unmasked; --block)", "kv_step<true>(")
    clears = ("has_tail(tile)", TAIL_BEFORE, TAIL_BEHIND)
    (tail,) = {
        holds(consumer, f"if ({item})", "mbarrier_wait(v_tail_cleared(), q_phase);") for item in clears
    }
    assert tail is clears_v_tail(order) is ("v_tail_cleared" in consumer)
    assert not tail or consumer.index("v_tail_cleared") < consumer.index("for(--block;")
    # The producer loads every block of the CTA, whoever sees it.
    loads = function(order, "load_warp")
    assert "i32 block=tile.num_blocks-1;" in loads
    loads = loads.replace("--block){const WorkTile tile=read_work_tile(done);", "--block){")
    assert holds(loads, "for (; block >= -1; --block)", "if (block >= 0)")
    assert "if(block+1<tile.num_blocks)" in loads
    assert holds(loads, "if (block + 1 == tile.num_blocks)", "for (u32 consumer = 0;")
    assert "PipelineState<1>q{0,1};" in loads and "mbarrier_wait(q_empty(consumer),q.phase);" in loads
    if clears_v_tail(order):
        clears = function(order, "tail_warp")
        assert "PipelineState<1>q{0,1};" in clears and "mbarrier_wait(q_empty(consumer),q.phase);" in clears
        assert "skip_blocks(v,tile.num_blocks);}while(next_head(tile));" in clears


def test_the_script_of_a_consumer_is_read_whole() -> None:
    for order in ORDERS:
        told = script(order)
        assert [event.does for event in told.skip].count("wait") == 2
        assert {event.only_if for event in told.skip} == {"", "has_turn"}
        releases = events(order, function(order, "finish_scores"))
        assert releases == [Event("release", "k"), Event("release", "q", "block==0")]
        assert told.unseen[-2:] == [Event("release", "q"), Event("wait", "v_full")]
        assert {event.what for event in told.unseen[:-2]} <= {"v_tail_cleared"}
        for part in (told.skip, told.first, told.step):
            assert [event.does for event in part].count("turn") == 1
            assert [event.does for event in part].count("pass") == 1
            assert [event.what for event in part if event.does == "release"] != []
        assert told.product == [Event("wait", "v_full"), Event("use", "v")]
        assert told.last == [Event("release", "v"), Event("advance", "v")]
    assert events("ping_pong", function("ping_pong", "kv_step_lazy")) == script("ping_pong").step
