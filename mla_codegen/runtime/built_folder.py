"""A built folder: plan.json and the source that belongs to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mla_codegen.digest import sha256
from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan


def read_built_folder(folder: Path) -> tuple[Plan, str]:
    """Plan and source of a built folder; LaunchError where a file is missing or from another build."""
    try:
        plan = Plan.from_mapping(_json_object((folder / "plan.json").read_text(encoding="ascii")))
        source = (folder / f"{plan.name}.cu").read_bytes()
    except OSError as error:
        message = f"{error.filename} cannot be read: {(error.strerror or str(error)).lower()}"
        raise LaunchError.single("built-folder", message, help="build the spec again") from error
    except (ValueError, TypeError) as error:
        message = f"{folder / 'plan.json'} is not a plan that this version reads: {error}"
        raise LaunchError.single("built-folder", message, help="build the spec again") from error
    found = sha256(source)
    if plan.source_digest != found:
        raise LaunchError.single(
            "mismatched-pair",
            f"{folder / f'{plan.name}.cu'} has sha256 {found[:12]}, "
            f"plan.json says {(plan.source_digest or 'none')[:12]}",
            help="the source was edited or comes from another build: build the spec again",
        )
    return plan, source.decode("ascii")


def _json_object(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data
