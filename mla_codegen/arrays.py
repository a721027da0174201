"""One small interface over NumPy, CuPy and torch arrays; imports neither of the last two.

An array's own type tells its library, which is therefore loaded already and taken from `sys.modules`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from mla_codegen import fp8
from mla_codegen.dtypes import DTYPES, numpy_dtype

_FLOAT_DTYPES = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn")


class ArrayLibrary(Protocol):
    """What the quantiser needs of an array library; `x` is float32 of that library unless said otherwise."""

    def values(self, array: Any, dtype: str) -> Any:
        """Values of `array` as float32; unsigned integers are codes of `dtype` ("e4m3", "bf16", "f16")."""

    def cast(self, x: Any, dtype: str) -> Any:
        """Saturating conversion to "e4m3", "bf16", "f16" or "f32"; CuPy gives e4m3 and bf16 as codes."""

    def amax(self, x: Any, axes: tuple[int, ...]) -> Any:
        """Largest magnitude over `axes`, which are kept with length 1; 0 over an empty axis."""

    def maximum(self, x: Any, y: Any) -> Any:
        """Elementwise maximum of an array and an array or a number."""

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Elementwise choice between arrays or numbers."""

    def permute(self, x: Any, axes: tuple[int, ...]) -> Any:
        """View with reordered axes."""

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        """Float32 zeros on the device of `like`."""

    def int_array(self, numbers: Any, like: Any, bits: int) -> Any:
        """`numbers` as int32 or int64 on the device of `like`."""

    def is_host(self, x: Any) -> bool:
        """True where the elements can be read without a device synchronisation."""

    def all_finite(self, x: Any) -> bool:
        """True where no element is infinite or NaN; synchronises for device arrays."""


