"""Arrays of any GPU library as one view type: pointer, shape, strides, dtype, device. Nothing is copied.

CuPy arrays, torch tensors, objects with `__cuda_array_interface__` and objects with `__dlpack__` are read.
8-bit floats come as torch float8, as uint8 views, or through DLPack, which is read here directly since
`cupy.from_dlpack` raises TypeError for them.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mla_codegen.dtypes import Dtype, numpy_dtype
from mla_codegen.errors import LaunchError

Array: TypeAlias = Any
"""An array of any library; typed as Any since none of them is imported."""

_CUDA_DEVICE = 2
_DLPACK_TYPES = {0: "int", 1: "uint", 2: "float"}
_DLPACK_NAMES = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2", (6, 8): "bool"}
_CODE_NAMES = {1: "uint8", 2: "uint16"}


class ArrayView(NamedTuple):
    """Where and what an array is; hashable, so that a launch can be found again by its arguments.

    Strides count units of `stride_bytes`, as the array's library gives them; `library` is `torch`, `cupy`, or
    the name of another package. `device` is -1 where the array does not say.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stride_bytes: int
    item_bytes: int
    dtype: str
    device: int
    library: str

    def byte_strides(self) -> tuple[int, ...]:
        return tuple(stride * self.stride_bytes for stride in self.strides)

    def is_contiguous(self) -> bool:
        """Whether elements follow each other in C order; lengths of 1 may have any stride."""
        expected = self.item_bytes
        for extent, stride in zip(reversed(self.shape), reversed(self.byte_strides()), strict=True):
            if extent != 1 and stride != expected and 0 not in self.shape:
                return False
            expected *= extent
        return True


def view_array(name: str, array: Array, stream: int) -> ArrayView:
    """The view of argument `name`; LaunchError where it is no GPU array.

    `stream` is what a DLPack producer is asked to order its pending work with.
    """
    return _reader(type(array))(name, array, stream)


@functools.lru_cache(maxsize=256)
def library_of_type(array_type: type) -> str:
    """Root package of an array type: `torch` for all subclasses of torch.Tensor, `cupy` or another."""
    roots = [base.__module__.partition(".")[0] for base in array_type.__mro__]
    for known in ("torch", "cupy", "numpy"):
        if known in roots:
            return known
    return roots[0]


def current_stream(library: str, device: int) -> int:
    """Handle of the library's current stream on `device` (-1: the current one); 0 where it has none."""
    if library == "torch":
        torch = sys.modules["torch"]
        handle: int = torch.cuda.current_stream(None if device < 0 else device).cuda_stream
        return handle
    if library == "cupy":
        pointer: int = sys.modules["cupy"].cuda.get_current_stream(device).ptr
        return pointer
    return 0


def stream_handle(stream: object) -> int:
    """The integer handle of a stream: an int, or a stream object of CuPy, torch or another library."""
    if type(stream) is int:
        return stream
    for attribute in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    raise LaunchError.single(
        "stream",
        f"stream is of type {type(stream).__name__}, an integer handle or a stream of CuPy or torch is "
        "needed",
        help="pass stream=None for the library's current stream",
    )


def empty_like_library(library: str, like: Array, shape: tuple[int, ...], dtype: Dtype, device: int) -> Array:
    """A new array on `device` in `library` (CuPy where it is neither torch nor CuPy)."""
    if library == "torch":
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.torch_dtype))
    try:
        import cupy
    except ImportError as error:
        message = (
            f"out is missing and cannot be allocated for arrays of {library}, since CuPy is not installed"
        )
        raise LaunchError.single(
            "no-cupy", message, help="pass out=, or install mla-codegen[cuda13]"
        ) from error
    with cupy.cuda.Device(device):
        try:
            return cupy.empty(shape, dtype=numpy_dtype(dtype))
        except (TypeError, ValueError):
            return cupy.empty(shape, dtype=_CODE_NAMES[dtype.bytes])


_Reader: TypeAlias = Callable[[str, Array, int], ArrayView]


@functools.lru_cache(maxsize=256)
def _reader(array_type: type) -> _Reader:
    """How arrays of this type are read."""
    library = library_of_type(array_type)
    if library == "numpy":
        return _refuse_numpy
    if library == "torch":
        return _read_torch
    if library == "cupy" and hasattr(array_type, "data"):
        return _read_cupy
    if hasattr(array_type, "__cuda_array_interface__"):
        return _read_interface
    if hasattr(array_type, "__dlpack__"):
        return _read_dlpack
    return _read_unknown


