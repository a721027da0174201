"""Outputs that a call was not given, allocated by the library of its inputs."""

from __future__ import annotations

import sys

from mla_codegen.dtypes import Dtype, numpy_dtype
from mla_codegen.errors import LaunchError
from mla_codegen.runtime.arrays import Array, library_of_type

_CODE_NAMES = {1: "uint8", 2: "uint16"}


def empty_like_library(like: Array, shape: tuple[int, ...], dtype: Dtype, device: int) -> Array:
    """A new array on `device` in the library of `like` (CuPy where it is neither torch nor CuPy)."""
    library = library_of_type(type(like))
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
