"""What `check=True` looks at: the run-time data that no argument check can see, with one synchronisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mla_codegen.call.checks import raise_if
from mla_codegen.call.contents import content_faults
from mla_codegen.call.forms import ArrayView
from mla_codegen.call.problem import Problem
from mla_codegen.call.rules import CallRules

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
    driver: HostCopies, rules: CallRules, views: Mapping[str, ArrayView], problem: Problem, stream: int
) -> None:
    """LaunchError where lengths or scales, given by name on the device, cannot be right."""
    queued = {rule.name: _queue_copy(driver, views[rule.name], rule.dtype, stream) for rule in rules.contents}
    driver.synchronize_stream(stream)
    copies = {name: np.broadcast_to(copy, views[name].form.shape) for name, copy in queued.items()}
    raise_if(content_faults(rules, copies, problem))


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
