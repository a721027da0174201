"""The fast path: a call like an earlier one is launched without its arrays being checked once more.

A launch is decided by the numbers of the call and by what the arrays say of themselves: shape, strides, dtype
and device. A call that passed all checks leaves its launch here under exactly these, in the types of the
arrays' own library, so that the next call has nothing to translate, but only reads and compares:

1. the types of all arguments, which tell which of them are there and how they are read;
2. address and traits of every array, in one go; nothing is known by an array's identity, so that an array
   that was reshaped, resized or pointed elsewhere in place is seen as what it is now;
3. traits and numbers against those of the latest call, else in a dictionary of calls;
4. the library's current stream, unless the call names one.

The launch then compares addresses, stream and current context (see `launch`). Whatever is not known here, or
fails a test, goes the long way with nothing done yet, and is refused there with a message where it is wrong.
Arrays of torch or CuPy come this way, not a mixture; no array is kept alive.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from mla_codegen.call.forms import ArrayForm
from mla_codegen.runtime.arrays import Array, BulkReader, Traits, bulk_reader
from mla_codegen.runtime.launch import PreparedLaunch
from mla_codegen.runtime.limited import Limited
from mla_codegen.runtime.streams import current_stream_function, stream_handle

Arguments: TypeAlias = tuple[Any, ...]
"""All arrays of a call in the order of INPUT_NAMES, then `out`, `lse`, `max_seqlen_q` and `softmax_scale`."""

_NUMBERS = slice(-2, None)
_CAPACITY_TYPES = (int, type(None))
_SCALE_TYPES = (int, float, type(None))
_MAX_CALLS = 256
_MAX_FAMILIES = 64


class _Known(NamedTuple):
    """A call that was checked."""

    traits: list[Traits]
    numbers: tuple[Any, ...]
    launch: PreparedLaunch


@dataclass(slots=True)
class _Family:
    """Calls whose arguments have the same types; `select` picks the arrays that are there."""

    select: Callable[[Arguments], tuple[Array, ...]]
    reader: BulkReader
    current_stream: Callable[[int], int]
    latest: _Known | None = None
    calls: Limited[tuple[Any, ...], _Known] = field(default_factory=lambda: Limited(_MAX_CALLS))


class WarmCalls:
    """The launches of calls that were checked; used by several threads at once."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._families: Limited[tuple[type, ...], _Family | None] = Limited(_MAX_FAMILIES)

    def launch(self, arguments: Arguments, stream: object) -> bool:
        """Launches a call that is known; False, with nothing done, where it is not."""
        family = self._families.get(tuple(map(type, arguments)))
        if family is None:
            return False
        pointers, traits = family.reader.read(family.select(arguments))
        numbers = arguments[_NUMBERS]
        known = family.latest
        if known is None or traits != known.traits or numbers != known.numbers:
            known = family.calls.get((numbers, *traits))
            if known is None:
                return False
            family.latest = known
        launch = known.launch
        handle = -1 if stream is None else stream_handle(stream)
        if handle < 0:
            handle = family.current_stream(launch.device)
        return launch.start(pointers, handle)

    def learn(self, arguments: Arguments, forms: list[ArrayForm], launch: PreparedLaunch) -> None:
        """Keeps the launch of a call whose arrays, those that are there, were checked in these forms.

        The arrays are read once more: a call whose arrays are something else by now is not kept.
        """
        types = tuple(map(type, arguments))
        if types not in self._families:
            self._families.keep(types, _family(arguments))
        family = self._families.get(types)
        if family is None:
            return
        _, traits = family.reader.read(family.select(arguments))
        if [family.reader.form(*one) for one in traits] != forms or any(form.device < 0 for form in forms):
            return
        known = _Known(traits, arguments[_NUMBERS], launch)
        family.calls.keep((known.numbers, *traits), known)
        family.latest = known


def _family(arguments: Arguments) -> _Family | None:
    """The family of a legal call; None where such calls have to go the long way."""
    *arrays, tokens, scale = arguments
    reader = bulk_reader(type(array) for array in arrays if array is not None)
    if reader is None or type(tokens) not in _CAPACITY_TYPES or type(scale) not in _SCALE_TYPES:
        return None
    present = [index for index, array in enumerate(arrays) if array is not None]
    return _Family(operator.itemgetter(*present), reader, current_stream_function(reader.library))
