"""A compiled kernel as two files: the cubin, and its figures as JSON with the digests that tie both."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from mla_codegen.digest import sha256
from mla_codegen.files import write_atomically
from mla_codegen.runtime.compiler_log import EntryFigures
from mla_codegen.runtime.nvrtc import CompileResult

STORED_FORMAT = 1
"""Version of the JSON file."""


def write_stored(folder: Path, stem: str, source: str, result: CompileResult) -> None:
    """Writes `<stem>.cubin` and `<stem>.cubin.json`, each atomically; OSError where that fails."""
    record = {
        "format": STORED_FORMAT,
        "source_sha256": sha256(source.encode()),
        "cubin_sha256": sha256(result.cubin),
        "options": list(result.options),
        "nvrtc_version": list(result.nvrtc_version),
        "seconds": result.seconds,
        "entries": [dataclasses.asdict(entry) for entry in result.entries],
        "log": result.log,
    }
    write_atomically(folder / f"{stem}.cubin", result.cubin)
    write_atomically(folder / f"{stem}.cubin.json", (json.dumps(record, indent=2) + "\n").encode())


def read_stored(folder: Path, stem: str, source: str) -> CompileResult | None:
    """The kernel compiled from exactly `source`; None where it is absent, damaged or another."""
    try:
        cubin = (folder / f"{stem}.cubin").read_bytes()
        record = json.loads((folder / f"{stem}.cubin.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("format") != STORED_FORMAT:
        return None
    if record.get("source_sha256") != sha256(source.encode()) or record.get("cubin_sha256") != sha256(cubin):
        return None
    try:
        return _result(cubin, record)
    except (KeyError, TypeError, ValueError):
        return None


def _result(cubin: bytes, record: dict[str, Any]) -> CompileResult:
    major, minor = record["nvrtc_version"]
    return CompileResult(
        cubin=cubin,
        log=record["log"],
        entries=tuple(EntryFigures(**entry) for entry in record["entries"]),
        seconds=record["seconds"],
        options=tuple(record["options"]),
        nvrtc_version=(major, minor),
        library_path="",
    )
