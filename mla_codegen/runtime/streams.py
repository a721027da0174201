"""The stream of a call: the one that is passed, or the current one of the arrays' library."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mla_codegen.errors import LaunchError

_HELP = "pass stream=None for the library's current stream"


def current_stream_function(library: str) -> Callable[[int], int]:
    """Gives the handle of the library's current stream on a device; 0 for libraries that have none."""
    if library == "torch":
        torch = sys.modules["torch"]
        raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        # The handle without a Stream object around it, where this torch has it.
        return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
    if library == "cupy":
        get_current_stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda device: get_current_stream(device).ptr
    return lambda device: 0


def stream_handle(stream: object) -> int:
    """The integer handle of a stream: an int, or a stream object of CuPy, torch or another library."""
    if type(stream) is int:
        if stream < 0:
            message = f"stream is {stream}, the handle of a stream is at least 0"
            raise LaunchError.single("stream", message, help=_HELP)
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
        help=_HELP,
    )
