"""Plain YAML scalars by rules of our own: whatever YAML 1.1 and YAML 1.2 read differently is refused."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
# Whatever else is a bool, null or number for YAML 1.1 (yaml.org/type) or YAML 1.2.2 (core schema, 10.3.2).
_AMBIGUOUS = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null|[-+]?\.inf|\.nan)"
    r"|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[bB][01_]+|[-+]?0[oO][0-7_]+"
    r"|[-+]?[0-9][0-9_]*(:[0-9][0-9_]*)+(\.[0-9_]*)?"
    r"|[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
)


class AmbiguousScalarError(ValueError):
    """A scalar without quotes that YAML versions read as different values, or a number of too many digits."""


def plain_scalar(text: str) -> str | bool | int | float | None:
    """The value of a scalar without quotes: true, false, null, a decimal number, or the text itself."""
    if text in ("true", "false"):
        return text == "true"
    if text in ("", "~", "null"):
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _AMBIGUOUS.fullmatch(text):
        raise AmbiguousScalarError(text)
    return text


def unambiguous(text: str, allowed: tuple[str, ...]) -> str:
    """What to write in place of an ambiguous scalar where the values `allowed` are."""
    lower = text.lower()
    if lower in ("y", "yes", "on", "true") and "true" in allowed:
        return "write true"
    if lower in ("n", "no", "off", "false") and ("none" in allowed or "false" in allowed):
        return "write none" if "none" in allowed else "write false"
    if lower == "null" and "null" in allowed:
        return "write null"
    return (
        "write one of the allowed words" if lower.isalpha() else "write a decimal number such as 128 or 0.5"
    )
