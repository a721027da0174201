"""Dictionaries that forget their oldest entry rather than grow without end."""

from __future__ import annotations

import threading
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Limited(dict[_Key, _Value]):
    """A dictionary of at most `limit` entries, which come by `keep`; several threads may use it."""

    def __init__(self, limit: int) -> None:
        """Starts empty."""
        super().__init__()
        self._limit = limit
        self._lock = threading.Lock()

    def keep(self, key: _Key, value: _Value) -> None:
        """Sets an entry; the oldest of too many is dropped."""
        with self._lock:
            if key not in self:
                while len(self) >= self._limit:
                    del self[next(iter(self))]
            self[key] = value
