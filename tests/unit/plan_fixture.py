"""A hand-made plan with what the runtime reads, and stand-ins for arrays and the CUDA driver."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mla_codegen.call.forms import ArrayForm, array_form
from mla_codegen.plan.model import (
    PLAN_SCHEMA,
    Argument,
    Features,
    Launch,
    Mbarrier,
    ParamField,
    Plan,
    Role,
    Smem,
    SmemField,
    TensorMap,
    Variant,
)
from mla_codegen.runtime.packing import ParamsLayout, params_layout

TOTAL_Q, TOTAL_K, HEADS, BATCH = 70, 90, 8, 2
SEQUENCES = {"cu_seqlens_q": [0, 30, 70], "cu_seqlens_k": [0, 50, 90]}

_TENSORS = (
    ("q_nope", "e4m3", ("total_q", "heads", "128"), "tensor"),
    ("q_rope", "bf16", ("total_q", "heads", "64"), "tensor"),
    ("k_nope", "e4m3", ("total_k", "kv_heads", "128"), "tensor"),
    ("k_rope", "bf16", ("total_k", "1", "64"), "tensor"),
    ("v", "e4m3", ("total_k", "kv_heads", "128"), "tensor"),
    ("q_scale", "f32", ("total_q",), "scale"),
    ("k_scale", "f32", ("total_k",), "scale"),
    ("cu_seqlens_q", "i32", ("batch + 1",), "lengths"),
    ("cu_seqlens_k", "i32", ("batch + 1",), "lengths"),
    ("out", "bf16", ("total_q", "heads", "128"), "output"),
)
_PARAMS = (
    ("u8*", "out"),
    ("const i32*", "cu_seqlens_q"),
    ("const i32*", "cu_seqlens_k"),
    ("i64", "out_token_stride"),
    ("i64", "out_head_stride"),
    ("i32", "batch"),
    ("i32", "heads"),
    ("i32", "query_tiles"),
    ("u32", "q_nope_head_step"),
    ("u32", "q_rope_head_step"),
    ("u32", "k_nope_head_step"),
    ("u32", "v_head_step"),
    ("const float*", "q_scale"),
    ("const float*", "k_scale"),
    ("i64", "q_scale_token_stride"),
    ("i64", "k_scale_token_stride"),
    ("float", "scale_log2"),
)
_AXES = {
    **dict.fromkeys(("q_nope_head_step", "q_rope_head_step", "k_nope_head_step", "v_head_step"), 1),
    "out_token_stride": 0,
    "out_head_stride": 1,
    "q_scale_token_stride": 0,
    "k_scale_token_stride": 0,
}
"""The axis that a stride or a step of Params goes along."""


def blank(cls: type, given: Mapping[str, Any]) -> Any:
    """An instance of a plan dataclass: `given` fields as they are, all others empty or zero."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: given[name] if name in given else _empty(hints[name]) for name in names})


def _empty(annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return blank(typing.cast(type, annotation), {})
    if isinstance(annotation, types.UnionType):
        return None
    origin = typing.get_origin(annotation) or annotation
    return {} if origin is Mapping else origin()


def make_plan(*, scaled: bool = True, debug: bool = False) -> Plan:
    """DeepSeek's dimensions on sm_90a; without scales the plan takes none and has no member for them."""
    spec: dict[str, Any] = {
        "name": "tiny",
        "dims": {"nope": 128, "rope": 64, "v": 128},
        "heads": {"q": "any", "group": 1},
        "softmax": {"lse": "none", "lse_layout": "head_token"},
    }
    tensors = [row for row in _TENSORS if scaled or not row[0].endswith("_scale")]
    given = {
        "plan_schema": PLAN_SCHEMA,
        "name": "tiny",
        "arch": "sm_90a",
        "spec": spec,
        "arguments": tuple(
            Argument(name=name, dtype=dtype, axes=axes, kind=kind, comment="")
            for name, dtype, axes, kind in tensors
        ),
        "variants": (_variant(scaled=scaled, debug=debug),),
    }
    plan: Plan = blank(Plan, given)
    return plan


def _variant(*, scaled: bool, debug: bool) -> Variant:
    smem = {"fields": (blank(SmemField, {"name": "mbar_base", "offset_bytes": 4096, "size_bytes": 80}),)}
    barriers = (("q_full", 1, 0), ("k_full", 3, 1), ("k_empty", 3, 4), ("v_full", 3, 7))
    roles = (("load", 0, 1), ("transpose", 1, 3), ("consumer", 4, 8))
    launch = Launch(
        threads=384, smem_bytes=5120, block_m=64, block_n=32, grid_y_limit=65535, run_heads=1, longest_run=4,
        sms=132, launch_registers=168, reported_barriers=16,
    )  # fmt: skip
    variant: Variant = blank(
        Variant,
        {
            "entry": "tiny",
            "features": blank(Features, {"debug": debug, "carries_scales": scaled}),
            "smem": blank(Smem, smem),
            "mbarriers": tuple(
                blank(Mbarrier, {"name": name, "stages": stages, "first_index": first})
                for name, stages, first in barriers
            ),
            "num_mbars": 10,
            "roles": tuple(
                blank(Role, {"name": name, "first_warp": first, "num_warps": count})
                for name, first, count in roles
            ),
            "tensor_maps": tuple(_maps()),
            "params": tuple(
                ParamField(ctype=ctype, name=name, comment="", axis=_AXES.get(name))
                for ctype, name in _PARAMS
                if scaled or not name.startswith(("q_scale", "k_scale"))
            ),
            "launch": launch,
        },
    )
    return variant


def _maps() -> Iterator[TensorMap]:
    for argument, dtype, rows, width in (
        ("q_nope", "e4m3", 64, 128),
        ("q_rope", "bf16", 64, 64),
        ("k_nope", "e4m3", 32, 128),
        ("k_rope", "bf16", 32, 64),
        ("v", "e4m3", 32, 128),
    ):
        dims = (1, 0, -1) if argument == "k_rope" else (2, 0, 1)
        given = {
            "axes": ("depth", "tokens", "heads"), "dims": dims, "box": (width, rows, 1), "swizzle_bytes": 128
        }  # fmt: skip
        yield blank(TensorMap, {"name": f"{argument}_map", "argument": argument, "dtype": dtype, **given})


class DeviceArray:
    """A NumPy array that pretends to lie on a GPU."""

    def __init__(self, array: np.ndarray, *, pointer: int | None = None) -> None:
        self.array = array
        self.pointer = array.ctypes.data if pointer is None else pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape,
            "strides": None if self.array.flags.c_contiguous else self.array.strides,
            "typestr": self.array.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
        }


