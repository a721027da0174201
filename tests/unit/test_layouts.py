"""Calls of every layout on the fake driver: faults, Params, tensor maps, outputs, repeated calls, devices."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from mla_codegen.call.launch import map_dimensions
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.kernel import Kernel
from mla_codegen.runtime.launch import map_request
from tests.layouts import DENSE, LAYOUTS, Layout, arrays_of, axis_of, plan_with
from tests.unit.plan_fixture import (
    CupyArray,
    DeviceArray,
    FakeDriver,
    FakeLibraries,
    Launched,
    StubBuild,
    TorchTensor,
    make_plan,
)

RAGGED = Layout()
MIXED = [Layout(q="dense"), Layout(kv="dense")]
TRANSPOSED = [Layout(v="transposed"), Layout(kv="dense", v="transposed")]


def plan_of(layout: Layout) -> Plan:
    return plan_with(make_plan(), layout)


def kernel_of(layout: Layout) -> tuple[Kernel, FakeDriver]:
    plan = plan_of(layout)
    driver = FakeDriver(plan=plan)
    return Kernel(plan, "// source", StubBuild(), driver=driver), driver  # type: ignore[arg-type]


def host_arrays(layout: Layout, **sizes: int) -> dict[str, np.ndarray]:
    return arrays_of(plan_of(layout), layout.sizes(**sizes))


def call_of(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The call with these arrays at their own addresses; queries of at most 35 tokens where it has to say."""
    call: dict[str, Any] = {"q_rope": None, "k_rope": None}
    call |= {name: DeviceArray(array) for name, array in arrays.items()}
    return {**call, "max_seqlen_q": 35} if "cu_seqlens_q" in arrays else call


def launched(layout: Layout, arrays: dict[str, np.ndarray]) -> tuple[Launched, FakeDriver]:
    kernel, driver = kernel_of(layout)
    kernel(**call_of(arrays))
    (launch,) = driver.launches
    return launch, driver


