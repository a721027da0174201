"""`mla.quantize` on arrays of a stand-in for CuPy, whose driver runs launches under the emulator."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mla_codegen.loading
import mla_codegen.runtime.quantizer
from mla_codegen.emulator.native import GlobalRange, RunConfig
from mla_codegen.errors import LaunchError
from mla_codegen.plan.quantizer import plan_quantizer
from mla_codegen.quantize import quantize
from mla_codegen.runtime.packing import params_layout
from mla_codegen.spec import Spec
from tests.emulator.small import aligned
from tests.emulator.test_quantizer import emulated, inputs_of, lengths_of, make_spec

CODES = {"float8_e4m3fn": np.uint8, "bfloat16": np.uint16}


class DeviceArray(np.ndarray):
    """A NumPy array that looks like CuPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    def get(self) -> np.ndarray:
        return np.array(self)


DeviceArray.__module__ = "cupy"


def on_device(array: np.ndarray) -> DeviceArray:
    codes = CODES.get(array.dtype.name)
    return aligned(array.view(codes) if codes else array).view(DeviceArray)


class EmulatingDriver:
    """Runs the launches of one quantiser; functions are numbers of entries."""

    def __init__(self, spec: Spec) -> None:
        plan = plan_quantizer(spec)
        assert plan is not None
        self.plan, self.capability = plan, (9, 0)
        self.arrays: list[np.ndarray] = []
        self.launches: list[str] = []
        self.cleared: list[int] = []

    def compute_capability(self, device: int) -> tuple[int, int]:
        return self.capability

    @contextlib.contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        yield

    def load_module(self, cubin: bytes) -> int:
        return 1

    def function(self, module: int, name: str) -> int:
        return self.plan.entries().index(name) + 1

    def clear_words(self, target: int, words: int, stream: int) -> None:
        ctypes.memset(target, 0, 4 * words)
        self.cleared.append(words)

    def check(self, what: str, status: int) -> None:
        assert status == 0, what

    def launch_kernel(self, function: ctypes.c_void_p, *arguments: Any) -> int:
        ctas, _, _, threads, _, _, smem_bytes, stream, params, _ = arguments
        assert stream.value == 77
        layout = params_layout(self.plan.params)
        values = layout.unpack(ctypes.string_at(params[0], layout.size_bytes))
        ranges = [
            GlobalRange(address=one.ctypes.data, bytes=_spanned(one), marks=0, writable=1, index=index)
            for index, one in enumerate(self.arrays)
        ]
        config = RunConfig(
            threads=threads, smem_bytes=smem_bytes, launch_registers=128, grid=(ctas, 1, 1), checks=1,
            workers=1, stack_bytes=262144,
        )  # fmt: skip
        assert function.value is not None
        self.launches.append(self.plan.entries()[function.value - 1])
        library = emulated_library(self.plan.facts)
        slots = [int(value) & 0xFFFFFFFFFFFFFFFF for value in values.values()]
        assert not library.run(function.value - 1, config, ranges, b"", slots).hazards
        return 0


