"""Which KV blocks a warpgroup computes, masks and flushes after, by a model of the source's own formulas."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

import pytest

from mla_codegen.plan import make_plan
from mla_codegen.render import render
from mla_codegen.spec import Spec

QKV = ("e4m3", "bf16")


@functools.cache
def code(qkv: str) -> str:
    """The source without comments and pragmas, and without blanks that mean nothing."""
    scales = {"q": "token", "k": "token", "rope": "prescaled"} if qkv == "e4m3" else {}
    dims = {"nope": 128, "rope": 64, "v": 128}
    data = {"name": "k", "arch": "sm_90a", "dims": dims, "dtypes": {"qkv": qkv}, "scales": scales}
    return glued(render(make_plan(Spec.from_mapping(data))))


def glued(text: str) -> str:
    return re.sub(r" ?([^\w ]) ?", r"\1", " ".join(re.sub(r"//.*|#pragma.*", "", text).split()))


def visible_keys(row: int, q_len: int, kv_len: int, causal: bool) -> int:
    return min(max(row + 1 + kv_len - q_len, 0), kv_len) if causal else kv_len


def row_blocks(
    first_row: int, rows: int, q_len: int, kv_len: int, block_n: int, causal: bool
) -> tuple[int, int]:
    end = first_row + rows
    if end <= 0:
        return 0, 0
    visible = -(-visible_keys(end - 1, q_len, kv_len, causal) // block_n)
    return visible, int((visible_keys(first_row, q_len, kv_len, causal) - 1) / block_n)


@pytest.mark.parametrize("qkv", QKV)
def test_row_blocks_is_the_function_above(qkv: str) -> None:
    body = code(qkv).partition(" row_blocks(")[2].partition("return blocks;}")[0]
    for line in (
        "end = first_row + rows;",
        "RowBlocks blocks{0, 0};",
        "if (end <= 0) return blocks;",
        "blocks.visible = (visible_keys(tile, end - 1) + kBlockN - 1) / kBlockN;",
        "blocks.unmasked = (visible_keys(tile, first_row) - 1) / kBlockN;",
    ):
        assert glued(line) in body


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("rows", "consumers"), [(4, 2), (4, 3)])
@pytest.mark.parametrize("block_n", [3, 4, 6])
def test_no_row_misses_a_key_and_masks_are_where_they_are_needed(
    block_n: int, rows: int, consumers: int, causal: bool
) -> None:
    # Small numbers in place of 64 rows and 64 keys or more.
    for q_len, kv_len in itertools.product(range(1, 2 * rows * consumers + 1), range(0, 20)):
        keys = functools.partial(visible_keys, q_len=q_len, kv_len=kv_len, causal=causal)
        blocks = functools.partial(row_blocks, q_len=q_len, kv_len=kv_len, block_n=block_n, causal=causal)
        # The last tile ends with the sequence; the first one may begin before it.
        for row_begin in range(q_len - rows * consumers, -rows * consumers, -rows * consumers):
            num_blocks, _ = blocks(row_begin, rows * consumers)
            groups = [(row_begin + rows * index, rows) for index in range(consumers)]
            assert max(blocks(*group)[0] for group in groups) == num_blocks
            for group in groups:
                visible, unmasked = blocks(*group)
                # The first block that a warpgroup computes is computed as a masked one.
                assert 0 <= unmasked <= max(visible - 1, 0)
                for row in range(max(group[0], 0), group[0] + rows):
                    assert keys(row) <= visible * block_n
                    assert keys(row) >= unmasked * block_n
                    # Its first key from behind lies in a masked block.
                    assert keys(row) == 0 or unmasked <= (keys(row) - 1) // block_n < visible


def windows(visible: int, unmasked: int, most_masked: int, flush_blocks: int) -> Iterator[str | int]:
    """The unmasked steps and flushes of one warpgroup, as the loops of the source go."""
    block = min(visible - 2, unmasked - 1)
    end = block + 1 + most_masked - flush_blocks
    while block >= 0:
        while block >= end and block >= 0:
            yield block
            block -= 1
        if block < end:
            yield "flush"
        end -= flush_blocks


def test_the_windows_of_the_flush_follow_the_blocks_of_the_warpgroup() -> None:
    consumer = code("e4m3").partition(" consumer_warpgroup(")[2]
    windows_of_source = (
        "for (i32 end = block + 1 + kMaskedBlocks - kFlushBlocks; block >= 0; end -= kFlushBlocks) {"
    )
    steps = "for (; block >= end && block >= 0; --block)"
    assert re.search(re.escape(glued(windows_of_source + steps)) + r"\{?kv_step<false>\(", consumer)
    assert re.search(r"if\(block<end\)\{?flush_output\(", consumer)
    numbers = itertools.product(range(1, 20), range(1, 4), range(4), range(1, 8))
    for visible, masked, more, flush_blocks in numbers:
        unmasked = max(visible - masked, 0)
        found = list(windows(visible, unmasked, masked + more, flush_blocks))
        assert [item for item in found if item != "flush"] == list(
            range(min(visible - 2, unmasked - 1), -1, -1)
        )
        runs = [
            len(list(run)) for is_step, run in itertools.groupby(found, lambda i: i != "flush") if is_step
        ]
        assert all(run <= flush_blocks for run in runs)
        # The products of the masked steps are the first ones of the first window.
        first = found.index("flush") if "flush" in found else len(found)
        assert first == 0 or masked - 1 + first <= flush_blocks
        # P * V of block 0 comes after the loops: it joins the steps since the last flush.
        last = len(found) - 1 - found[::-1].index("flush") if "flush" in found else -1
        assert len(found) - 1 - last + 1 <= max(flush_blocks, min(visible, masked + 1))


@pytest.mark.parametrize("block_n", range(64, 193, 32))
def test_as_many_blocks_are_masked_as_the_planner_counts(block_n: int) -> None:
    data = {
        "name": "k",
        "arch": "sm_90a",
        "dims": {"nope": 32, "rope": 0, "v": 32},
        "dtypes": {"qkv": "e4m3"},
        "tile": {"block_n": block_n},
        "scales": {"q": "token", "k": "token", "v": "none"},
    }
    found = re.search(r"kMaskedBlocks = (\d+);", render(make_plan(Spec.from_mapping(data))))
    assert found
    masked = {
        visible - unmasked
        for kv_len in range(64, 64 + 3 * block_n)
        for visible, unmasked in [row_blocks(kv_len - 64, 64, kv_len, kv_len, block_n, True)]
    }
    assert max(masked) == int(found[1])
