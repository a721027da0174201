"""Arrays of any GPU library as an address and a form. Nothing is copied.

CuPy arrays, torch tensors, objects with `__cuda_array_interface__` and objects with `__dlpack__` are read.
8-bit floats come as torch float8, as uint8 views, or through DLPack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mla_codegen.call.forms import MAX_FORMS, NO_FORM, ArrayForm, array_form
from mla_codegen.errors import LaunchError
from mla_codegen.runtime.dlpack import read_dlpack

Array: TypeAlias = Any
"""An array of any library; typed as Any since none of them is imported."""

_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "V": "void", "c": "complex"}


def view_array(name: str, array: Array | None, stream: int) -> tuple[int, ArrayForm]:
    """Address and form of argument `name`, 0 and NO_FORM for None; LaunchError where it is no GPU array.

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


_Pair: TypeAlias = tuple[int, ArrayForm]
_Reader: TypeAlias = Callable[[str, Array, int], _Pair]


@functools.lru_cache(maxsize=256)
def _reader(array_type: type) -> _Reader:
    """How arrays of this type are read."""
    if array_type is type(None):
        return _read_none
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


def _read_none(name: str, array: Array, stream: int) -> _Pair:
    return 0, NO_FORM


def _refuse_numpy(name: str, array: Array, stream: int) -> _Pair:
    raise LaunchError.single(
        "host-array",
        f"{name} is a NumPy array in host memory, an array on the GPU is needed",
        help="copy it with cupy.asarray, or load the kernel with backend='emulator'",
    )


Traits: TypeAlias = tuple[Any, ...]
"""All that an array's library says of its form, in the types of that library."""


class BulkReader(NamedTuple):
    """How arrays of one library are read together: `read` gives their addresses, and the traits of each.

    `form` takes traits and gives the form, None where the array is not on a GPU.
    """

    library: str
    read: Callable[[Sequence[Array]], tuple[list[int], list[Traits]]]
    form: Callable[..., ArrayForm | None]


def bulk_reader(array_types: Iterable[type]) -> BulkReader | None:
    """The reader of arrays that are all torch's or all CuPy's; None where they are not."""
    readers = {_reader(array_type) for array_type in array_types}
    return _BULK_READERS.get(readers.pop()) if len(readers) == 1 else None


def _read_torch(name: str, array: Array, stream: int) -> _Pair:
    form = _torch_form(array.shape, array.stride(), array.dtype, array.device)
    if form is None:
        raise LaunchError.single(
            "host-array",
            f"{name} is a torch tensor on {array.device}, a tensor on a CUDA device is needed",
            help="move it with .cuda(), or load the kernel with backend='emulator'",
        )
    return array.data_ptr(), form


@functools.lru_cache(maxsize=MAX_FORMS)
def _torch_form(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any
) -> ArrayForm | None:
    """The form of a tensor; None where it is not on a CUDA device."""
    if device.type != "cuda":
        return None
    item_bytes = dtype.itemsize
    name = str(dtype).removeprefix("torch.")
    return array_form(tuple(shape), _in_bytes(strides, item_bytes), item_bytes, name, device.index, "torch")


def _read_all_torch(tensors: Sequence[Array]) -> tuple[list[int], list[Traits]]:
    return (
        [tensor.data_ptr() for tensor in tensors],
        [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors],
    )


def _read_cupy(name: str, array: Array, stream: int) -> _Pair:
    data = array.data
    return data.ptr, _cupy_form(array.shape, array.strides, array.dtype, data.device_id)


@functools.lru_cache(maxsize=MAX_FORMS)
def _cupy_form(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int) -> ArrayForm:
    return array_form(shape, strides, dtype.itemsize, dtype.name, device, "cupy")


def _read_all_cupy(arrays: Sequence[Array]) -> tuple[list[int], list[Traits]]:
    return (
        [array.data.ptr for array in arrays],
        [(array.shape, array.strides, array.dtype, array.data.device_id) for array in arrays],
    )


_BULK_READERS = {
    _read_torch: BulkReader("torch", _read_all_torch, _torch_form),
    _read_cupy: BulkReader("cupy", _read_all_cupy, _cupy_form),
}


def _read_interface(name: str, array: Array, stream: int) -> _Pair:
    interface = array.__cuda_array_interface__
    strides = interface.get("strides")
    form = _interface_form(
        tuple(interface["shape"]),
        None if strides is None else tuple(strides),
        interface["typestr"],
        library_of_type(type(array)),
    )
    return interface["data"][0], form


@functools.lru_cache(maxsize=MAX_FORMS)
def _interface_form(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, typestr: str, library: str
) -> ArrayForm:
    item_bytes = int(typestr[2:])
    kind = _KINDS.get(typestr[1], typestr[1])
    dtype = kind if kind == "bool" else f"{kind}{8 * item_bytes}"
    strides = _in_bytes(c_strides(shape), item_bytes) if strides is None else strides
    return array_form(shape, strides, item_bytes, dtype, -1, library)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a contiguous array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _in_bytes(strides: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(stride * item_bytes for stride in strides)


def _read_dlpack(name: str, array: Array, stream: int) -> _Pair:
    found = read_dlpack(name, array, stream)
    strides = c_strides(found.shape) if found.strides is None else found.strides
    form = array_form(
        found.shape, _in_bytes(strides, found.item_bytes), found.item_bytes, found.dtype, found.device,
        library_of_type(type(array)),
    )  # fmt: skip
    return found.pointer, form


def _read_unknown(name: str, array: Array, stream: int) -> _Pair:
    """Objects that show their array interface only as instances; everything else is refused."""
    if hasattr(array, "__cuda_array_interface__"):
        return _read_interface(name, array, stream)
    raise LaunchError.single(
        "no-array",
        f"{name} is of type {type(array).__name__}, an array of CuPy, torch, or with "
        "__cuda_array_interface__ or __dlpack__ is needed",
        help="pass a GPU array",
    )
