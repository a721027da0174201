"""Tensor maps: what the driver is asked for, and the layout of Params."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest

from mla_codegen.errors import LaunchError
from mla_codegen.runtime.launch import map_request
from mla_codegen.runtime.packing import params_layout
from mla_codegen.runtime.tensormap import PlacedTensorMap, TensorMapRequest
from tests.unit.plan_fixture import HEADS, TOTAL_Q, FakeDriver, MapRequest, good_forms, make_plan

REQUEST = TensorMapRequest("q_nope_map", "e4m3", 4096, (128, 70, 8), (1024, 128), (128, 64, 1), 128)


def test_request_follows_the_plan() -> None:
    (q_nope, *_) = make_plan().variants[0].tensor_maps
    request = map_request(q_nope, good_forms()["q_nope"], 4096)
    assert request == REQUEST._replace(extents=(128, TOTAL_Q, HEADS))


def test_request_of_a_slice_keeps_its_strides() -> None:
    form = dataclasses.replace(good_forms()["q_nope"], strides=(HEADS * 192 * 2, 192 * 2, 2), item_bytes=2)
    request = map_request(make_plan().variants[0].tensor_maps[0], form, 4096)
    assert request.strides == (HEADS * 384, 384)


def test_a_map_is_encoded_once_and_moved() -> None:
    driver = FakeDriver()
    raw = ctypes.create_string_buffer(192)
    place = -(-ctypes.addressof(raw) // 64) * 64
    tensor_map = PlacedTensorMap(driver, place, REQUEST)
    assert driver.requests == [MapRequest(0, 4096, (128, 70, 8), (1024, 128), (128, 64, 1), 3)]
    tensor_map.move_to(8192)
    assert ctypes.string_at(place, 8) == (8192).to_bytes(8, "little")
    driver.encode_status = 1
    tensor_map.move_to(8192)
    with pytest.raises(LaunchError, match=r"cuTensorMapReplaceAddress gave CUDA_ERROR_1 .* address 0x3000"):
        tensor_map.move_to(0x3000)
    assert len(driver.requests) == 1


def test_description_has_the_whole_request() -> None:
    assert REQUEST.describe() == (
        "q_nope_map: CU_TENSOR_MAP_DATA_TYPE_UINT8, rank 3, address 0x1000, extents [128, 70, 8], strides "
        "[1024, 128] B, box [128, 64, 1], element strides [1, 1, 1], swizzle 128 B, L2 promotion 256 B"
    )


def test_params_have_natural_alignment() -> None:
    layout = params_layout(make_plan().variants[0].params)
    # Three pointers, two i64, seven of 4 bytes, a hole, two pointers, two i64, a float, a hole.
    assert layout.size_bytes == 24 + 16 + 28 + 4 + 16 + 16 + 4 + 4
    assert (layout.offsets["q_scale"], layout.offsets["scale_log2"]) == (72, 104)
    unscaled = params_layout(make_plan(scaled=False).variants[0].params)
    assert (unscaled.format, unscaled.size_bytes) == ("<QQQqqiiiIIIIf", 72)
