"""An array as an address and a form: shape, strides, dtype, device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

MAX_FORMS = 4096
"""Forms that are kept to be found again."""


@dataclass(frozen=True, eq=False, slots=True)
class ArrayForm:
    """All of an array but its address; strides in bytes.

    `library` is `torch`, `cupy` or the name of another package; `device` is -1 where the array does not say.
    Made by `array_form` only, so that equal forms are one object and dictionaries find them by identity.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: str
    device: int
    library: str

    @property
    def is_empty(self) -> bool:
        """Whether there are no elements."""
        return 0 in self.shape

    def is_contiguous(self) -> bool:
        """Whether elements follow each other in C order; lengths of 1 may have any stride."""
        expected = self.item_bytes
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected and not self.is_empty:
                return False
            expected *= extent
        return True

    def is_one_along(self, axis: int) -> bool:
        """Whether all indices of an axis are the same place: there is one, or the stride is 0."""
        return self.shape[axis] == 1 or self.strides[axis] == 0

    def on(self, device: int) -> ArrayForm:
        """The same form on another device."""
        return array_form(self.shape, self.strides, self.item_bytes, self.dtype, device, self.library)

    def without(self, axis: int) -> ArrayForm:
        """The form of the part with index 0 along an axis."""
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        strides = self.strides[:axis] + self.strides[axis + 1 :]
        return array_form(shape, strides, self.item_bytes, self.dtype, self.device, self.library)


@functools.lru_cache(maxsize=MAX_FORMS)
def array_form(
    shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int, dtype: str, device: int, library: str
) -> ArrayForm:
    """The one form with these values; one that was dropped from the cache is made anew."""
    return ArrayForm(shape, strides, item_bytes, dtype, device, library)


class ArrayView(NamedTuple):
    """Where an array is, and its form; readers make plain pairs of them, which cost less."""

    pointer: int
    form: ArrayForm


NO_FORM = ArrayForm((), (), 1, "none", -1, "")
"""Stands for an argument that was not passed."""