class NumpyLikeLibrary:
    """NumPy or CuPy; see `ArrayLibrary` for the contract of each method."""

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp

    def values(self, array: Any, dtype: str) -> Any:
        if holds_codes(array.dtype.name, dtype):
            if dtype == "e4m3":
                return fp8.e4m3_values(array, self._xp)
            if dtype == "bf16":
                return fp8.bf16_values(array, self._xp)
            array = array.view(self._xp.float16)
        return array.astype(self._xp.float32)

    def cast(self, x: Any, dtype: str) -> Any:
        xp = self._xp
        x = xp.ascontiguousarray(x, dtype=xp.float32)
        if dtype == "f32":
            return x
        if dtype == "f16":
            largest = DTYPES["f16"].max_finite
            return xp.clip(x, -largest, largest).astype(xp.float16)
        codes = fp8.e4m3_codes(x, xp) if dtype == "e4m3" else fp8.bf16_codes(x, xp)
        return codes.view(numpy_dtype(DTYPES[dtype])) if xp is np else codes

    def amax(self, x: Any, axes: tuple[int, ...]) -> Any:
        if x.size == 0:
            return self._xp.zeros(_kept_shape(x.shape, axes), dtype=self._xp.float32)
        return self._xp.abs(x).max(axis=axes, keepdims=True)

    def maximum(self, x: Any, y: Any) -> Any:
        return self._xp.maximum(x, self._xp.float32(y) if isinstance(y, float) else y)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        x, y = (self._xp.float32(z) if isinstance(z, float) else z for z in (x, y))
        return self._xp.where(condition, x, y)

    def permute(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self._xp.zeros(shape, dtype=self._xp.float32)

    def int_array(self, numbers: Any, like: Any, bits: int) -> Any:
        if self._xp is np:
            numbers = to_host(numbers)
        return self._xp.asarray(numbers, dtype=self._xp.int32 if bits == 32 else self._xp.int64)

    def is_host(self, x: Any) -> bool:
        return self._xp is np

    def all_finite(self, x: Any) -> bool:
        return bool(self._xp.isfinite(x).all())


class TorchLibrary:
    """torch tensors on any device; see `ArrayLibrary` for the contract of each method."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def values(self, array: Any, dtype: str) -> Any:
        if holds_codes(str(array.dtype).removeprefix("torch."), dtype):
            array = array.view(getattr(self._torch, DTYPES[dtype].torch_dtype))
        return array.detach().to(self._torch.float32)

    def cast(self, x: Any, dtype: str) -> Any:
        if dtype != "f32":
            largest = DTYPES[dtype].max_finite
            x = x.clamp(-largest, largest)
        return x.to(getattr(self._torch, DTYPES[dtype].torch_dtype)).contiguous()

    def amax(self, x: Any, axes: tuple[int, ...]) -> Any:
        if x.numel() == 0:
            return x.new_zeros(_kept_shape(tuple(x.shape), axes))
        return x.abs().amax(dim=axes, keepdim=True)

    def maximum(self, x: Any, y: Any) -> Any:
        return x.clamp(min=y) if isinstance(y, float) else self._torch.maximum(x, y)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        x, y = (
            self._torch.full((), z, dtype=self._torch.float32, device=condition.device)
            if isinstance(z, float)
            else z
            for z in (x, y)
        )
        return self._torch.where(condition, x, y)

    def permute(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.float32, device=like.device)

    def int_array(self, numbers: Any, like: Any, bits: int) -> Any:
        dtype = self._torch.int32 if bits == 32 else self._torch.int64
        if library_name(numbers) == "cupy":
            numbers = to_host(numbers)
        return self._torch.as_tensor(numbers, dtype=dtype, device=like.device)

    def is_host(self, x: Any) -> bool:
        return bool(x.device.type == "cpu")

    def all_finite(self, x: Any) -> bool:
        return bool(self._torch.isfinite(x).all())


def holds_codes(array_dtype: str, declared: str) -> bool:
    """True where an array holds unsigned integer codes of the declared dtype, False where it holds floats.

    Args:
        array_dtype: the array's dtype by its NumPy or torch name.
        declared: the dtype that the spec declares for it, by its spec name.

    Raises:
        ValueError: neither a float array nor codes of the declared width.
    """
    if array_dtype in _FLOAT_DTYPES:
        return False
    if array_dtype in DTYPES[declared].array_views:
        return True
    codes = "".join(f" or {view} codes" for view in DTYPES[declared].array_views)
    raise ValueError(f"dtype {array_dtype} cannot hold {declared}, give a float array{codes}")


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with length 1 along `axes`, negative ones counted from the end."""
    reduced = {axis % len(shape) for axis in axes}
    return tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))


def library_name(array: Any) -> str:
    """Name of the package that defines the array's type: "numpy", "cupy", "torch" or another."""
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("numpy", "cupy", "torch"):
            return root
    return type(array).__module__.partition(".")[0]


def library_of(array: Any) -> ArrayLibrary:
    """Array library of a NumPy, CuPy or torch array.

    Raises:
        ValueError: the array is of another type.
    """
    name = library_name(array)
    if name == "torch":
        return TorchLibrary(sys.modules["torch"])
    if name in ("numpy", "cupy"):
        return NumpyLikeLibrary(sys.modules[name])
    raise ValueError(f"an array of type {type(array).__name__} is not supported, give NumPy, CuPy or torch")


def to_host(array: Any) -> np.ndarray:
    """Copies an array of any supported library, or a sequence of numbers, to NumPy.

    torch's bf16 and fp8 tensors come back as float32 with the same values, all others with their own dtype.
    """
    name = library_name(array)
    if name == "cupy":
        return array.get()
    if name == "torch":
        array = array.detach().cpu()
        if str(array.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn"):
            array = array.float()
        return array.numpy()
    return np.asarray(array)


def host_values(array: Any, dtype: str) -> np.ndarray:
    """Values of an array of any supported library as NumPy float32, or float64 where it came so.

    Args:
        array: float array of any width, or uint8/uint16 codes.
        dtype: "e4m3", "bf16", "f16" or "f32": what unsigned integers are codes of.

    Raises:
        ValueError: the array's dtype is neither.
    """
    host = to_host(array)
    if host.dtype == np.float64:
        return host
    return NumpyLikeLibrary(np).values(host, dtype)
