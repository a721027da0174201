"""Requests for tensor maps, and the cache of encoded ones."""

from __future__ import annotations

import pytest

from mla_codegen.runtime.launch import map_request
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.tensormap import TensorMapCache, TensorMapRequest
from tests.unit.plan_fixture import HEADS, TOTAL_Q, good_views, make_plan

REQUEST = TensorMapRequest("q_nope_map", "e4m3", 4096, (128, 70, 8), (1024, 128), (128, 64, 1), 128)


class StubEncoder:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.requests: list[TensorMapRequest] = []

    def __call__(self, request: TensorMapRequest) -> bytes:
        self.requests.append(request)
        return len(self.requests).to_bytes(128, "little")


def test_request_follows_the_plan() -> None:
    views = good_views()
    (q_nope, *_) = make_plan().variants[0].tensor_maps
    request = map_request(q_nope, views)
    assert request == REQUEST._replace(address=views["q_nope"].pointer, extents=(128, TOTAL_Q, HEADS))


def test_request_of_a_slice_keeps_its_strides() -> None:
    views = good_views()
    views["q_nope"] = views["q_nope"]._replace(strides=(HEADS * 192 * 2, 192 * 2, 2), item_bytes=2)
    request = map_request(make_plan().variants[0].tensor_maps[0], views)
    assert request.strides == (HEADS * 384, 384)


@pytest.mark.parametrize(
    "other",
    [
        REQUEST._replace(address=8192),
        REQUEST._replace(extents=(128, 71, 8)),
        REQUEST._replace(strides=(2048, 128)),
        REQUEST._replace(box=(128, 32, 1)),
        REQUEST._replace(swizzle_bytes=64),
        REQUEST._replace(dtype="bf16"),
    ],
)
def test_every_difference_is_another_entry(other: TensorMapRequest) -> None:
    encoder = StubEncoder()
    maps = TensorMapCache(encoder)
    first = maps.get(0, REQUEST)
    assert maps.get(0, other) != first
    assert maps.get(1, REQUEST) != first
    assert maps.get(0, REQUEST) == first
    assert len(encoder.requests) == 3


def test_cache_is_bounded_and_drops_the_least_recently_used() -> None:
    encoder = StubEncoder()
    maps = TensorMapCache(encoder, limit=2)
    requests = [REQUEST._replace(address=16 * number) for number in range(3)]
    maps.get(0, requests[0])
    maps.get(0, requests[1])
    maps.get(0, requests[0])
    maps.get(0, requests[2])
    assert len(maps) == 2
    maps.get(0, requests[0])
    assert len(encoder.requests) == 3
    maps.get(0, requests[1])
    assert len(encoder.requests) == 4


def test_description_has_the_whole_request() -> None:
    assert REQUEST.describe() == (
        "q_nope_map: CU_TENSOR_MAP_DATA_TYPE_UINT8, rank 3, address 0x1000, extents [128, 70, 8], strides "
        "[1024, 128] B, box [128, 64, 1], element strides [1, 1, 1], swizzle 128 B, L2 promotion 256 B"
    )


def test_params_have_natural_alignment() -> None:
    layout = params_layout(make_plan().variants[0].params)
    # Three pointers, two i64, nine 4-byte members and a float: 24 + 16 + 40.
    assert layout.size_bytes == 80
    with_hole = params_layout(make_plan(scaled=False).variants[0].params)
    assert (with_hole.format, with_hole.size_bytes) == ("<QQQqqiiiIIIIf", 72)