def _refuse_numpy(name: str, array: Array, stream: int) -> ArrayView:
    raise LaunchError.single(
        "host-array",
        f"{name} is a NumPy array in host memory, an array on the GPU is needed",
        help="copy it with cupy.asarray, or load the kernel with backend='emulator'",
    )


def _read_torch(name: str, array: Array, stream: int) -> ArrayView:
    device = array.get_device()
    if device < 0 or not array.is_cuda:
        raise LaunchError.single(
            "host-array",
            f"{name} is a torch tensor on {array.device}, a tensor on a CUDA device is needed",
            help="move it with .cuda(), or load the kernel with backend='emulator'",
        )
    item_bytes, dtype = _torch_dtype(array.dtype)
    return ArrayView(
        array.data_ptr(), array.shape, array.stride(), item_bytes, item_bytes, dtype, device, "torch"
    )


@functools.lru_cache(maxsize=64)
def _torch_dtype(dtype: Any) -> tuple[int, str]:
    return dtype.itemsize, str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=64)
def _array_dtype(dtype: Any) -> tuple[int, str]:
    return dtype.itemsize, dtype.name


def _read_cupy(name: str, array: Array, stream: int) -> ArrayView:
    data = array.data
    item_bytes, dtype = _array_dtype(array.dtype)
    return ArrayView(data.ptr, array.shape, array.strides, 1, item_bytes, dtype, data.device_id, "cupy")


def _read_interface(name: str, array: Array, stream: int) -> ArrayView:
    interface = array.__cuda_array_interface__
    shape = tuple(interface["shape"])
    item_bytes, dtype = _typestr(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:
        strides = _c_strides(shape, item_bytes)
    library = library_of_type(type(array))
    return ArrayView(interface["data"][0], shape, tuple(strides), 1, item_bytes, dtype, -1, library)


@functools.lru_cache(maxsize=64)
def _typestr(typestr: str) -> tuple[int, str]:
    """Item size and dtype name of an array-interface type string such as `<f4`."""
    item_bytes = int(typestr[2:])
    kind = {"f": "float", "i": "int", "u": "uint", "b": "bool", "V": "void", "c": "complex"}.get(
        typestr[1], typestr[1]
    )
    return item_bytes, kind if kind == "bool" else f"{kind}{8 * item_bytes}"


def _c_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides = []
    step = item_bytes
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """The first member of the structure behind a `dltensor` capsule (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _read_dlpack(name: str, array: Array, stream: int) -> ArrayView:
    device_type, _ = array.__dlpack_device__()
    if int(device_type) != _CUDA_DEVICE:
        raise LaunchError.single(
            "host-array",
            f"{name} is on DLPack device type {int(device_type)}, type {_CUDA_DEVICE} (CUDA) is needed",
            help="move it to the GPU, or load the kernel with backend='emulator'",
        )
    # 0 is not allowed in DLPack, 1 is the legacy default stream. The capsule is only looked at: dropped under
    # its own name, it frees what it holds itself, and the memory stays with the array.
    capsule = array.__dlpack__(stream=stream or 1)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    item_bytes = tensor.dtype.bits * tensor.dtype.lanes // 8
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _c_strides(shape, 1)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return ArrayView(
        pointer, shape, strides, item_bytes, item_bytes, _dlpack_name(tensor.dtype), tensor.device_id,
        library_of_type(type(array)),
    )  # fmt: skip


def _dlpack_name(dtype: _DLDataType) -> str:
    if dtype.code in _DLPACK_TYPES:
        return f"{_DLPACK_TYPES[dtype.code]}{dtype.bits}"
    return _DLPACK_NAMES.get((dtype.code, dtype.bits), f"dlpack code {dtype.code} of {dtype.bits} bits")


def _read_unknown(name: str, array: Array, stream: int) -> ArrayView:
    """Objects that show their array interface only as instances; everything else is refused."""
    if hasattr(array, "__cuda_array_interface__"):
        return _read_interface(name, array, stream)
    raise LaunchError.single(
        "no-array",
        f"{name} is of type {type(array).__name__}, an array of CuPy, torch, or with "
        "__cuda_array_interface__ or __dlpack__ is needed",
        help="pass a GPU array",
    )
