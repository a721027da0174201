"""The command line; this package is the only part that prints, reads arguments or exits.

Exit codes: 0 fine, 1 diagnosed failure or drift, 2 usage, 70 a bug of ours (with its traceback).
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

import click

from mla_codegen import __version__
from mla_codegen.cli import build, machine, run
from mla_codegen.cli.output import print_diagnostics, print_file_error
from mla_codegen.errors import Diagnostic, MlaCodegenError

EXIT_BUG = 70
"""Exit code after a traceback."""


class _Commands(click.Group):
    """A group whose commands report diagnosed failures and exit with 1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except MlaCodegenError as error:
            print_diagnostics(error.diagnostics)
        except BrokenPipeError:
            raise
        except MemoryError as error:
            message = f"there is not enough memory: {error or 'an allocation failed'}"
            print_diagnostics((Diagnostic(code="memory", message=message, help="take a smaller problem"),))
        except OSError as error:
            if error.filename is None:
                raise
            print_file_error(error)
        ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mla-codegen")
def app() -> None:
    """Generates CUDA kernels for MLA prefill attention from YAML specs."""


for _command in (*build.COMMANDS, *run.COMMANDS, *machine.COMMANDS):
    app.add_command(_command)


def main() -> None:
    """Runs the command that the process was called with, and exits."""
    sys.excepthook = _report_bug
    app(prog_name="mla-codegen")


def _report_bug(kind: type[BaseException], bug: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, bug, trace)
    click.echo("this is a bug of mla-codegen: please report it with the lines above", err=True)
    raise SystemExit(EXIT_BUG)
