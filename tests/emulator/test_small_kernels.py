"""Primitives of the host model, one small kernel each: what they compute, and the misuse that they report."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.emulator.small import aligned, run_small, source_with, tensor_map

POLICIES = (0, 1, 2)


def test_prmt_and_matrices() -> None:
    rng = np.random.default_rng(1)
    halves = rng.integers(0, 65536, (4, 8, 8), dtype=np.uint16)
    lanes = np.arange(32)
    for trans_load, trans_store in itertools.product((0, 1), repeat=2):
        source = source_with(
            "matrices", {"kTransposedLoad": str(trans_load), "kTransposedStore": str(trans_store)}
        )
        arrays = {
            "source": aligned(halves),
            "registers": np.zeros((32, 4), np.uint32),
            "out": aligned(np.zeros((4, 8, 8), np.uint16)),
            "permuted": np.zeros(32, np.uint32),
        }
        result = run_small(
            "matrices",
            source,
            arrays=arrays,
            outputs=("registers", "out", "permuted"),
            numbers={"selector": 0x7531},
            threads=32,
        )
        assert not result.hazards
        seen = halves.transpose(0, 2, 1) if trans_load else halves
        expected = np.stack(
            [
                seen[m, lanes // 4, lanes % 4 * 2].astype(np.uint32)
                | seen[m, lanes // 4, lanes % 4 * 2 + 1].astype(np.uint32) << 16
                for m in range(4)
            ],
            axis=1,
        )
        assert np.array_equal(arrays["registers"], expected)
        stored = seen.transpose(0, 2, 1) if trans_store else seen
        assert np.array_equal(arrays["out"], stored)
        bytes_of = np.stack([expected[:, 0], expected[:, 1]], axis=1).view(np.uint8)
        assert np.array_equal(arrays["permuted"].view(np.uint8).reshape(32, 4), bytes_of[:, [1, 3, 5, 7]])


def swizzled(image: np.ndarray, row_bytes: int) -> np.ndarray:
    """Where the copy engine puts each 16-byte unit: unit xor row of the pattern, as the PTX ISA draws it."""
    if row_bytes == 0:
        return image
    units = image.reshape(-1, row_bytes // 16, 16)
    moved = np.empty_like(units)
    for row in range(units.shape[0]):
        pattern = row * row_bytes // 128 % (row_bytes // 16)
        for unit in range(row_bytes // 16):
            moved[row, unit ^ pattern] = units[row, unit]
    return moved.reshape(image.shape)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("swizzle", (0, 32, 64, 128))
@pytest.mark.parametrize("rank", (1, 2, 3, 4, 5))
def test_bulk_copy(rank: int, swizzle: int, policy: int) -> None:
    rng = np.random.default_rng(rank * 8 + swizzle)
    inner = (swizzle or 64) // 2
    box = [inner, 8, 2, 2, 1][:rank]
    shape = (*(n + 3 for n in reversed(box[1:])), inner * 2 + 8)
    tensor = aligned(rng.integers(1, 65536, shape, dtype=np.uint16))
    size = int(np.prod(box)) * 2
    for origin in (
        [0] * rank,
        [-3, 2, -1, 1, 0][:rank],
        [inner + 9, 6, 3, 1, 3][:rank],
        [3 * inner, 0, 0, 0, 0][:rank],
    ):
        out = np.zeros(size, np.uint8)
        result = run_small(
            "copies",
            source_with("copies", {"kRank": str(rank), "kBytes": str(size), "kTxBytes": str(size)}),
            arrays={"out": out},
            maps=[tensor_map(tensor, box, swizzle)],
            mapped=[tensor],
            numbers=dict(zip("xyzwv", [*origin, *[0] * (5 - rank)], strict=True)),
            policy=policy,
        )
        assert not result.hazards
        expected = np.zeros(tuple(reversed(box)), np.uint16)
        for index in np.ndindex(*expected.shape):
            at = tuple(i + o for i, o in zip(index, reversed(origin), strict=True))
            if all(0 <= a < n for a, n in zip(at, shape, strict=True)):
                expected[index] = tensor[at]
        assert np.array_equal(out, swizzled(expected.view(np.uint8).reshape(-1), swizzle))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("constants", "kind"),
    [
        ({"kFault": "1"}, "race"),
        ({"kFault": "2"}, "proxy-fence"),
        ({"kFault": "3"}, "alignment"),
        ({"kFault": "4"}, "race"),
        ({"kTxBytes": "4080"}, "deadlock"),
        ({"kTxBytes": "4112"}, "deadlock"),
        ({"kRank": "2"}, "internal"),
    ],
)
def test_bulk_copy_misuse(constants: dict[str, str], kind: str, policy: int) -> None:
    tensor = aligned(np.ones((4, 16, 64), np.uint16))
    result = run_small(
        "copies",
        source_with("copies", constants),
        arrays={"out": np.zeros(4096, np.uint8)},
        maps=[tensor_map(tensor, (64, 16, 2), 128)],
        mapped=[tensor],
        numbers=dict.fromkeys("xyzwv", 0),
        policy=policy,
    )
    assert kind in {hazard.kind for hazard in result.hazards}


def test_tensor_map_larger_than_its_array() -> None:
    tensor = aligned(np.ones((4, 16, 64), np.uint16))
    result = run_small(
        "copies",
        source_with("copies", {}),
        arrays={"out": np.zeros(4096, np.uint8)},
        maps=[tensor_map(tensor, (64, 16, 2), 128)],
        mapped=[tensor[:1]],
        numbers=dict.fromkeys("xyzwv", 0),
    )
    assert [hazard.kind for hazard in result.hazards] == ["bounds"]


@pytest.mark.parametrize(("fault", "kind"), [(0, ""), (1, "proxy-fence"), (2, "race"), (3, "at-exit")])
def test_bulk_store(fault: int, kind: str) -> None:
    data = aligned(np.arange(1024, dtype=np.uint16).reshape(32, 32))
    out = aligned(np.zeros((40, 48), np.uint16))
    result = run_small(
        "stores",
        source_with("stores", {"kFault": str(fault)}),
        arrays={"source": data, "out": out},
        maps=[tensor_map(out, (32, 32), 0)],
        numbers={"x": 30, "y": -2},
        policy=1,
    )
    if kind:
        assert kind in {hazard.kind for hazard in result.hazards}
        return
    assert not result.hazards
    expected = np.zeros_like(out)
    expected[:30, 30:] = data[2:, :18]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("fault", "kind"), [(0, ""), (1, "race"), (2, "at-exit"), (3, "race")])
def test_word_copies(fault: int, kind: str, policy: int) -> None:
    data = np.arange(1, 97, dtype=np.uint32)
    out = np.full(96, 7, np.uint32)
    result = run_small(
        "words",
        source_with("words", {"kFault": str(fault)}),
        arrays={"source": data, "out": out},
        numbers={"valid": 50},
        threads=64,
        policy=policy,
    )
    kinds = {hazard.kind for hazard in result.hazards}
    if kind:
        assert kind in kinds
        return
    assert not kinds
    assert np.array_equal(out, np.where(np.arange(96) < 50, data, np.uint32(0)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (0, ""),
        (1, "race"),
        (2, "race"),
        (3, "uninitialised"),
        (4, "barrier"),
        (5, "deadlock"),
        (6, "barrier"),
        (7, "deadlock"),
        (8, "divergence"),
        (9, "bounds"),
        (10, "bounds"),
        (11, "alignment"),
        (12, "bounds"),
        (13, "barrier"),
        (14, "barrier"),
        (15, "registers"),
        (16, "deadlock"),
        (17, "registers"),
        (18, "divergence"),
        (19, "race"),
        (20, ""),
        (21, "barrier"),
        (22, ""),
        (23, "barrier"),
        (24, "barrier"),
    ],
)
def test_orders(case: int, kind: str, policy: int) -> None:
    out = np.zeros(128, np.uint32)
    result = run_small(
        "orders", source_with("orders", {"kCase": str(case)}), arrays={"out": out}, policy=policy, seed=case
    )
    kinds = {hazard.kind for hazard in result.hazards}
    assert kind in kinds if kind else not kinds
