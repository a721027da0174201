"""A launch on NumPy arrays: copies them to the GPU, runs the kernel and copies the results back.

For checks and demonstrations; a program that cares for time keeps its arrays on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mla_codegen.errors import LaunchError

_CODES = {"float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "bfloat16": np.uint16}


def launch_on_host_arrays(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], out: np.ndarray, lse: np.ndarray | None
) -> None:
    """Calls `kernel` on device copies of all arrays and fills `out` and `lse` with what it left there.

    What `out` and `lse` hold before the call is on the GPU when the kernel starts, so that elements which it
    does not write keep it. LaunchError where CuPy is missing.
    """
    try:
        import cupy
    except ImportError as error:
        message = "CuPy is not installed, it is needed to run a kernel"
        raise LaunchError.single("no-cupy", message, help="install mla-codegen[cuda13]") from error
    placed = {name: _placed(cupy, value) for name, value in arguments.items()}
    device_out, device_lse = _placed(cupy, out), _placed(cupy, lse)
    results = {"out": device_out} if lse is None else {"out": device_out, "lse": device_lse}
    kernel(**placed, **results)
    _codes(out)[...] = cupy.asnumpy(device_out)
    if lse is not None:
        lse[...] = cupy.asnumpy(device_lse)


def _placed(cupy: Any, value: Any) -> Any:
    """A device copy of an array, 8-bit floats and bf16 as codes; anything else unchanged."""
    return cupy.asarray(_codes(value)) if isinstance(value, np.ndarray) else value


def _codes(array: np.ndarray) -> np.ndarray:
    """The array, or its view as unsigned integers where CuPy does not know the dtype."""
    code = _CODES.get(array.dtype.name)
    return array if code is None else array.view(code)
