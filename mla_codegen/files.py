"""Files that appear whole or not at all, and the folder that keeps what was compiled."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Puts `data` at `path`, so that a reader sees the old file, the new one or none; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def cache_folder() -> Path | None:
    """$MLA_CODEGEN_CACHE_DIR, else the user's cache folder; None where the user has none."""
    chosen = os.environ.get("MLA_CODEGEN_CACHE_DIR")
    if chosen:
        return Path(chosen)
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and sys.platform != "darwin":
        return Path(xdg) / "mla-codegen"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return (
        home / "Library" / "Caches" / "mla-codegen"
        if sys.platform == "darwin"
        else home / ".cache" / "mla-codegen"
    )
