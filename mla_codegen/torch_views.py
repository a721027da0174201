"""CPU tensors of torch as NumPy arrays over the same memory, as the emulator takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import LaunchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# bf16 and 8-bit floats, which `Tensor.numpy` refuses: by torch dtype, the integers that they are viewed as on
# the way and the dtype of ml_dtypes that they end as.
_BY_BITS = {
    getattr(torch, dtype.torch_dtype): (torch.int16 if dtype.bytes == 2 else torch.uint8, numpy_dtype(dtype))
    for dtype in DTYPES.values()
    if numpy_dtype(dtype).type.__module__ != "numpy"
}


def host_view(name: str, tensor: torch.Tensor | None) -> NDArray[np.generic] | None:
    """The elements of `tensor`, argument `name` of a call, under its own strides; None for None.

    bf16 and 8-bit floats become dtypes of ml_dtypes. LaunchError where the tensor is not in host memory or
    NumPy has no such dtype.
    """
    if tensor is None:
        return None
    if tensor.device.type != "cpu":
        raise LaunchError.single(
            "device-array",
            f"{name} is a torch tensor on {tensor.device}, the emulator takes tensors on cpu",
            help="move it with .cpu(), or register a kernel that was loaded with backend='gpu'",
        )
    tensor = tensor.detach()
    if tensor.dtype in _BY_BITS:
        codes, dtype = _BY_BITS[tensor.dtype]
        return tensor.view(codes).numpy().view(dtype)
    try:
        return tensor.numpy()
    except TypeError as error:
        raise LaunchError.single(
            "dtype",
            f"{name} has dtype {tensor.dtype}, one of {', '.join(d.torch_dtype for d in DTYPES.values())}, "
            "int32 or unsigned codes is needed",
            help=f"convert {name}",
        ) from error