def _spanned(array: np.ndarray) -> int:
    steps = ((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return sum(steps) + array.itemsize


_libraries: dict[Any, Any] = {}


def emulated_library(facts: Any) -> Any:
    return _libraries[facts]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes a driver for a spec, and a CuPy whose memory it knows."""

    def make(spec: Spec) -> EmulatingDriver:
        driver = EmulatingDriver(spec)
        _libraries[driver.plan.facts] = emulated(spec)._library

        def empty(shape: tuple[int, ...], dtype: str) -> DeviceArray:
            made = aligned(np.full(shape, 85, dtype)).view(DeviceArray)
            driver.arrays.append(made)
            return made

        cuda = SimpleNamespace(
            Device=lambda device: contextlib.nullcontext(),
            get_current_stream=lambda device: SimpleNamespace(ptr=77),
        )

        def asarray(array: np.ndarray, dtype: Any) -> DeviceArray:
            return np.asarray(array, dtype).view(DeviceArray)

        fake = SimpleNamespace(cuda=cuda, empty=empty, int32=np.int32, asarray=asarray)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.setattr(mla_codegen.runtime.quantizer, "the_driver", lambda: driver)
        cache = SimpleNamespace(get=lambda source, *, arch, name: SimpleNamespace(cubin=b""))
        monkeypatch.setattr("mla_codegen.runtime.cache.default_cache", lambda folder: cache)
        monkeypatch.setattr("mla_codegen.runtime.nvrtc.find_nvrtc", lambda arch: None)
        monkeypatch.setattr(mla_codegen.loading, "_quantizers", type(mla_codegen.loading._quantizers)(4))
        return driver

    return make


def given_of(driver: EmulatingDriver, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    given = {name: on_device(array) for name, array in arrays.items()}
    driver.arrays += given.values()
    return given


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        if isinstance(wanted, np.ndarray):
            assert type(found[name]) is DeviceArray, name
            assert np.array(found[name]).tobytes() == wanted.tobytes(), name
        else:
            assert found[name] == wanted


@pytest.mark.parametrize("v_layout", ["rows", "transposed"])
@pytest.mark.parametrize("form", ["token", "tensor"])
def test_device_arrays_go_through_the_kernels(form: str, v_layout: str, device: Any) -> None:
    spec = make_spec(scales_q=form, scales_k=form, scales_v=form, layout_v=v_layout)
    driver, lens = device(spec), (5, 3)
    inputs = inputs_of(spec, q_tokens=3, lens=lens, heads=2)
    lengths = lengths_of(spec, inputs, lens)
    expected = quantize(spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths)
    given, cu = given_of(driver, inputs), given_of(driver, lengths)
    found = quantize(spec, given["q"], given["kv"], given["k_rope"], **cu)
    assert_same(found, expected)
    two = form == "tensor" or v_layout == "transposed"
    assert driver.launches == [*(["small_scales_bf16"] if two else []), "small_quantize_bf16"]
    assert driver.cleared == ([5] if form == "tensor" else [])
    again = quantize(spec, given["q"], given["kv"], given["k_rope"][:, None], **cu, out=found)
    assert all(
        again[name] is found[name] for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v", "q_scale")
    )
    assert_same(again, expected)
    assert len(driver.launches) == (4 if two else 2)


def test_f16_arrays_have_an_entry_of_their_own(device: Any) -> None:
    spec = make_spec()
    driver, lens = device(spec), (4,)
    inputs = inputs_of(spec, q_tokens=2, lens=lens, heads=2, dtype=np.float16)
    lengths = lengths_of(spec, inputs, lens)
    given = given_of(driver, inputs)
    found = quantize(spec, given["q"], given["kv"], given["k_rope"], **given_of(driver, lengths))
    assert_same(found, quantize(spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths))
    assert driver.launches == ["small_quantize_f16"]


def refused(driver: EmulatingDriver, spec: Spec, inputs: dict[str, Any]) -> str | None:
    quantizer = mla_codegen.loading.load_quantizer(spec, driver.plan.facts)
    assert quantizer is not None
    return quantizer.refuses(inputs)


def test_arrays_that_are_not_read_are_said(device: Any) -> None:
    spec = make_spec()
    driver = device(spec)
    given = given_of(driver, inputs_of(spec, q_tokens=2, lens=(4,), heads=2))
    assert refused(driver, spec, given) is None
    q = given["q"]
    longer = np.pad(q, ((0, 0), (0, 0), (1, 7))).view(DeviceArray)
    for wrong, text in (
        (q.astype(np.float32), "q is float32"),
        (q[:0], "q has no elements"),
        (longer[..., 1 : 1 + q.shape[-1]], "rows of q do not begin at multiples of 16 bytes"),
        (q[..., ::2], "the last axis of q is not contiguous"),
        (q.view(np.float16), "the inputs have different dtypes"),
        (np.array(q), "arrays of cupy and numpy"),
    ):
        assert text in (refused(driver, spec, {**given, "q": wrong}) or ""), text
    driver.capability = (8, 0)
    fresh = given_of(driver, inputs_of(spec, q_tokens=3, lens=(4,), heads=2))
    assert refused(driver, spec, fresh) == "compute capability 8.0, the spec is for sm_90a"


def test_outputs_that_do_not_fit_are_refused(device: Any) -> None:
    spec = make_spec()
    driver, lens = device(spec), (4,)
    inputs = inputs_of(spec, q_tokens=2, lens=lens, heads=2)
    cu = given_of(driver, lengths_of(spec, inputs, lens))
    given = given_of(driver, inputs)
    packed = quantize(spec, given["q"], given["kv"], given["k_rope"], **cu)
    before = len(driver.launches)
    for changes, text in (
        ({"v": packed["v"][:-1]}, r"v of out is uint8\[3, 2, 128\]"),
        ({"q_scale": packed["q_scale"].astype(np.float64)}, "q_scale of out is float64"),
        ({"k_nope": packed["k_nope"].transpose(0, 1, 2)[::-1]}, "k_nope of out .* contiguous on device 0"),
    ):
        with pytest.raises(LaunchError, match=text):
            quantize(spec, given["q"], given["kv"], given["k_rope"], **cu, out={**packed, **changes})
    del packed["k_scale"]
    with pytest.raises(LaunchError, match="out has no k_scale"):
        quantize(spec, given["q"], given["kv"], given["k_rope"], **cu, out=packed)
    assert len(driver.launches) == before


def test_specs_without_a_quantiser() -> None:
    assert plan_quantizer(make_spec()) is not None
    assert plan_quantizer(dict(make_spec().to_mapping())) == plan_quantizer(make_spec())
    nameless = {name: value for name, value in make_spec().to_mapping().items() if name != "name"}
    assert plan_quantizer(nameless) is None
    bf16 = {"name": "wide", "arch": "sm_90a", "dtypes": {"qkv": "bf16"}, "dims": dict(make_spec().dims)}
    assert plan_quantizer(Spec.from_mapping(bf16)) is None


def test_numpy_arrays_are_written_to_out() -> None:
    spec = make_spec(scales_v="head")
    inputs = inputs_of(spec, q_tokens=3, lens=(5,), heads=2)
    lengths = lengths_of(spec, inputs, (5,))
    expected = quantize(spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths)
    out = {name: np.zeros_like(one) for name, one in expected.items() if isinstance(one, np.ndarray)}
    found = quantize(spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths, out=out)
    assert found["v"] is out["v"] and found["q_rope"] is out["q_rope"]
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v", "q_scale", "k_scale", "v_scale"):
        assert out[name].tobytes() == expected[name].tobytes(), name
    with pytest.raises(ValueError, match=r"v of out is float32\[5, 2, 128\], float8_e4m3fn\[5, 2, 128\]"):
        quantize(
            spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths,
            out={**out, "v": out["v"].astype(np.float32)},
        )  # fmt: skip
    with pytest.raises(ValueError, match="out has no q_scale"):
        quantize(spec, inputs["q"], inputs["kv"], inputs["k_rope"], **lengths, out={"v": out["v"]} | {
            name: out[name] for name in ("q_nope", "k_nope", "q_rope", "k_rope")
        })  # fmt: skip
