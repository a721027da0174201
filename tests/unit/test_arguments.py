"""Every wrong argument is refused before a launch, with the stored text; right ones are passed on."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mla_codegen.errors import LaunchError
from mla_codegen.runtime.kernel import Kernel
from tests.unit.plan_fixture import (
    HEADS,
    TOTAL_K,
    TOTAL_Q,
    CupyArray,
    DeviceArray,
    FakeDriver,
    FakeLibraries,
    StubBuild,
    TorchTensor,
    good_arrays,
    make_plan,
)

MESSAGES = Path(__file__).parent / "messages"
Call = dict[str, Any]


def make_kernel(*, scaled: bool = True, driver: FakeDriver | None = None) -> tuple[Kernel, FakeDriver]:
    """A kernel on a fake driver."""
    plan = make_plan(scaled=scaled)
    driver = driver or FakeDriver(plan=plan)
    return Kernel(plan, "// source", StubBuild(), driver=driver), driver  # type: ignore[arg-type]


def good_call(*, scaled: bool = True) -> Call:
    """A legal call; each array pretends to lie at an address of its own that is a multiple of 2^20."""
    arrays = good_arrays(scaled=scaled)
    call: Call = {
        name: DeviceArray(array, pointer=number << 20)
        for number, (name, array) in enumerate(arrays.items(), start=1)
    }
    return {**call, "max_seqlen_q": 40}


def replace(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Call], None]:
    """Passes another array under `name`, at the same address."""

    def apply(call: Call) -> None:
        call[name] = DeviceArray(change(call[name].array), pointer=call[name].pointer)

    return apply


def zeros(name: str, shape: tuple[int, ...], dtype: str) -> Callable[[Call], None]:
    return replace(name, lambda _: np.zeros(shape, dtype))


def strided(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Callable[[Call], None]:
    """The same memory with these strides, in bytes; nothing is read."""
    return replace(name, lambda array: np.lib.stride_tricks.as_strided(array, shape, strides))


def move(name: str, bytes_: int) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        call[name].pointer += bytes_

    return apply


def pass_as(name: str, value: Any) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        call[name] = value

    return apply


WRONG: dict[str, Callable[[Call], None]] = {
    "dtype": zeros("k_nope", (TOTAL_K, HEADS, 128), "f4"),
    "dtype_out": zeros("out", (TOTAL_Q, HEADS, 128), "f4"),
    "dtype_scale": zeros("q_scale", (TOTAL_Q,), "f2"),
    "dtype_cu_seqlens": zeros("cu_seqlens_q", (3,), "i8"),
    "rank": zeros("q_nope", (TOTAL_Q, HEADS * 128), "u1"),
    "rank_cu_seqlens": zeros("cu_seqlens_k", (1, 3), "i4"),
    "tokens_q_rope": zeros("q_rope", (TOTAL_Q - 1, HEADS, 64), "u2"),
    "tokens_v": zeros("v", (TOTAL_K + 1, HEADS, 128), "u1"),
    "tokens_k_scale": zeros("k_scale", (TOTAL_K - 1,), "f4"),
    "heads": zeros("k_nope", (TOTAL_K, HEADS - 1, 128), "u1"),
    "heads_k_rope": zeros("k_rope", (TOTAL_K, HEADS, 64), "u2"),
    "no_heads": zeros("q_nope", (TOTAL_Q, 0, 128), "u1"),
    "depth": zeros("q_nope", (TOTAL_Q, HEADS, 64), "u1"),
    "shape_out": zeros("out", (TOTAL_Q, HEADS + 1, 128), "u2"),
    "batch": zeros("cu_seqlens_k", (4,), "i4"),
    "cu_seqlens_empty": zeros("cu_seqlens_q", (0,), "i4"),
    "last_stride": strided("v", (TOTAL_K, HEADS, 128), (2048, 256, 2)),
    "base": move("q_nope", 8),
    "base_out": move("out", 2),
    "base_scale": move("q_scale", 2),
    "token_stride": strided("q_rope", (TOTAL_Q, HEADS, 64), (1032, 128, 2)),
    "head_stride": strided("k_nope", (TOTAL_K, HEADS, 128), (2048, 136, 1)),
    "token_stride_zero_out": strided("out", (TOTAL_Q, HEADS, 128), (0, 256, 2)),
    "token_stride_negative": strided("k_nope", (TOTAL_K, HEADS, 128), (-1024, 128, 1)),
    "stride_huge": strided("v", (TOTAL_K, HEADS, 128), (2**40, 128, 1)),
    "head_stride_zero_out": strided("out", (TOTAL_Q, HEADS, 128), (2048, 0, 2)),
    "overlap_out": strided("out", (TOTAL_Q, HEADS, 128), (256, 256, 2)),
    "scale_stride": strided("k_scale", (TOTAL_K,), (6,)),
    "scale_stride_negative": strided("q_scale", (TOTAL_Q,), (-4,)),
    "cu_seqlens_not_contiguous": strided("cu_seqlens_k", (3,), (8,)),
    "scale_missing": pass_as("q_scale", None),
    "scale_not_declared": pass_as("v_scale", DeviceArray(np.zeros(TOTAL_K, np.float32), pointer=1 << 30)),
    "q_rope_missing": pass_as("q_rope", None),
    "cu_seqlens_missing": pass_as("cu_seqlens_k", None),
    "lse_not_declared": pass_as("lse", DeviceArray(np.zeros((HEADS, TOTAL_Q), np.float32), pointer=1 << 30)),
    "max_seqlen_missing": pass_as("max_seqlen_q", None),
    "max_seqlen_negative": pass_as("max_seqlen_q", -1),
    "max_seqlen_float": pass_as("max_seqlen_q", 40.5),
    "softmax_scale_nan": pass_as("softmax_scale", math.nan),
    "softmax_scale_negative": pass_as("softmax_scale", -0.5),
    "softmax_scale_text": pass_as("softmax_scale", "half"),
    "tokens_too_many": strided("q_nope", (2**31, HEADS, 128), (1024, 128, 1)),
    "numpy": pass_as("v", np.zeros((TOTAL_K, HEADS, 128), np.uint8)),
    "list": pass_as("q_scale", [1.0]),
    "stream": pass_as("stream", "main"),
    "stream_negative": pass_as("stream", -1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument(name: str) -> None:
    kernel, driver = make_kernel()
    call = good_call()
    WRONG[name](call)
    if name == "tokens_too_many":
        for other, shape in (
            ("q_rope", (2**31, HEADS, 64)),
            ("q_scale", (2**31,)),
            ("out", (2**31, HEADS, 128)),
        ):
            array = call[other].array
            strided(other, shape, array.strides)(call)
    with pytest.raises(LaunchError) as caught:
        kernel(**call)
    assert str(caught.value) + "\n" == (MESSAGES / f"launch_{name}.txt").read_text()
    assert isinstance(caught.value, ValueError)
    assert not driver.launches


def test_every_stored_message_has_a_test() -> None:
    stored = {path.stem.removeprefix("launch_") for path in MESSAGES.glob("launch_*.txt")}
    assert stored == {*WRONG, "device", "unsupported_gpu", "scale_of_bf16_spec"}


def test_scale_is_refused_by_a_spec_without_scales() -> None:
    kernel, driver = make_kernel(scaled=False)
    call = good_call(scaled=False)
    call["q_scale"] = DeviceArray(np.zeros(TOTAL_Q, np.float32), pointer=1 << 30)
    with pytest.raises(LaunchError) as caught:
        kernel(**call)
    assert str(caught.value) + "\n" == (MESSAGES / "launch_scale_of_bf16_spec.txt").read_text()
    assert not driver.launches


def test_arrays_on_two_devices_are_refused() -> None:
    call = good_call()
    kernel, driver = make_kernel(driver=FakeDriver(devices={call["k_nope"].pointer: 1}))
    with pytest.raises(LaunchError) as caught:
        kernel(**call)
    assert str(caught.value) + "\n" == (MESSAGES / "launch_device.txt").read_text()
    assert not driver.launches


def test_unsupported_gpu_is_refused_before_anything_is_built() -> None:
    kernel, driver = make_kernel(driver=FakeDriver(capability=(8, 9)))
    kernel._dispatcher._build = None  # type: ignore[assignment]
    with pytest.raises(LaunchError) as caught:
        kernel(**good_call())
    assert str(caught.value) + "\n" == (MESSAGES / "launch_unsupported_gpu.txt").read_text()
    assert not driver.calls


def test_several_faults_come_together() -> None:
    kernel, _ = make_kernel()
    call = good_call()
    zeros("q_rope", (TOTAL_Q - 1, HEADS, 64), "u2")(call)
    zeros("v", (TOTAL_K, HEADS, 64), "u1")(call)
    with pytest.raises(LaunchError) as caught:
        kernel(**call)
    assert [fault.code for fault in caught.value.diagnostics] == ["shape", "shape"]


def test_launch_carries_grid_maps_and_params() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    call["q_scale"].pointer += 4
    strided("k_scale", (TOTAL_K,), (12,))(call)
    assert kernel(**call, stream=77) is call["out"]
    (launch,) = driver.launches
    assert (launch.device, launch.function, launch.grid) == (0, 8, (HEADS, 2, 1))
    assert (launch.threads, launch.y, launch.z, launch.smem_bytes) == (384, 1, 1, 5120)
    assert (launch.stream, launch.extra) == (77, None)
    mapped = ("q_nope", "q_rope", "k_nope", "k_rope", "v")
    assert launch.maps == [(call[name].pointer, number) for number, name in enumerate(mapped)]
    params = dict(launch.params)
    assert params.pop("scale_log2") == pytest.approx(math.log2(math.e) / math.sqrt(192), rel=1e-6)
    assert params == {
        "out": call["out"].pointer,
        "cu_seqlens_q": call["cu_seqlens_q"].pointer,
        "cu_seqlens_k": call["cu_seqlens_k"].pointer,
        "out_token_stride": HEADS * 128,
        "out_head_stride": 128,
        "batch": 2,
        "heads": HEADS,
        "query_tiles": 1,
        "q_nope_head_step": 1,
        "q_rope_head_step": 1,
        "k_nope_head_step": 1,
        "v_head_step": 1,
        "q_scale": call["q_scale"].pointer,
        "k_scale": call["k_scale"].pointer,
        "q_scale_token_stride": 1,
        "k_scale_token_stride": 3,
    }
    assert driver.requests[3].extents == (64, TOTAL_K, 1)


def test_a_second_call_encodes_and_loads_nothing() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    kernel(**call)
    before = (len(driver.requests), list(driver.calls))
    kernel(**call)
    assert (len(driver.requests), list(driver.calls)) == before
    assert len(driver.launches) == 2


def test_new_addresses_encode_nothing_and_reach_the_kernel() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    kernel(**call)
    moved = {
        name: DeviceArray(value.array, pointer=value.pointer + (1 << 30))
        for name, value in call.items()
        if isinstance(value, DeviceArray)
    }
    kernel(**{**call, **moved})
    kernel(**call)
    assert len(driver.requests) == 5
    first, second, third = driver.launches
    assert [address for address, _ in second.maps] == [address + (1 << 30) for address, _ in first.maps]
    for name in ("out", "cu_seqlens_q", "cu_seqlens_k", "q_scale", "k_scale"):
        assert second.params[name] == moved[name].pointer
    assert (third.maps, third.params) == (first.maps, first.params)


@pytest.mark.parametrize("name", ["base", "base_out", "base_scale"])
def test_an_address_is_checked_at_every_call(name: str) -> None:
    kernel, driver = make_kernel()
    call = good_call()
    kernel(**call)
    WRONG[name](call)
    with pytest.raises(LaunchError) as caught:
        kernel(**call)
    assert str(caught.value) + "\n" == (MESSAGES / f"launch_{name}.txt").read_text()
    assert len(driver.launches) == 1


def test_a_device_is_asked_for_at_every_call() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    kernel(**call)
    driver.devices = {call["k_nope"].pointer: 1}
    with pytest.raises(LaunchError, match="k_nope is on device 1, q_nope is on device 0"):
        kernel(**call)
    driver.devices = {call["out"].pointer: 1}
    with pytest.raises(LaunchError, match="out is on device 1, the inputs are on device 0"):
        kernel(**call)
    assert len(driver.launches) == 1


def test_threads_have_arguments_of_their_own() -> None:
    kernel, driver = make_kernel()
    calls = [good_call() for _ in range(2)]
    move("q_nope", 1 << 30)(calls[1])
    inner = driver.launch_kernel

    def launch_within_a_launch(*arguments: Any) -> int:
        driver.launch_kernel = inner  # type: ignore[method-assign]
        kernel(**calls[1])
        return inner(*arguments)

    driver.launch_kernel = launch_within_a_launch  # type: ignore[method-assign]
    kernel(**calls[0])
    second, first = driver.launches
    assert (first.maps[0][0], second.maps[0][0]) == (calls[0]["q_nope"].pointer, calls[1]["q_nope"].pointer)


def test_a_refused_tensor_map_is_shown_whole() -> None:
    kernel, driver = make_kernel()
    driver.encode_status = 1
    with pytest.raises(LaunchError) as caught:
        kernel(**good_call())
    assert str(caught.value) == (
        "error[tensor-map]: cuTensorMapEncodeTiled gave CUDA_ERROR_1 for the tensor map of q_nope_map: "
        "CU_TENSOR_MAP_DATA_TYPE_UINT8, rank 3, address 0x100000, extents [128, 70, 8], strides [1024, 128] "
        "B, box [128, 64, 1], element strides [1, 1, 1], swizzle 128 B, L2 promotion 256 B"
    )
    assert not driver.launches


@pytest.mark.parametrize(
    ("field", "value"),
    [("softmax_scale", 0.5), ("max_seqlen_q", 100), ("stream", 5)],
)
def test_no_scalar_is_frozen_by_an_earlier_call(field: str, value: object) -> None:
    kernel, driver = make_kernel()
    call = good_call()
    kernel(**call)
    kernel(**{**call, field: value})
    fresh, other_driver = make_kernel()
    fresh(**{**call, field: value})
    assert driver.launches[1].params == other_driver.launches[0].params
    assert driver.launches[1].key() == other_driver.launches[0].key()
    assert driver.launches[1].params != driver.launches[0].params or field == "stream"


def test_shared_heads_have_step_zero_and_extent_one() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    strided("k_nope", (TOTAL_K, HEADS, 128), (128, 0, 1))(call)
    strided("k_rope", (TOTAL_K, HEADS, 64), (128, 0, 2))(call)
    kernel(**call)
    params = driver.launches[0].params
    assert (params["k_nope_head_step"], params["v_head_step"]) == (0, 1)
    assert driver.requests[2].extents == (128, TOTAL_K, 1)
    assert driver.requests[2].strides == (128, 128)
    assert driver.requests[3].extents == (64, TOTAL_K, 1)


def test_no_keys_give_maps_of_extent_one_at_a_valid_address() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    for name, shape in (
        ("k_nope", (0, HEADS, 128)),
        ("k_rope", (0, 64)),
        ("v", (0, HEADS, 128)),
        ("k_scale", (0,)),
    ):
        replace(name, lambda array, shape=shape: np.zeros(shape, array.dtype))(call)  # type: ignore[misc]
        call[name].pointer = 0
    kernel(**call)
    assert len(driver.launches) == 1
    for request in driver.requests[2:]:
        assert request.address == call["q_nope"].pointer
        assert set(request.extents[1:]) <= {1} and request.extents[0] in (1, 64, 128)


def test_lengths_of_one_may_have_any_stride() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    for name, width, item in (("q_nope", 128, 1), ("q_rope", 64, 2), ("out", 128, 2)):
        strided(name, (1, HEADS, width), (3, width * item, item))(call)
    replace("q_scale", lambda array: array[:1])(call)
    kernel(**call)
    assert len(driver.launches) == 1
    assert driver.requests[0].extents == (128, 1, HEADS)
    assert driver.requests[0].strides == (128, 128)


@pytest.mark.parametrize("empty", ["batch", "queries", "capacity"])
def test_nothing_is_launched_for_nothing(empty: str) -> None:
    kernel, driver = make_kernel()
    call = good_call()
    if empty == "batch":
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            replace(name, lambda array: array[:1])(call)
    if empty == "queries":
        for name in ("q_nope", "q_rope", "q_scale", "out"):
            replace(name, lambda array: array[:0])(call)
    if empty == "capacity":
        call["max_seqlen_q"] = 0
    assert kernel(**call) is call["out"]
    assert not driver.launches and not driver.calls


def test_batch_beyond_the_grid_goes_to_z() -> None:
    kernel, driver = make_kernel()
    call = good_call()
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        zeros(name, (70_001,), "i4")(call)
    kernel(**call)
    assert driver.launches[0].grid == (HEADS, 65535, 2)


def test_launch_on_the_arrays_device_restores_the_current_one() -> None:
    call = good_call()
    devices = {array.pointer: 1 for array in call.values() if isinstance(array, DeviceArray)}
    kernel, driver = make_kernel(driver=FakeDriver(devices=devices))
    kernel(**call)
    assert driver.launches[0].device == 1
    assert driver.calls[0] == ("load", 1)
    assert driver.current == 0


def test_check_accepts_right_contents_with_one_synchronisation() -> None:
    kernel, driver = make_kernel()
    call = {name: DeviceArray(array) for name, array in good_arrays().items()}
    kernel(**call, max_seqlen_q=40, check=True, stream=9)
    assert [entry for entry in driver.calls if entry[0] == "synchronize"] == [("synchronize", 9)]
    assert len(driver.launches) == 1


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("cu_seqlens_q", [1, 30, 70], "q runs from 1 to 70, from 0 to at most 70 tokens is needed"),
        ("cu_seqlens_k", [0, 50, 91], "k runs from 0 to 91, from 0 to at most 90 tokens is needed"),
        ("cu_seqlens_k", [0, 95, 90], "cu_seqlens_k falls from 95 to 90 at sequence 1, it may only rise"),
        ("cu_seqlens_q", [0, 29, 70], "sequence 1 has 41 queries, max_seqlen_q is 40"),
    ],
)
def test_check_refuses_wrong_lengths(name: str, values: list[int], said: str) -> None:
    kernel, driver = make_kernel()
    arrays = good_arrays()
    arrays[name][:] = values
    call = {key: DeviceArray(array) for key, array in arrays.items()}
    with pytest.raises(LaunchError, match=said):
        kernel(**call, max_seqlen_q=40, check=True)
    assert not driver.launches


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_check_refuses_wrong_scales(value: float, step: int) -> None:
    kernel, driver = make_kernel()
    arrays = good_arrays()
    spread = np.full((TOTAL_K, step), math.nan, np.float32)
    spread[:, 0] = 1.0
    arrays["k_scale"] = spread[:, 0]
    call = {key: DeviceArray(array) for key, array in arrays.items()}
    kernel(**call, max_seqlen_q=40, check=True)
    spread[17, 0] = value
    with pytest.raises(
        LaunchError, match=rf"k_scale is {value} at \[17\], a finite number of at least 0 is needed"
    ):
        kernel(**call, max_seqlen_q=40, check=True)
    assert len(driver.launches) == 1


def test_check_leaves_alone_what_lies_behind_the_last_sequence() -> None:
    kernel, driver = make_kernel()
    arrays = good_arrays()
    arrays["cu_seqlens_k"][:] = [0, 50, 80]
    arrays["k_scale"][80:] = math.nan
    call = {key: DeviceArray(array) for key, array in arrays.items()}
    kernel(**call, max_seqlen_q=40, check=True)
    arrays["k_scale"][79] = math.nan
    with pytest.raises(LaunchError, match=r"k_scale is nan at \[79\]"):
        kernel(**call, max_seqlen_q=40, check=True)
    assert len(driver.launches) == 1


def test_one_scale_for_all_tokens_has_stride_zero() -> None:
    kernel, driver = make_kernel()
    arrays = good_arrays()
    arrays["q_scale"] = np.broadcast_to(np.array([0.5], np.float32), (TOTAL_Q,))
    call = {key: DeviceArray(array) for key, array in arrays.items()}
    kernel(**call, max_seqlen_q=40, check=True)
    assert driver.launches[0].params["q_scale_token_stride"] == 0
    call["q_scale"] = DeviceArray(np.broadcast_to(np.array([-0.5], np.float32), (TOTAL_Q,)))
    with pytest.raises(LaunchError, match=r"q_scale is -0.5 at \[0\]"):
        kernel(**call, max_seqlen_q=40, check=True)


def test_plan_and_spec_are_read_only() -> None:
    kernel, _ = make_kernel()
    assert kernel.spec["dims"]["rope"] == 64
    assert kernel.plan["variants"][0]["entry"] == "tiny"
    with pytest.raises(TypeError):
        kernel.plan["name"] = "other"  # type: ignore[index]
    with pytest.raises(TypeError):
        kernel.spec["dims"]["rope"] = 0
    assert kernel.lse_info is None
    assert kernel.is_compiled()


def test_warmup_loads_once() -> None:
    kernel, driver = make_kernel()
    kernel.warmup()
    kernel.warmup()
    kernel(**good_call())
    assert [entry[0] for entry in driver.calls] == ["load", "smem"]


LIBRARIES = {"torch": TorchTensor, "cupy": CupyArray}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> FakeLibraries:
    found = FakeLibraries()
    for name, module in found.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, libraries: FakeLibraries) -> str:
    return str(request.param)


def library_call(library: str, *, shift: int = 0, device: int = 0) -> Call:
    """A legal call with arrays of torch or CuPy; `shift` is added to the addresses."""
    call: Call = {
        name: LIBRARIES[library](array, (number << 20) + shift, device)
        for number, (name, array) in enumerate(good_arrays().items(), start=1)
    }
    return {**call, "max_seqlen_q": 40}


def move_in_place(array: Any, pointer: int) -> None:
    """The same object over memory at another address."""
    if isinstance(array, TorchTensor):
        array.pointer = pointer
    else:
        array.data.ptr = pointer


def stretch_in_place(array: Any, factor: int) -> None:
    """The same object with tokens that are `factor` times as far apart."""
    if isinstance(array, TorchTensor):
        array.steps = (factor * array.steps[0], *array.steps[1:])
    else:
        array.strides = (factor * array.strides[0], *array.strides[1:])


def send_in_place(array: Any, device: int) -> None:
    if isinstance(array, TorchTensor):
        array.index = device
    else:
        array.data.device_id = device


def warm_kernel(call: Call) -> tuple[Kernel, FakeDriver, list[str]]:
    """A kernel that has had this call, and a list that gets an entry for each call that goes the long way."""
    kernel, driver = make_kernel()
    kernel(**call)
    driver.launches.clear()
    long_way, ways = kernel._call, []

    def noted(*arguments: Any) -> Any:
        ways.append("long")
        return long_way(*arguments)

    kernel._call = noted  # type: ignore[method-assign]
    return kernel, driver, ways


def assert_like_fresh(driver: FakeDriver, call: Call) -> None:
    """The only launch is the one that a kernel without a past makes of this call."""
    kernel, fresh = make_kernel()
    kernel(**call)
    (found,), (expected,) = driver.launches, fresh.launches
    assert (found.key(), found.params) == (expected.key(), expected.params)
    assert [address for address, _ in found.maps] == [address for address, _ in expected.maps]


def test_a_repeated_call_is_launched_at_once(library: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    before = len(driver.requests), list(driver.calls)
    assert kernel(**call) is call["out"]
    assert_like_fresh(driver, call)
    assert not ways and (len(driver.requests), driver.calls) == before


def test_new_arrays_of_known_forms_are_launched_at_once(library: str) -> None:
    kernel, driver, ways = warm_kernel(library_call(library))
    call = library_call(library, shift=1 << 30)
    assert kernel(**call) is call["out"]
    assert_like_fresh(driver, call)
    assert not ways


def test_calls_that_take_turns_are_launched_at_once(library: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    other = {**library_call(library), "max_seqlen_q": 100, "softmax_scale": 0.5}
    kernel(**other)
    for turn in (call, other, call):
        driver.launches.clear()
        kernel(**turn)
        assert_like_fresh(driver, turn)
    assert ways == ["long"]


@pytest.mark.parametrize("name", ["k_nope", "q_scale", "out"])
def test_strides_changed_in_place_are_noticed(library: str, name: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    stretch_in_place(call[name], 2)
    kernel(**call)
    assert_like_fresh(driver, call)
    assert ways == ["long"]
    stretch_in_place(call[name], -1)
    with pytest.raises(LaunchError, match=f"{name} has"):
        kernel(**call)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("name", ["q_nope", "cu_seqlens_k", "out"])
def test_a_shape_changed_in_place_is_noticed(library: str, name: str) -> None:
    call = library_call(library)
    kernel, driver, _ = warm_kernel(call)
    call[name].shape = (call[name].shape[0] - 1, *call[name].shape[1:])
    with pytest.raises(LaunchError):
        kernel(**call)
    assert not driver.launches
    for other in ("q_nope", "q_rope", "q_scale", "out"):
        call[other].shape = (TOTAL_Q - 10, *call[other].shape[1:])
    call["cu_seqlens_k"].shape = (3,)
    kernel(**call)
    assert_like_fresh(driver, call)


def test_a_dtype_changed_in_place_is_noticed(library: str) -> None:
    call = library_call(library)
    kernel, driver, _ = warm_kernel(call)
    call["q_rope"].dtype = call["q_scale"].dtype
    with pytest.raises(LaunchError, match="q_rope"):
        kernel(**call)
    assert not driver.launches


def test_memory_changed_in_place_is_noticed(library: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    for number, name in enumerate(("q_nope", "v", "cu_seqlens_q", "out")):
        move_in_place(call[name], (64 + number) << 20)
    kernel(**call)
    assert_like_fresh(driver, call)
    assert not ways


@pytest.mark.parametrize("name", ["q_nope", "k_scale", "out"])
def test_an_address_that_is_not_aligned_is_noticed(library: str, name: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    move_in_place(call[name], (64 << 20) + 2)
    with pytest.raises(LaunchError, match=name):
        kernel(**call)
    assert ways == ["long"] and not driver.launches
    move_in_place(call[name], 64 << 20)
    kernel(**call)
    assert_like_fresh(driver, call)


def test_the_stream_is_that_of_the_call(library: str, libraries: FakeLibraries) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    kernel(**call)
    libraries.streams = {0: 2**47 + 16, 1: 32}
    kernel(**call)
    kernel(**call, stream=5)
    kernel(**call, stream=0)
    kernel(**call, stream=type("Stream", (), {"ptr": 48})())
    kernel(**call)
    assert [launch.stream for launch in driver.launches] == [0, 2**47 + 16, 5, 0, 48, 2**47 + 16]
    with pytest.raises(LaunchError, match="stream"):
        kernel(**call, stream="main")
    assert not ways and len(driver.launches) == 6


def test_another_current_device_is_noticed(library: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    driver.current = 1
    kernel(**call)
    assert not ways and driver.launches[0].device == 0 and driver.current == 1


def test_arrays_on_another_device_are_noticed(library: str, libraries: FakeLibraries) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    libraries.streams = {0: 16, 1: 32}
    elsewhere = library_call(library, device=1)
    kernel(**elsewhere)
    kernel(**elsewhere)
    kernel(**call)
    assert [(launch.device, launch.stream) for launch in driver.launches] == [(1, 32), (1, 32), (0, 16)]
    assert ways == ["long"] and driver.current == 0
    send_in_place(call["k_nope"], 1)
    with pytest.raises(LaunchError, match="k_nope is on device 1, q_nope is on device 0"):
        kernel(**call)
    assert len(driver.launches) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_seqlen_q", True),
        ("max_seqlen_q", 40.0),
        ("max_seqlen_q", None),
        ("softmax_scale", math.nan),
        ("softmax_scale", -1),
        ("q_scale", None),
        ("v", np.zeros((TOTAL_K, HEADS, 128), np.uint8)),
    ],
)
def test_wrong_argument_after_a_right_call(library: str, field: str, value: object) -> None:
    call = {**library_call(library), "max_seqlen_q": 1}
    kernel, driver, _ = warm_kernel(call)
    with pytest.raises(LaunchError):
        kernel(**{**call, field: value})
    assert not driver.launches


def test_arrays_of_two_libraries_go_the_long_way(libraries: FakeLibraries) -> None:
    call = {**library_call("torch"), "q_scale": library_call("cupy")["q_scale"]}
    kernel, driver, ways = warm_kernel(call)
    kernel(**call)
    assert_like_fresh(driver, call)
    assert ways == ["long"]


def test_threads_with_known_calls_have_arguments_of_their_own(library: str) -> None:
    calls = [library_call(library), library_call(library, shift=1 << 30)]
    kernel, driver, ways = warm_kernel(calls[0])
    inner = driver.launch_kernel

    def launch_within_a_launch(*arguments: Any) -> int:
        driver.launch_kernel = inner  # type: ignore[method-assign]
        kernel(**calls[1], stream=9)
        return inner(*arguments)

    driver.launch_kernel = launch_within_a_launch  # type: ignore[method-assign]
    kernel(**calls[0], stream=8)
    assert [(launch.maps[0][0], launch.stream) for launch in driver.launches] == [
        ((1 << 20) + (1 << 30), 9),
        (1 << 20, 8),
    ]
    assert not ways


def test_no_array_is_kept_alive(library: str) -> None:
    call = library_call(library)
    kernel, _, _ = warm_kernel(call)
    kernel(**call)
    arrays = [weakref.ref(value) for value in call.values() if not isinstance(value, int)]
    call.clear()
    gc.collect()
    assert [array() for array in arrays] == [None] * 10


def test_many_calls_forget_the_oldest(library: str) -> None:
    call = library_call(library)
    kernel, driver, ways = warm_kernel(call)
    for tokens in range(41, 41 + 300):
        kernel(**{**call, "max_seqlen_q": tokens})
    driver.launches.clear()
    ways.clear()
    kernel(**{**call, "max_seqlen_q": 340})
    assert not ways
    driver.launches.clear()
    kernel(**call)
    assert_like_fresh(driver, call)
    assert ways == ["long"]


def test_a_call_whose_arrays_change_while_it_runs_is_not_kept(library: str) -> None:
    call = library_call(library)
    kernel, driver = make_kernel()
    inner = driver.launch_kernel

    def change_after_the_checks(*arguments: Any) -> int:
        stretch_in_place(call["k_nope"], -1)
        return inner(*arguments)

    driver.launch_kernel = change_after_the_checks  # type: ignore[method-assign]
    kernel(**call)
    driver.launch_kernel = inner  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="k_nope has"):
        kernel(**call)
    assert len(driver.launches) == 1
