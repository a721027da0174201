"""Diagnostics and the exceptions that carry them.

A fault that a user can cause is described by a Diagnostic and raised inside an MlaCodegenError; every other
exception that leaves the package is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound="MlaCodegenError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One fault: where it is, what was found, what is allowed and a way out.

    Diagnostics sort by path, line and column; those without a position come first.
    """

    code: str
    """Stable kebab-case name of the kind of fault, such as `unknown-key`."""
    message: str
    """One sentence in lower case without full stop; holds the value found and the values allowed."""
    path: str | None = None
    """File the fault is in, as the user wrote it."""
    line: int | None = None
    """Line in the file, from 1."""
    col: int | None = None
    """Column in the line, from 1."""
    notes: tuple[str, ...] = ()
    """Facts behind the message, such as the terms of a sum."""
    help: str | None = None
    """What to change."""
    field: str | None = None
    """Dotted spec field the fault is about, such as `tile.block_n`."""

    def location(self) -> str:
        """`path:line:col` as far as known, else the empty string."""
        parts = [] if self.path is None else [_printable(self.path)]
        if self.line is not None:
            parts.append(str(self.line))
            if self.col is not None:
                parts.append(str(self.col))
        return ":".join(parts)

    def render(self) -> str:
        """The fault as text: one line, then indented note and help lines; no newline at the end."""
        location = self.location()
        lines = [
            f"{location}: error[{self.code}]: {self.message}"
            if location
            else f"error[{self.code}]: {self.message}"
        ]
        lines += [f"  note: {note}" for note in self.notes]
        if self.help is not None:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)

    def position(self) -> tuple[str, int, int, str, str]:
        """Sort key: path, line and column, then code and message, so that the order is always the same."""
        return (self.path or "", self.line or 0, self.col or 0, self.code, self.message)

    def __lt__(self, other: Diagnostic) -> bool:
        if not isinstance(other, Diagnostic):
            return NotImplemented
        return self.position() < other.position()


def _printable(text: str) -> str:
    """`text` with escapes for control characters and for bytes that are no characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class MlaCodegenError(Exception):
    """Base of all errors of the package; holds at least one Diagnostic, sorted by position."""

    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics))
        assert self.diagnostics, "an error needs at least one diagnostic"
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)

    @classmethod
    def single(
        cls: type[ErrorT],
        code: str,
        message: str,
        *,
        path: str | None = None,
        notes: tuple[str, ...] = (),
        help: str | None = None,
        field: str | None = None,
    ) -> ErrorT:
        """An error with one diagnostic: `raise PlanError.single("code", "message", help="...")`."""
        return cls((Diagnostic(code=code, message=message, path=path, notes=notes, help=help, field=field),))


class SpecError(MlaCodegenError):
    """A spec that cannot be read, or that says something it may not say."""


class PlanError(MlaCodegenError):
    """A valid spec for which there is no plan."""


class CompileError(MlaCodegenError):
    """Generated source that the compiler refuses, or a cubin that differs from its plan."""


class LaunchError(MlaCodegenError, ValueError):
    """A call with arguments that the kernel cannot take; raised before anything is launched."""
