"""Products of a plan as files: names, texts, writing what changed, and the check that writes nothing."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mla_codegen.digest import sha256
from mla_codegen.files import write_atomically
from mla_codegen.plan.model import Plan
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.render import render, render_init, render_quantizer

OUT_FOLDER = "generated"
"""Name of the folder that holds one folder of products per plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One text file of a plan, by its path below the output folder."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of one product: `wrote`, `unchanged` or, in a check, `would write` with a unified diff."""

    path: Path
    verb: str
    diff: str = ""


def stamped(plan: Plan, source: str) -> Plan:
    """`plan` with the digest of the source that was rendered from it."""
    return dataclasses.replace(plan, source_digest=sha256(source.encode("ascii")))


def products(
    plan: Plan, quantizer: QuantizerPlan | None = None, *, templates: Path | None = None
) -> tuple[Product, ...]:
    """The source, `plan.json` and `__init__.py` of `plan`, and the source of its quantiser where it has one.

    Equal plans give equal bytes.
    """
    source = render(plan, templates=templates)
    final = stamped(plan, source)
    folder = Path(plan.name)
    made = [
        Product(path=folder / f"{plan.name}.cu", text=source),
        Product(path=folder / "plan.json", text=final.to_json()),
        Product(path=folder / "__init__.py", text=render_init(final, templates=templates)),
    ]
    if quantizer is not None:
        text = render_quantizer(quantizer, templates=templates)
        made.append(Product(path=folder / f"{quantizer.name}_quantize.cu", text=text))
    return tuple(made)


def write(files: Collection[Product], out: Path) -> tuple[Change, ...]:
    """Brings the files below `out` up to date, touching only those that differ."""
    return tuple(_write_if_changed(out / product.path, product.text) for product in files)


def check(files: Collection[Product], out: Path) -> tuple[Change, ...]:
    """What `write` would do, each with its unified diff; writes nothing."""
    return tuple(_compare(out / product.path, product.text) for product in files)


def orphans(out: Path, names: Collection[str]) -> tuple[Path, ...]:
    """Folders below `out` that hold a `plan.json` or a source and are none of `names`."""
    if not out.is_dir():
        return ()
    return tuple(sorted(path for path in out.iterdir() if path.name not in names and _holds_products(path)))


def default_out(spec: Path) -> Path:
    """Where the products of a spec go unless said otherwise.

    A spec in a folder called `specs` has its products in `generated` beside that folder; any other spec has
    them in `generated` below the current directory.
    """
    folder = spec.resolve().parent
    return _from_here(folder.parent / OUT_FOLDER) if folder.name == "specs" else Path(OUT_FOLDER)


def _write_if_changed(path: Path, text: str) -> Change:
    change = _compare(path, text)
    if change.verb == "unchanged":
        return change
    write_atomically(path, text.encode("ascii"))
    return Change(path=path, verb="wrote")


def _compare(path: Path, text: str) -> Change:
    found = path.read_bytes() if path.is_file() else None
    if found == text.encode("ascii"):
        return Change(path=path, verb="unchanged")
    diff = "\n".join(_unified_diff(path, found, text))
    return Change(path=path, verb="would write", diff=diff)


def _unified_diff(path: Path, found: bytes | None, text: str) -> Iterator[str]:
    old = "" if found is None else found.decode("utf-8", errors="replace")
    name = path.as_posix()
    before = "/dev/null" if found is None else f"{name} (as it is)"
    lines = difflib.unified_diff(
        old.split("\n"), text.split("\n"), fromfile=before, tofile=f"{name} (as built)", lineterm=""
    )
    yield from lines


def _holds_products(folder: Path) -> bool:
    return (folder / "plan.json").is_file() or any(folder.glob("*.cu"))


def _from_here(path: Path) -> Path:
    """`path` relative to the current directory where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
