"""Calls of every layout under the emulator: the same numbers, maps and faults as on the GPU."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from mla_codegen.call.rules import call_rules
from mla_codegen.emulator import EmulatedKernel
from mla_codegen.emulator.arguments import Call, check_call, check_contents
from mla_codegen.emulator.packing import encode_map, global_ranges, param_slot
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.kernel import Kernel
from tests.layouts import DENSE, LAYOUTS, Layout, arrays_of, plan_with
from tests.unit.plan_fixture import DeviceArray, FakeDriver, StubBuild, make_plan

IDS = [layout.name for layout in LAYOUTS]


def plan_of(layout: Layout) -> Plan:
    return plan_with(make_plan(), layout)


def arguments_of(layout: Layout, **sizes: int) -> dict[str, Any]:
    """Arrays by name, and `max_seqlen_q` where the layout has one."""
    arrays: dict[str, Any] = dict(arrays_of(plan_of(layout), layout.sizes(**sizes)))
    rng = np.random.default_rng(0)
    for array in arrays.values():
        if array.dtype.kind == "u" and array.size:
            array[...] = rng.integers(0, np.iinfo(array.dtype).max, array.shape, array.dtype)
    return {**arrays, "max_seqlen_q": 35} if layout.q == "ragged" else arrays


def checked(layout: Layout, arguments: dict[str, Any]) -> Call:
    plan = plan_of(layout)
    given = {name: value for name, value in arguments.items() if name != "max_seqlen_q"}
    return check_call(call_rules(plan), plan.variants[0], given, arguments.get("max_seqlen_q"), None)


def on_the_gpu(layout: Layout, arguments: dict[str, Any]) -> FakeDriver:
    """What the fake driver saw of the same call."""
    plan = plan_of(layout)
    driver = FakeDriver(plan=plan)
    kernel = Kernel(plan, "// source", StubBuild(), driver=driver)  # type: ignore[arg-type]
    call = {
        name: DeviceArray(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    kernel(**{"q_rope": None, "k_rope": None, **call})
    return driver


def unpacked(encoded: bytes) -> tuple[int, list[int], list[int], list[int]]:
    """Address, extents, strides (without the first) and box of the host form of a map."""
    _, address, *numbers = struct.unpack("<QQ5Q4Q5HBBB", encoded[:101])
    rank = numbers[15]
    return address, numbers[:rank], numbers[5 : 5 + rank - 1], numbers[9 : 9 + rank]


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_params_are_those_of_the_gpu(layout: Layout) -> None:
    arguments = arguments_of(layout)
    call, variant = checked(layout, arguments), plan_of(layout).variants[0]
    expected = on_the_gpu(layout, arguments).launches[0].params
    assert len(variant.params) == len(expected)
    for field in variant.params:
        slot = param_slot(field, call, variant)
        if field.name == "scale_log2":
            assert struct.unpack("<f", struct.pack("<I", slot)) == (expected[field.name],)
        else:
            assert slot == expected[field.name], field.name


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_maps_show_the_elements_of_their_arrays(layout: Layout) -> None:
    arguments = arguments_of(layout)
    call = checked(layout, arguments)
    for item in plan_of(layout).variants[0].tensor_maps:
        array = arguments[item.argument]
        address, extents, strides, box = unpacked(encode_map(item, call))
        assert (address, tuple(box)) == (array.ctypes.data, item.box)
        seen = as_strided(array.reshape(-1), extents[::-1], (*strides[::-1], array.itemsize)).squeeze()
        if item.argument == "k_rope":
            array = array.squeeze(-2)
        order = [axis for axis in reversed(item.dims) if axis >= 0]
        assert np.array_equal(seen, array.transpose(order)), item.name


def test_heads_and_batch_of_stride_zero_are_one() -> None:
    arguments = arguments_of(DENSE)
    arguments["k_nope"] = np.broadcast_to(arguments["k_nope"][:1, :, :1], (2, 45, 4, 128))
    arguments["k_rope"] = np.broadcast_to(arguments["k_rope"], (2, 45, 8, 64))
    call = checked(DENSE, arguments)
    maps = {item.argument: item for item in plan_of(DENSE).variants[0].tensor_maps}
    assert unpacked(encode_map(maps["k_nope"], call))[1] == [128, 45, 1, 1]
    assert unpacked(encode_map(maps["k_rope"], call))[1] == [64, 45, 1, 2]
    variant = plan_of(DENSE).variants[0]
    steps = {field.name: param_slot(field, call, variant) for field in variant.params}
    assert [steps[f"k_nope_{kind}_step"] for kind in ("head", "batch")] == [0, 0]
    assert [steps[f"k_rope_{kind}_step"] for kind in ("head", "batch")] == [0, 1]


@pytest.mark.parametrize("v", ["rows", "transposed"])
def test_maps_of_no_keys_have_no_extent(v: str) -> None:
    layout = Layout(kv="dense", v=v)
    call = checked(layout, arguments_of(layout, kv_len=0))
    for item in plan_of(layout).variants[0].tensor_maps[2:]:
        assert unpacked(encode_map(item, call))[1] == [0, 0, 0, 0]


@pytest.mark.parametrize("lse", ["head_token", "token_head"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_outputs_that_are_not_passed_are_made(layout: Layout, lse: str) -> None:
    layout = Layout(q=layout.q, kv=layout.kv, v=layout.v, rope=layout.rope, lse=lse)
    arguments = arguments_of(layout)
    expected = {name: arguments.pop(name) for name in ("out", "lse")}
    call = checked(layout, arguments)
    for name, array in expected.items():
        assert call.arrays[name].shape == array.shape
        assert np.isnan(call.arrays[name].astype(np.float32)).all()
        assert call.arrays[name].ctypes.data % 16 == 0
    writable = [item.bytes for item in global_ranges(call, frozenset(expected), {}) if item.writable]
    assert writable == [expected["out"].nbytes, expected["lse"].nbytes]


FAULTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "batch": (DENSE, {"k_nope": np.zeros((3, 45, 4, 128), np.uint8)}),
    "batch of lengths": (Layout(), {"cu_seqlens_k": np.zeros(4, np.int32)}),
    "no lengths": (Layout(kv="dense"), {"cu_seqlens_q": np.zeros(0, np.int32)}),
    "shape": (
        DENSE,
        {"q_rope": np.zeros((2, 36, 8, 64), np.uint16), "v": np.zeros((2, 45, 4, 64), np.uint8)},
    ),
    "columns": (Layout(v="transposed"), {"v": np.zeros((4, 128, 96), np.uint8)}),
    "rank": (DENSE, {"q_nope": np.zeros((70, 8, 128), np.uint8)}),
    "dtype": (DENSE, {"out": np.zeros((2, 35, 8, 128), np.float32)}),
    "heads": (DENSE, {"q_nope": np.zeros((2, 35, 7, 128), np.uint8)}),
    "missing": (DENSE, {"k_scale": None, "v": None}),
    "missing lengths": (Layout(q="dense"), {"cu_seqlens_k": None}),
    "lengths of dense keys": (Layout(kv="dense"), {"cu_seqlens_k": np.zeros(3, np.int32)}),
    "rope of none": (Layout(rope=0), {"q_rope": np.zeros((70, 8, 64), np.uint16)}),
    "capacity": (DENSE, {"max_seqlen_q": 35}),
    "no capacity": (Layout(), {"max_seqlen_q": None}),
    "stride": (DENSE, {"k_nope": as_strided(np.zeros(64, np.uint8), (2, 45, 4, 128), (8, 0, 128, 1))}),
    "last stride": (
        Layout(v="transposed"),
        {"v": as_strided(np.zeros(64, np.uint8), (4, 128, 112), (14336, 112, 2))},
    ),
    "batch stride of out": (
        DENSE,
        {"out": as_strided(np.zeros(64, np.uint16), (2, 35, 8, 128), (0, 2048, 256, 2))},
    ),
    "scale stride": (DENSE, {"k_scale": np.ones((2, 45), np.float32)[:, ::-1]}),
    "lse": (DENSE, {"lse": np.zeros((2, 8, 70), np.float32)[..., ::2]}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_those_of_the_gpu(name: str) -> None:
    layout, change = FAULTS[name]
    arguments = {**arguments_of(layout), **change}
    with pytest.raises(LaunchError) as emulated:
        checked(layout, arguments)
    with pytest.raises(LaunchError) as expected:
        on_the_gpu(layout, arguments)
    assert str(emulated.value) == str(expected.value)


def test_an_output_that_the_spec_does_not_have_is_refused() -> None:
    plan = make_plan()
    sizes = {**Layout().sizes(), "kv_heads": 8}
    given = {**arrays_of(plan, sizes), "lse": np.zeros((8, 70), np.float32)}
    with pytest.raises(LaunchError, match=r"lse is passed, but softmax\.lse of the spec is none"):
        check_call(call_rules(plan), plan.variants[0], given, 35, None)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_check_looks_at_the_scales_of_all_tokens(layout: Layout) -> None:
    rules = call_rules(plan_of(layout))
    arguments = arguments_of(layout)
    check_contents(rules, checked(layout, arguments))
    arguments["k_scale"].reshape(-1)[-1] = np.inf
    with pytest.raises(LaunchError, match="k_scale is inf at"):
        check_contents(rules, checked(layout, arguments))
    if layout.kv == "ragged":
        arguments["cu_seqlens_k"][-1] = 89
        check_contents(rules, checked(layout, arguments))


def copying_kernel(layout: Layout) -> EmulatedKernel:
    """A kernel of the layout that copies the first 32 rows of V to the output, byte by byte."""
    plan = plan_of(layout)
    (variant,) = plan.variants
    transposed = layout.v == "transposed"
    maps = [
        dataclasses.replace(item, box=(32, 128, 1, 1) if transposed else (128, 32, 1, 1), swizzle_bytes=0)
        if item.argument == "v"
        else item
        for item in variant.tensor_maps
    ]
    variant = dataclasses.replace(variant, namespace="mla::test", tensor_maps=tuple(maps))
    members = "\n".join(f"  {field.ctype} {field.name};" for field in variant.params)
    source = (Path(__file__).parent / "kernels" / "layouts.cu").read_text()
    source = source.replace("PARAMS", f"struct Params {{\n{members}\n}};")
    source = source.replace("MAPS", "".join(f"const TensorMap {item.name}, " for item in maps))
    if transposed:
        source = source.replace("kTransposed = false", "kTransposed = true")
    return EmulatedKernel(dataclasses.replace(plan, variants=(variant,)), source)


@pytest.mark.parametrize("layout", [DENSE, Layout(q="dense", kv="dense", v="transposed", rope=0)], ids=str)
def test_a_dense_call_reaches_the_kernel(layout: Layout) -> None:
    arguments = arguments_of(layout)
    padded = np.zeros((2, 35, 8, 136), np.uint16)
    arguments["out"] = padded[..., :128]
    kernel = copying_kernel(layout)
    report = kernel.run(**{"q_rope": None, "k_rope": None, **arguments})
    assert not report.hazards, report.render()
    v = arguments["v"]
    rows = v.transpose(0, 3, 1, 2) if layout.v == "transposed" else v
    assert np.array_equal(padded[:, :32, :, :128], np.repeat(rows[:, :32], 2, axis=2))
    assert not padded[:, 32:].any() and not padded[..., 128:].any()
    shared = np.broadcast_to(v[1:], v.shape)
    report = kernel.run(**{"q_rope": None, "k_rope": None, **arguments, "v": shared})
    assert not report.hazards, report.render()
    assert np.array_equal(padded[:, :32, :, :128], np.repeat(rows[[1, 1], :32], 2, axis=2))
