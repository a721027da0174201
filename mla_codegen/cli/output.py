"""How the commands print: tables (plain text where there is no terminal), JSON, diagnostics on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table

from mla_codegen.errors import Diagnostic


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A titled table on stdout: drawn on a terminal, else aligned columns that a line-based tool can read."""
    cells = [[str(cell) for cell in row] for row in rows]
    console = Console(highlight=False)
    if not console.is_terminal:
        click.echo(plain_table(title, columns, cells))
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console.print(table)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text: title, column heads and rows, two blanks between columns."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )
    return "\n".join([title, *(f"  {line}".rstrip() for line in padded), ""])


def print_json(value: Mapping[str, object], *, one_line: bool = False) -> None:
    """JSON on stdout and nothing else."""
    click.echo(json.dumps(value, indent=None if one_line else 2, separators=(",", ":") if one_line else None))


def print_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Diagnostics on stderr, in the order given."""
    for diagnostic in diagnostics:
        click.echo(diagnostic.render(), err=True)


def print_file_error(error: OSError) -> None:
    """A file that cannot be read or written, as a diagnostic on stderr."""
    reason = (error.strerror or type(error).__name__).lower()
    path = str(error.filename)
    print_diagnostics(
        (
            Diagnostic(
                code="file",
                message=reason,
                path=path,
                help="check the path and its permissions, or write elsewhere",
            ),
        )
    )