class FakeDtype:
    """torch's kind of dtype: a name and a size."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __str__(self) -> str:
        return f"torch.{self.name}"


class FakeDevice(typing.NamedTuple):
    """torch's kind of device; equal ones need not be one object."""

    type: str
    index: int


_TORCH_DTYPES = {
    "uint8": FakeDtype("float8_e4m3fn", 1),
    "uint16": FakeDtype("bfloat16", 2),
    "float32": FakeDtype("float32", 4),
    "int32": FakeDtype("int32", 4),
}


class TorchTensor:
    """What the runtime reads of a torch tensor, all of it changeable in place."""

    __module__ = "torch"

    def __init__(self, array: np.ndarray, pointer: int, device: int = 0) -> None:
        self.shape, self.pointer = array.shape, pointer
        self.steps = tuple(stride // array.itemsize for stride in array.strides)
        self.dtype = _TORCH_DTYPES[array.dtype.name]
        self.index = device

    @property
    def device(self) -> FakeDevice:
        return FakeDevice("cuda", self.index)

    def stride(self) -> tuple[int, ...]:
        return self.steps

    def data_ptr(self) -> int:
        return self.pointer


class CupyArray:
    """What the runtime reads of a CuPy array, all of it changeable in place."""

    __module__ = "cupy"
    data = types.SimpleNamespace()

    def __init__(self, array: np.ndarray, pointer: int, device: int = 0) -> None:
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.data = types.SimpleNamespace(ptr=pointer, device_id=device)


class FakeLibraries:
    """Modules `torch` and `cupy` with current streams by device, 0 where there is none."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}

    def modules(self) -> dict[str, Any]:
        return {
            "torch": types.SimpleNamespace(_C=types.SimpleNamespace(_cuda_getCurrentRawStream=self.stream)),
            "cupy": types.SimpleNamespace(
                cuda=types.SimpleNamespace(
                    get_current_stream=lambda device: types.SimpleNamespace(ptr=self.stream(device))
                )
            ),
        }

    def stream(self, device: int) -> int:
        return self.streams.get(device, 0)


def aligned(shape: tuple[int, ...], dtype: str, *, shift_bytes: int = 0) -> np.ndarray:
    """Zeros whose address is `shift_bytes` past a multiple of 256."""
    count, item = math.prod(shape), np.dtype(dtype).itemsize
    raw = np.zeros(count * item + 512, np.uint8)
    start = -raw.ctypes.data % 256 + shift_bytes
    return raw[start : start + count * item].view(dtype).reshape(shape)


def good_arrays(*, scaled: bool = True, batch: int = BATCH) -> dict[str, np.ndarray]:
    """Host arrays of a legal call, every argument contiguous and aligned; `out` included."""
    shapes = {
        "q_nope": ((TOTAL_Q, HEADS, 128), "u1"),
        "q_rope": ((TOTAL_Q, HEADS, 64), "u2"),
        "k_nope": ((TOTAL_K, HEADS, 128), "u1"),
        "k_rope": ((TOTAL_K, 64), "u2"),
        "v": ((TOTAL_K, HEADS, 128), "u1"),
        "q_scale": ((TOTAL_Q,), "f4"),
        "k_scale": ((TOTAL_K,), "f4"),
        "cu_seqlens_q": ((batch + 1,), "i4"),
        "cu_seqlens_k": ((batch + 1,), "i4"),
        "out": ((TOTAL_Q, HEADS, 128), "u2"),
    }
    arrays = {
        name: aligned(*shape) for name, shape in shapes.items() if scaled or not name.endswith("_scale")
    }
    for name, values in SEQUENCES.items():
        arrays[name][:] = values[: batch + 1]
    return arrays


def good_forms() -> dict[str, ArrayForm]:
    """Forms of a legal call on device 0, outputs included."""
    return {
        name: array_form(array.shape, array.strides, array.itemsize, array.dtype.name, 0, "fake")
        for name, array in good_arrays().items()
    }


class MapRequest(typing.NamedTuple):
    """What a tensor map was encoded from, as numbers."""

    dtype: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class FakeDriver:
    """Records what the runtime asks of the driver; device memory is host memory."""

    def __init__(
        self,
        *,
        capability: tuple[int, int] = (9, 0),
        devices: Mapping[int, int] | None = None,
        plan: Plan | None = None,
    ) -> None:
        """`devices` by address, 0 for all others; `plan` is the one whose Params launches carry."""
        self.layout = params_layout((plan or make_plan()).variants[0].params)
        self.capability = capability
        self.devices = devices or {}
        self.current = 0
        self.calls: list[tuple[object, ...]] = []
        self.requests: list[MapRequest] = []
        self.launches: list[Launched] = []
        self.status = 0
        self.encode_status = 0

    def compute_capability(self, device: int) -> tuple[int, int]:
        return self.capability

    def current_device(self) -> int:
        return self.current

    def pointer_device(self, pointer: int) -> int:
        return self.devices.get(pointer, 0)

    def primary_context(self, device: int) -> int:
        return 1000 + device

    def read_context(self, place: Any) -> int:
        place._obj.value = self.primary_context(self.current)
        return 0

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def load_module(self, cubin: bytes) -> int:
        self.calls.append(("load", self.current))
        return 7

    def function(self, module: int, name: str) -> int:
        return 8

    def allow_dynamic_smem(self, function: int, size_bytes: int) -> None:
        self.calls.append(("smem", size_bytes))

    def mapped_host_memory(self, size_bytes: int) -> tuple[int, int]:
        self.record = np.zeros(size_bytes, np.uint8)
        return self.record.ctypes.data, 0xD000

    def global_address(self, module: int, name: str) -> int:
        return 0xA000

    def copy_to_device(self, target: int, data: bytes) -> None:
        self.calls.append(("copy", target, data))

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        ctypes.memmove(target, source, size_bytes)

    def gather_to_host(
        self, target: int, source: int, item_bytes: int, stride_bytes: int, count: int, stream: int
    ) -> None:
        for index in range(count):
            ctypes.memmove(target + index * item_bytes, source + index * stride_bytes, item_bytes)

    def encode_tiled(self, place: int, *arguments: Any) -> int:
        """Writes the address and the number of the request where the real driver writes its 128 bytes."""
        assert place % 64 == 0
        dtype, _, address, extents, strides, box, _, _, swizzle, _, _ = arguments
        outer = tuple(strides)[: len(extents) - 1]
        self.requests.append(MapRequest(dtype, address, tuple(extents), outer, tuple(box), swizzle))
        ctypes.memmove(place, struct.pack("<QQ", address, len(self.requests) - 1), 16)
        return self.encode_status

    def replace_address(self, place: ctypes.c_void_p, address: ctypes.c_uint64) -> int:
        ctypes.memmove(place, struct.pack("<Q", address.value), 8)
        return self.encode_status

    def synchronize_stream(self, stream: int) -> None:
        self.calls.append(("synchronize", stream))

    def synchronize(self) -> int:
        return self.status

    def error_name(self, status: int) -> str:
        return f"CUDA_ERROR_{status}"

    def check(self, what: str, status: int) -> None:
        assert status == 0, what

    def launch_kernel(self, *arguments: object) -> int:
        self.launches.append(Launched(self.current, arguments, self.layout))
        return 0


class StubBuild:
    """A build that has a cubin and says so."""

    cubin = b"cubin"

    def find(self) -> StubBuild:
        return self

    def get(self) -> StubBuild:
        return self


class Launched:
    """A launch as the driver saw it, with copies of the kernel's arguments."""

    def __init__(self, device: int, arguments: tuple[Any, ...], layout: ParamsLayout) -> None:
        self.device = device
        function, *grid, self.threads, self.y, self.z, self.smem_bytes, stream = arguments[:9]
        self.function, self.stream, self.grid = function.value, stream.value or 0, tuple(grid)
        *maps, params = arguments[9]
        # Per tensor map the address that it describes, and which request it was encoded from.
        self.maps = [struct.unpack("<QQ", ctypes.string_at(place, 16)) for place in maps]
        self.params = layout.unpack(ctypes.string_at(params, layout.size_bytes))
        self.extra = arguments[10]

    def key(self) -> tuple[object, ...]:
        """All but the arguments."""
        sizes = (self.threads, self.y, self.z, self.smem_bytes)
        return (self.device, self.function, self.grid, *sizes, self.stream)
