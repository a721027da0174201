"""What `check=True` looks at: the run-time data that no argument check can see, with one synchronisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mla_codegen.errors import Diagnostic, LaunchError
from mla_codegen.runtime.arrays import ArrayView
from mla_codegen.runtime.problem import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMPY_TYPES = {"i32": np.int32, "f32": np.float32}


class HostCopies(Protocol):
    """The part of the driver that copies to the host."""

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queues a copy of device memory to a host address."""

    def gather_to_host(
        self, target: int, source: int, item_bytes: int, stride_bytes: int, count: int, stream: int
    ) -> None:
        """Queues a copy of items that lie `stride_bytes` apart to a host address, where they are packed."""

    def synchronize_stream(self, stream: int) -> None:
        """Waits for the stream."""


def check_contents(
    driver: HostCopies,
    dtypes: Mapping[str, str],
    views: Mapping[str, ArrayView],
    problem: Problem,
    stream: int,
) -> None:
    """LaunchError where lengths or scales cannot be right; `dtypes` says which to look at, in yaml names."""
    queued = {name: _queue_copy(driver, views[name], dtype, stream) for name, dtype in dtypes.items()}
    driver.synchronize_stream(stream)
    copies = {name: np.broadcast_to(copy, views[name].form.shape) for name, copy in queued.items()}
    faults = tuple(_faults(copies, problem))
    if faults:
        raise LaunchError(faults)


def _queue_copy(driver: HostCopies, view: ArrayView, dtype: str, stream: int) -> NDArray[np.generic]:
    """Host memory that will hold the array; an axis of stride 0 has one item there."""
    form = view.form
    shape = tuple(extent if stride else 1 for extent, stride in zip(form.shape, form.strides, strict=True))
    host = np.empty(shape, dtype=_NUMPY_TYPES[dtype])
    if form.is_empty:
        return host
    if form.is_contiguous():
        driver.copy_to_host(host.ctypes.data, view.pointer, host.nbytes, stream)
        return host
    for index in np.ndindex(*shape[:-1]):
        source = view.pointer + sum(
            place * stride for place, stride in zip(index, form.strides, strict=False)
        )
        target = host[index].ctypes.data
        driver.gather_to_host(target, source, form.item_bytes, form.strides[-1], shape[-1], stream)
    return host


def _faults(copies: Mapping[str, NDArray[np.generic]], problem: Problem) -> Iterator[Diagnostic]:
    totals = {"cu_seqlens_q": problem.total_q, "cu_seqlens_k": problem.total_k}
    for name, values in copies.items():
        if name in totals:
            yield from _length_faults(name, values, totals[name])
        else:
            yield from _scale_faults(name, values)
    lengths = np.diff(copies["cu_seqlens_q"])
    if lengths.size and lengths.max() > problem.max_seqlen_q:
        yield Diagnostic(
            code="max-seqlen",
            message=f"sequence {int(lengths.argmax())} has {int(lengths.max())} queries, max_seqlen_q is "
            f"{problem.max_seqlen_q}",
            help="pass a max_seqlen_q that no sequence exceeds",
        )


def _length_faults(name: str, values: NDArray[np.generic], total: int) -> Iterator[Diagnostic]:
    if values[0] != 0 or values[-1] != total:
        yield Diagnostic(
            code="cu-seqlens",
            message=f"{name} runs from {int(values[0])} to {int(values[-1])}, "
            f"from 0 to {total} tokens is needed",
            help="pass cumulative lengths that cover the tensors",
        )
    falls = np.flatnonzero(np.diff(values) < 0)
    if falls.size:
        place = int(falls[0])
        yield Diagnostic(
            code="cu-seqlens",
            message=f"{name} falls from {int(values[place])} to {int(values[place + 1])} "
            f"at sequence {place}, it may only rise",
            help="pass cumulative lengths",
        )


def _scale_faults(name: str, values: NDArray[np.generic]) -> Iterator[Diagnostic]:
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)).ravel())
    if wrong.size:
        place = [int(index) for index in np.unravel_index(wrong[0], values.shape)]
        yield Diagnostic(
            code="scale",
            message=f"{name} is {values.ravel()[wrong[0]]} at {place}, "
            "a finite number of at least 0 is needed",
            help="quantise again; mla_codegen.quantize gives legal scales",
        )
