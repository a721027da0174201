"""Canonical JSON and SHA-256 over plain mappings and bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

SHORT_LENGTH = 12
"""Hex digits of a digest that is shown to people or names a file."""


def canonical_json(value: Mapping[str, object]) -> bytes:
    """The one JSON text of `value` as ASCII bytes: sorted keys, no white space.

    Values are None, bool, int, finite float (in Python's shortest round-trip form), str, lists, tuples and
    mappings with text keys; anything else is a TypeError, a float that is not finite a ValueError.
    """
    return json.dumps(_plain(value, "$"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode(
        "ascii"
    )


def sha256(value: Mapping[str, object] | bytes) -> str:
    """SHA-256 as 64 hex digits, of the bytes or of the canonical JSON of the mapping."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical_json(value)).hexdigest()


def short(value: Mapping[str, object] | bytes) -> str:
    """The first 12 hex digits of `sha256(value)`."""
    return sha256(value)[:SHORT_LENGTH]


def _plain(value: object, where: str) -> object:
    """`value` with mappings and tuples made dicts and lists; `where` names the place in error messages."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, a digest takes finite numbers only")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise TypeError(
                    f"{where} has a key of type {type(key).__name__}, a digest takes text keys only"
                )
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is of type {type(value).__name__}, a digest takes plain JSON values only")
