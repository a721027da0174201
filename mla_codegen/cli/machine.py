"""Commands about this machine: doctor and the cache."""

from __future__ import annotations

from pathlib import Path

import click

from mla_codegen.cli.output import print_json, print_table
from mla_codegen.errors import LaunchError
from mla_codegen.files import cache_folder
from mla_codegen.machine import Finding, can_build, findings
from mla_codegen.runtime.cache import CubinCache


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def doctor(as_json: bool) -> None:
    """Show what this machine can do; exit 0 if it can build kernels."""
    found = findings(cache_folder())
    if as_json:
        print_json({"can_build": can_build(found), "findings": [_plain(finding) for finding in found]})
    else:
        rows = [(finding.name, finding.found or "missing", finding.needed_to) for finding in found]
        print_table("this machine", ("what", "found", "needed to"), rows)
        for finding in found:
            if not finding.present:
                click.echo(f"to {finding.needed_to}: {finding.help}")
        click.echo(f"kernels can{'' if can_build(found) else 'not'} be built here")
    if not can_build(found):
        raise click.exceptions.Exit(1)


@click.group()
def cache() -> None:
    """Look at the compiled kernels that are kept, or remove them."""


@cache.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def cache_info(as_json: bool) -> None:
    """Show the folder, the number of kernels and their size."""
    folder = _folder()
    info = CubinCache(folder).info()
    if as_json:
        print_json({"folder": str(folder), "kernels": info.entries, "bytes": info.bytes})
    else:
        click.echo(f"{folder}: {info.entries} kernels, {info.bytes} B")


@cache.command("clear")
def cache_clear() -> None:
    """Remove all kernels from the cache."""
    folder = _folder()
    click.echo(f"{folder}: removed {CubinCache(folder).clear()} kernels")


def _folder() -> Path:
    folder = cache_folder()
    if folder is None:
        message = "there is no home directory to keep kernels in"
        raise LaunchError.single("no-cache", message, help="set MLA_CODEGEN_CACHE_DIR to a folder")
    return folder


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "found": finding.found,
        "needed_to": finding.needed_to,
        "help": None if finding.present else finding.help,
    }


COMMANDS = (doctor, cache)
