"""Where the files that travel with the package are: templates, shipped specs and primitives.

An installed package has its own copies beside its modules; a checkout has them at its top level.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path


def package_folder() -> Path:
    """The folder of the package's modules."""
    return Path(str(importlib.resources.files("mla_codegen")))


def templates_folder() -> Path:
    """The folder of the Jinja templates: the wheel's copy, else the checkout's."""
    return _shipped("templates")


def specs_folder() -> Path:
    """The folder of the specs that the project ships: the wheel's copy, else the checkout's."""
    return _shipped("specs")


def primitives_folder() -> Path:
    """The folder whose files a plan names as `primitives/...`."""
    return package_folder() / "primitives"


def _shipped(name: str) -> Path:
    installed = package_folder() / f"_{name}"
    return installed if installed.is_dir() else package_folder().parent / name