def refused(layout: Layout, arrays: dict[str, np.ndarray], **changes: Any) -> str:
    """The text of the error of a call, which launches nothing."""
    kernel, driver = kernel_of(layout)
    with pytest.raises(LaunchError) as caught:
        kernel(**{**call_of(arrays), **changes})
    assert not driver.launches
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_params_carry_sizes_strides_and_steps(layout: Layout) -> None:
    arrays = host_arrays(layout)
    launch, _ = launched(layout, arrays)
    params = dict(launch.params)
    assert params.pop("scale_log2") == pytest.approx(1.442695 / np.sqrt(128 + layout.rope), rel=1e-6)
    sizes = {"batch": 2, "heads": 8, "query_tiles": 1}
    sizes |= {"q_len": 35} if layout.q == "dense" else {}
    sizes |= {"kv_len": 45} if layout.kv == "dense" else {}
    assert {name: params.pop(name) for name in sizes} == sizes
    for argument in plan_of(layout).arguments:
        array = arrays[argument.name]
        for kind in ("token", "head", "batch"):
            axis = axis_of(argument, kind)
            step, stride = f"{argument.name}_{kind}_step", f"{argument.name}_{kind}_stride"
            if step in params:
                assert params.pop(step) == (0 if axis is None else 1), step
            if stride in params:
                expected = 0 if axis is None else array.strides[axis] // array.itemsize
                assert params.pop(stride) == expected, stride
        if argument.kind != "tensor":
            assert params.pop(argument.name) == array.ctypes.data
    assert not params
    assert launch.grid == (8, 2, 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_maps_show_the_elements_of_their_arrays(layout: Layout) -> None:
    arrays = host_arrays(layout)
    rng = np.random.default_rng(0)
    for array in arrays.values():
        if array.dtype.kind == "u":
            array[...] = rng.integers(0, np.iinfo(array.dtype).max, array.shape, array.dtype)
    launch, driver = launched(layout, arrays)
    maps = plan_of(layout).variants[0].tensor_maps
    assert len(driver.requests) == len(maps) == (5 if layout.rope else 3)
    for item, (address, number) in zip(maps, launch.maps, strict=True):
        array, request = arrays[item.argument], driver.requests[number]
        if item.argument == "k_rope":
            array = array.squeeze(-2)
        assert address == array.ctypes.data
        seen = as_strided(
            array.reshape(-1), request.extents[::-1], (*request.strides[::-1], array.itemsize)
        ).squeeze()
        order = [axis for axis in reversed(item.dims) if axis >= 0]
        assert np.array_equal(seen, array.transpose(order)), item.name


def test_numbers_of_a_dense_call_by_hand() -> None:
    launch, driver = launched(DENSE, host_arrays(DENSE))
    q_nope, q_rope, k_nope, k_rope, v = driver.requests
    assert (q_nope.extents, q_nope.strides) == ((128, 35, 8, 2), (1024, 128, 35840))
    assert (q_rope.extents, q_rope.strides) == ((64, 35, 8, 2), (1024, 128, 35840))
    assert (k_nope.extents, k_nope.strides) == ((128, 45, 4, 2), (512, 128, 23040))
    assert (k_rope.extents, k_rope.strides) == ((64, 45, 1, 2), (128, 128, 5760))
    assert (v.extents, v.strides) == ((128, 45, 4, 2), (512, 128, 23040))
    names = ("out_token_stride", "out_head_stride", "out_batch_stride", "lse_token_stride", "lse_head_stride")
    assert [launch.params[name] for name in names] == [1024, 128, 35840, 1, 35]
    assert (launch.params["lse_batch_stride"], launch.params["q_scale_batch_stride"]) == (280, 280)


@pytest.mark.parametrize(
    ("layout", "extents", "strides"),
    [
        (TRANSPOSED[0], (112, 128, 4, 1), (112, 14336, 112)),
        (TRANSPOSED[1], (48, 128, 4, 2), (48, 6144, 24576)),
    ],
)
def test_numbers_of_transposed_v_by_hand(
    layout: Layout, extents: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    _, driver = launched(layout, host_arrays(layout))
    assert (driver.requests[-1].extents, driver.requests[-1].strides) == (extents, strides)


def test_heads_and_batch_of_stride_zero_have_step_zero_and_extent_one() -> None:
    arrays = host_arrays(DENSE)
    arrays["k_nope"] = np.broadcast_to(arrays["k_nope"][:1, :, :1], (2, 45, 4, 128))
    arrays["k_rope"] = np.broadcast_to(arrays["k_rope"], (2, 45, 8, 64))
    arrays["v"] = np.broadcast_to(arrays["v"][:1], (2, 45, 4, 128))
    launch, driver = launched(DENSE, arrays)
    steps = {name: value for name, value in launch.params.items() if name.endswith("_step")}
    assert steps == {
        "q_nope_head_step": 1, "q_nope_batch_step": 1, "q_rope_head_step": 1, "q_rope_batch_step": 1,
        "k_nope_head_step": 0, "k_nope_batch_step": 0, "k_rope_head_step": 0, "k_rope_batch_step": 1,
        "v_head_step": 1, "v_batch_step": 0,
    }  # fmt: skip
    assert [request.extents for request in driver.requests[2:]] == [
        (128, 45, 1, 1), (64, 45, 1, 2), (128, 45, 4, 1),
    ]  # fmt: skip
    assert driver.requests[2].strides == (512, 128, 128)


def test_a_batch_of_one_has_step_zero() -> None:
    launch, driver = launched(DENSE, host_arrays(DENSE, batch=1))
    assert {launch.params[f"{name}_batch_step"] for name in ("q_nope", "k_nope", "k_rope", "v")} == {0}
    assert {request.extents[3] for request in driver.requests} == {1}


def test_slices_of_larger_tensors_keep_their_strides() -> None:
    arrays = host_arrays(DENSE)
    joined = np.zeros((2, 45, 4, 256), np.uint8)
    assert joined.ctypes.data % 16 == 0
    arrays["k_nope"], arrays["v"] = joined[..., :128], joined[..., 128:]
    _, driver = launched(DENSE, arrays)
    assert driver.requests[2].strides == driver.requests[4].strides == (1024, 256, 46080)
    assert driver.requests[4].address == joined.ctypes.data + 128
    transposed = TRANSPOSED[1]
    arrays = host_arrays(transposed)
    arrays["v"] = np.zeros((2, 4, 128, 64), np.uint8)[..., :48]
    _, driver = launched(transposed, arrays)
    assert driver.requests[-1].strides == (64, 8192, 32768)


@pytest.mark.parametrize("layout", [Layout(kv="dense", v=v) for v in ("rows", "transposed")])
def test_no_keys_give_maps_of_one_row_at_a_valid_address(layout: Layout) -> None:
    arrays = host_arrays(layout, kv_len=0)
    launch, driver = launched(layout, arrays)
    assert launch.params["kv_len"] == 0
    for address, number in launch.maps[2:]:
        assert address == arrays["q_nope"].ctypes.data
        assert set(driver.requests[number].extents[1:]) == {1}
        assert driver.requests[number].extents[0] in (1, 64, 128)
        assert all(stride % 16 == 0 < stride for stride in driver.requests[number].strides)


def test_transposed_v_of_no_tokens_still_has_columns() -> None:
    layout = TRANSPOSED[0]
    arrays = host_arrays(layout, kv_len=0)
    assert arrays["v"].shape == (4, 128, 32)
    launch, driver = launched(layout, arrays)
    assert driver.requests[-1].extents == (32, 128, 4, 1)
    assert launch.maps[-1][0] == arrays["v"].ctypes.data


@pytest.mark.parametrize("sizes", [{"q_len": 0}, {"batch": 0}])
@pytest.mark.parametrize("layout", [RAGGED, DENSE, *MIXED], ids=lambda layout: layout.name)
def test_nothing_is_launched_for_nothing(layout: Layout, sizes: dict[str, int]) -> None:
    kernel, driver = kernel_of(layout)
    kernel(**call_of(host_arrays(layout, **sizes)))
    assert not driver.launches and not driver.calls


def changed(layout: Layout, name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {**host_arrays(layout), name: array}


@pytest.mark.parametrize(
    ("layout", "name", "shape", "said"),
    [
        (RAGGED, "cu_seqlens_k", (4,),
         "cu_seqlens_k of shape [4] has a batch of 3, cu_seqlens_q of shape [3] has a batch of 2, "
         "one batch is needed\n  help: pass as many sequences in cu_seqlens_k as in cu_seqlens_q"),
        (MIXED[0], "cu_seqlens_k", (4,),
         "q_nope of shape [2, 35, 8, 128] has a batch of 2, cu_seqlens_k of shape [4] has a batch of 3, "
         "one batch is needed\n  help: pass as many sequences in q_nope as in cu_seqlens_k"),
        (MIXED[1], "k_nope", (3, 45, 4, 128),
         "k_nope of shape [3, 45, 4, 128] has a batch of 3, cu_seqlens_q of shape [3] has a batch of 2, "
         "one batch is needed\n  help: pass as many sequences in k_nope as in cu_seqlens_q"),
        (DENSE, "k_nope", (3, 45, 4, 128),
         "k_nope of shape [3, 45, 4, 128] has a batch of 3, q_nope of shape [2, 35, 8, 128] has a batch of "
         "2, one batch is needed\n  help: pass as many sequences in k_nope as in q_nope"),
    ],
)  # fmt: skip
def test_batches_that_disagree_are_named(
    layout: Layout, name: str, shape: tuple[int, ...], said: str
) -> None:
    array = np.zeros(shape, host_arrays(layout)[name].dtype)
    assert refused(layout, changed(layout, name, array)) == f"error[batch]: {said}"


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_lengths_without_elements_are_refused(name: str) -> None:
    text = refused(RAGGED, changed(RAGGED, name, np.zeros(0, np.int32)))
    assert text.startswith(f"error[cu-seqlens]: {name} has 0 elements, batch + 1 are needed")


@pytest.mark.parametrize(
    ("layout", "name", "shape", "said"),
    [
        (DENSE, "q_rope", (2, 36, 8, 64),
         "[2, 35, 8, 64] is needed ([batch, q_len, heads, 64])\n"
         "  help: batch, q_len and heads are those of q_nope"),
        (DENSE, "v", (3, 45, 4, 128),
         "[2, 45, 4, 128] is needed ([batch, kv_len, kv_heads, 128])\n"
         "  help: batch is that of q_nope, kv_len is that of k_nope, "
         "kv_heads is heads of q_nope / heads.group"),
        (DENSE, "q_scale", (2, 35, 7),
         "[2, 35, 8] is needed ([batch, q_len, heads])\n"
         "  help: batch, q_len and heads are those of q_nope"),
        (DENSE, "out", (2, 35, 8, 64),
         "[2, 35, 8, 128] is needed ([batch, q_len, heads, 128])\n"
         "  help: batch, q_len and heads are those of q_nope"),
        (DENSE, "lse", (2, 35, 8),
         "[2, 8, 35] is needed ([batch, heads, q_len])\n"
         "  help: batch, heads and q_len are those of q_nope"),
        (DENSE, "k_nope", (2, 45, 8, 128),
         "[2, 45, 4, 128] is needed ([batch, kv_len, kv_heads, 128])\n"
         "  help: batch is that of q_nope, kv_heads is heads of q_nope / heads.group"),
        (TRANSPOSED[0], "v", (4, 128, 96),
         "[4, 128, 112] is needed ([kv_heads, 128, v_columns])\n"
         "  help: kv_heads is heads of q_nope / heads.group, v_columns is 16 * (total_k // 16 + batch)"),
        (TRANSPOSED[1], "v", (2, 4, 128, 45),
         "[2, 4, 128, 48] is needed ([batch, kv_heads, 128, v_columns])\n"
         "  help: batch is that of cu_seqlens_q, kv_heads is heads of q_nope / heads.group, "
         "v_columns is 16 * ceil(kv_len / 16)"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_named(
    layout: Layout, name: str, shape: tuple[int, ...], said: str
) -> None:
    array = np.zeros(shape, host_arrays(layout)[name].dtype)
    said = f"error[shape]: {name} has shape {list(shape)}, {said}"
    assert refused(layout, changed(layout, name, array)) == said


@pytest.mark.parametrize(
    ("layout", "name", "strides", "said"),
    [
        (DENSE, "q_nope", (35848, 1024, 128, 1), "stride of 35848 B along batch, a multiple of 16 B above 0"),
        (DENSE, "k_nope", (23040, 8, 128, 1), "stride of 8 B along kv_len, a multiple of 16 B above 0"),
        (DENSE, "v", (23040, 512, 8, 1), "stride of 8 B along kv_heads, a multiple of 16 B above 0"),
        (DENSE, "out", (0, 2048, 256, 2), "stride of 0 B along batch, a multiple of 16 B above 0"),
        (DENSE, "out", (71680, 0, 256, 2), "stride of 0 B along q_len, a multiple of 16 B above 0"),
        (DENSE, "out", (71680, 2048, 0, 2), "stride of 0 B along heads, a multiple of 16 B above 0"),
        (Layout(), "out", (0, 256, 2), "stride of 0 B along total_q, a multiple of 16 B above 0"),
        (DENSE, "out", (2048, 2048, 256, 2), "so that elements share memory"),
        (DENSE, "k_scale", (-180, 4), "stride of -180 B along batch, a multiple of 4 B of at least 0"),
        (DENSE, "k_scale", (180, 6), "stride of 6 B along kv_len, a multiple of 4 B of at least 0"),
        (DENSE, "lse", (1120, 144, 4), "a contiguous array is needed"),
        (TRANSPOSED[0], "v", (14336, 112, 2), "has a last stride of 2 B, 1 B (contiguous) is needed"),
        (TRANSPOSED[0], "v", (14336, 0, 1), "stride of 0 B along 128, a multiple of 16 B above 0"),
        (TRANSPOSED[1], "v", (24576, 6144, 56, 1), "stride of 56 B along 128, a multiple of 16 B above 0"),
    ],
)
def test_strides_that_cannot_be_taken_are_named(
    layout: Layout, name: str, strides: tuple[int, ...], said: str
) -> None:
    array = host_arrays(layout)[name]
    text = refused(layout, changed(layout, name, as_strided(array, array.shape, strides)))
    assert text.startswith("error[") and f"{name} has" in text and said in text


@pytest.mark.parametrize("name", ["q_nope", "q_rope", "k_nope", "k_rope", "v"])
@pytest.mark.parametrize("layout", [Layout(), DENSE], ids=["ragged", "dense"])
def test_inputs_may_have_one_token_for_all(layout: Layout, name: str) -> None:
    """Their maps keep the number of tokens, since a box has many of them, and have a stride of 0."""
    arrays, axis = host_arrays(layout), 1 if layout is DENSE else 0
    tokens = arrays[name].shape[axis]
    one = arrays[name].take([0], axis=axis)
    arrays[name] = np.broadcast_to(one, arrays[name].shape)
    assert tokens > 1 and arrays[name].strides[axis] == 0
    _, driver = launched(layout, arrays)
    place = [item.argument for item in plan_of(layout).variants[0].tensor_maps].index(name)
    request = driver.requests[place]
    assert (request.extents[1], request.strides[0]) == (tokens, 0)


def test_scales_take_any_strides_that_do_not_fall() -> None:
    arrays = host_arrays(DENSE)
    arrays["q_scale"] = np.broadcast_to(np.ones((1, 35, 1), np.float32), (2, 35, 8))
    arrays["k_scale"] = np.ones((45, 2, 3), np.float32).transpose(2, 1, 0)[0]
    launch, _ = launched(DENSE, arrays)
    names = [f"{side}_scale_{kind}_stride" for side in "qk" for kind in ("batch", "token", "head")]
    assert [launch.params[name] for name in names] == [0, 1, 0, 3, 6, 0]


@pytest.mark.parametrize("layout", [DENSE, MIXED[0]], ids=lambda layout: layout.name)
def test_a_capacity_is_refused_where_queries_are_dense(layout: Layout) -> None:
    text = refused(layout, host_arrays(layout), max_seqlen_q=35)
    assert text == (
        "error[max-seqlen]: max_seqlen_q is 35, but layout.q of the spec is dense, "
        "where q_len is the capacity\n  help: leave max_seqlen_q out, or build a spec with layout.q: ragged"
    )


def test_a_capacity_is_needed_where_only_queries_are_ragged() -> None:
    assert "max_seqlen_q is missing" in refused(MIXED[1], host_arrays(MIXED[1]), max_seqlen_q=None)


def test_tiles_of_dense_queries_count_their_length() -> None:
    launch, _ = launched(DENSE, host_arrays(DENSE, q_len=65))
    assert (launch.params["query_tiles"], launch.grid) == (2, (16, 2, 1))


@pytest.mark.parametrize(
    ("layout", "name", "said"),
    [
        (Layout(rope=0), "q_rope", "q_rope is passed, but dims.rope of the spec is 0\n"
         "  help: pass None as q_rope"),
        (Layout(rope=0), "k_rope", "k_rope is passed, but dims.rope of the spec is 0\n"
         "  help: pass None as k_rope"),
        (MIXED[0], "cu_seqlens_q", "cu_seqlens_q is passed, but layout.q of the spec is dense\n"
         "  help: leave cu_seqlens_q out, or declare layout.q: ragged"),
        (MIXED[1], "cu_seqlens_k", "cu_seqlens_k is passed, but layout.kv of the spec is dense\n"
         "  help: leave cu_seqlens_k out, or declare layout.kv: ragged"),
    ],
)  # fmt: skip
def test_what_a_spec_does_not_have_is_refused(layout: Layout, name: str, said: str) -> None:
    other = DeviceArray(host_arrays(RAGGED)[name])
    assert refused(layout, host_arrays(layout), **{name: other}) == f"error[argument-not-declared]: {said}"


def test_lengths_that_are_too_large_are_refused() -> None:
    arrays = host_arrays(DENSE)
    for name in ("k_nope", "v"):
        arrays[name] = as_strided(arrays[name], (2, 2**31, 4, 128), (2**38, 16, 128, 1))
    arrays["k_rope"] = as_strided(arrays["k_rope"], (2, 2**31, 64), (2**38, 16, 2))
    arrays["k_scale"] = as_strided(arrays["k_scale"], (2, 2**31), (4, 4))
    text = refused(DENSE, arrays)
    assert text.startswith("error[too-large]: queries + keys is ")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_check_looks_at_the_scales_of_all_tokens(layout: Layout) -> None:
    arrays = host_arrays(layout)
    kernel, driver = kernel_of(layout)
    kernel(**call_of(arrays), check=True)
    assert len([entry for entry in driver.calls if entry[0] == "synchronize"]) == 1
    place = (1, 44) if layout.kv == "dense" else (89,)
    arrays["k_scale"][place] = np.nan
    with pytest.raises(LaunchError) as caught:
        kernel(**call_of(arrays), check=True)
    assert f"k_scale is nan at {list(place)}" in str(caught.value)
    if layout.kv == "ragged":
        arrays["cu_seqlens_k"][-1] = 89
        kernel(**call_of(arrays), check=True)
    place = (1, 34, 7) if layout.q == "dense" else (69, 7)
    arrays["q_scale"][place] = -1
    with pytest.raises(LaunchError) as caught:
        kernel(**call_of(arrays), check=True)
    assert f"q_scale is -1.0 at {list(place)}" in str(caught.value)


@pytest.mark.parametrize("layout", MIXED, ids=lambda layout: layout.name)
def test_check_looks_at_the_lengths_that_are_there(layout: Layout) -> None:
    arrays = host_arrays(layout)
    name = "cu_seqlens_k" if layout.kv == "ragged" else "cu_seqlens_q"
    arrays[name][:] = 0, 36, 35
    kernel, driver = kernel_of(layout)
    with pytest.raises(LaunchError, match=f"{name} falls from 36 to 35 at sequence 1"):
        kernel(**call_of(arrays), check=True)
    assert not driver.launches


LIBRARIES = {"torch": TorchTensor, "cupy": CupyArray}


class Allocations(FakeLibraries):
    """Libraries that also allocate: with CuPy on the device that is current for it, with torch by `like`."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.made: list[tuple[tuple[int, ...], int]] = []

    def modules(self) -> dict[str, Any]:
        found = super().modules()
        found["cupy"].empty = lambda shape, dtype: self.allocate(CupyArray, shape, dtype, self.current)
        found["cupy"].cuda.Device = self.device
        found["torch"].bfloat16, found["torch"].float32 = np.dtype("u2"), np.dtype("f4")
        return found

    def allocate(self, kind: type, shape: tuple[int, ...], dtype: Any, device: int) -> Any:
        self.made.append((shape, device))
        code = {2: "u2", 4: "f4"}[np.dtype(dtype).itemsize]
        return kind(np.zeros(shape, code), len(self.made) << 34, device)

    def device(self, number: int) -> Any:
        libraries, before = self, self.current

        class Entered:
            def __enter__(self) -> None:
                libraries.current = number

            def __exit__(self, *_: object) -> None:
                libraries.current = before

        return Entered()


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    found = Allocations()
    for name, module in found.modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    def new_empty(like: TorchTensor, shape: tuple[int, ...], dtype: Any) -> Any:
        return found.allocate(TorchTensor, shape, dtype, like.index)

    monkeypatch.setattr(TorchTensor, "new_empty", new_empty, raising=False)
    return found


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, libraries: Allocations) -> str:
    return str(request.param)


def library_call(library: str, layout: Layout, *, device: int = 0, **sizes: int) -> dict[str, Any]:
    call: dict[str, Any] = {"q_rope": None, "k_rope": None}
    for number, (name, array) in enumerate(host_arrays(layout, **sizes).items(), start=1):
        call[name] = LIBRARIES[library](array, number << 20, device)
    return {**call, "max_seqlen_q": 35} if layout.q == "ragged" else call


def ways_of(kernel: Kernel) -> list[str]:
    """A list that gets an entry for each call from now on that goes the long way."""
    long_way, ways = kernel._call, []

    def noted(*arguments: Any) -> Any:
        ways.append("long")
        return long_way(*arguments)

    kernel._call = noted  # type: ignore[method-assign]
    return ways


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_repeated_call_is_launched_at_once(library: str, layout: Layout) -> None:
    kernel, driver = kernel_of(layout)
    call = library_call(library, layout)
    kernel(**call)
    ways = ways_of(kernel)
    assert kernel(**call) == (call["out"], call["lse"])
    first, second = driver.launches
    assert (first.key(), first.params, first.maps) == (second.key(), second.params, second.maps)
    assert not ways


def test_dense_queries_of_another_length_are_noticed(library: str) -> None:
    kernel, driver = kernel_of(DENSE)
    kernel(**library_call(library, DENSE))
    ways = ways_of(kernel)
    kernel(**library_call(library, DENSE, q_len=65))
    kernel(**library_call(library, DENSE))
    assert [launch.params["q_len"] for launch in driver.launches] == [35, 65, 35]
    assert ways == ["long"]
    with pytest.raises(LaunchError, match="max_seqlen_q is 35, but layout"):
        kernel(**library_call(library, DENSE), max_seqlen_q=35)
    assert len(driver.launches) == 3


@pytest.mark.parametrize("lse", ["head_token", "token_head"])
@pytest.mark.parametrize("queries", ["ragged", "dense"])
def test_outputs_are_allocated_on_the_device_of_the_arrays(
    library: str, libraries: Allocations, queries: str, lse: str
) -> None:
    layout = Layout(q=queries, lse=lse)
    kernel, driver = kernel_of(layout)
    call = library_call(library, layout, device=1)
    del call["out"], call["lse"]
    for _ in range(2):
        out, log_sum = kernel(**call)
        assert (driver.current, libraries.current) == (0, 0)
    shapes = {
        "ragged": ((70, 8, 128), {"head_token": (8, 70), "token_head": (70, 8)}),
        "dense": ((2, 35, 8, 128), {"head_token": (2, 8, 35), "token_head": (2, 35, 8)}),
    }
    assert libraries.made == 2 * [(shapes[queries][0], 1), (shapes[queries][1][lse], 1)]
    assert [launch.device for launch in driver.launches] == [1, 1]
    assert (out.shape, log_sum.shape) == (shapes[queries][0], shapes[queries][1][lse])


def test_known_calls_launch_on_the_device_of_the_arrays(library: str) -> None:
    kernel, driver = kernel_of(DENSE)
    call = library_call(library, DENSE, device=1)
    kernel(**call)
    ways = ways_of(kernel)
    for current in (0, 1, 0):
        driver.current = current
        kernel(**call)
        assert driver.current == current
    assert not ways
    assert [launch.device for launch in driver.launches] == [1, 1, 1, 1]
    assert [entry for entry in driver.calls if entry[0] == "load"] == [("load", 1)]


def test_contents_are_read_on_the_device_of_the_arrays() -> None:
    kernel, driver = kernel_of(DENSE)
    arrays = host_arrays(DENSE)
    driver.devices = {array.ctypes.data: 1 for array in arrays.values()}
    seen: list[int] = []
    driver.synchronize_stream = lambda stream: seen.append(driver.current)  # type: ignore[method-assign]
    kernel(**call_of(arrays), check=True)
    assert (seen, driver.current, driver.launches[0].device) == ([1], 0, 1)


def test_dimensions_come_from_dims_alone() -> None:
    item = plan_of(DENSE).variants[0].tensor_maps[0]
    form = types.SimpleNamespace(shape=(2, 35, 8, 128), strides=(35840, 1024, 128, 1))
    assert map_dimensions(item, form) == [(128, 1), (35, 1024), (8, 128), (2, 35840)]  # type: ignore[arg-type]
    turned = dataclasses.replace(item, dims=(3, 0, -1, 2))
    assert map_dimensions(turned, form) == [(128, 1), (2, 35840), (1, 0), (8, 128)]  # type: ignore[arg-type]
    assert map_request(turned, _form(), 64).strides == (35840, 128, 128)


def _form() -> Any:
    from mla_codegen.call.forms import array_form

    return array_form((2, 35, 8, 128), (35840, 1024, 128, 1), 1, "uint8", 0, "numpy")
