"""The stream of a call: the one that is passed, or the current one of the arrays' library."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from mla_codegen.errors import LaunchError


def current_stream(library: str, device: int) -> int:
    """Handle of the library's current stream on `device` (-1: the current one); 0 where it has none."""
    if library == "torch":
        handle: int = _torch_stream_function()(device)
        return handle
    if library == "cupy":
        pointer: int = sys.modules["cupy"].cuda.get_current_stream(device).ptr
        return pointer
    return 0


@functools.cache
def _torch_stream_function() -> Callable[[int], int]:
    """What gives the handle of torch's current stream; without making a Stream object where torch can."""
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)


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
