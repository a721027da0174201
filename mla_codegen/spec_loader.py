"""Reads spec files: every fault of a file at once, each with line and column."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from mla_codegen.errors import Diagnostic, SpecError
from mla_codegen.spec import SPEC_VERSION, Origin, Spec, check_mapping
from mla_codegen.spec_faults import shown
from mla_codegen.spec_matrix import Product, expand
from mla_codegen.spec_nodes import Document, read_document

MAX_FILE_BYTES = 256 * 1024
"""Largest spec file that is read."""
MAX_FAULTS = 500
"""Faults after which no further product of a matrix is looked at."""


def load_specs(path: str | os.PathLike[str]) -> tuple[Spec, ...]:
    """All specs of a file, in the order of its matrix; SpecError with every fault."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"cannot read the spec: {reason.lower()}"
        raise SpecError.single(
            "unreadable", message, path=name, help="give the path of a YAML file"
        ) from error
    return loads_specs(_decoded(content, name), path=name)


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """The one spec of a file; SpecError where its matrix gives several."""
    specs = load_specs(path)
    if len(specs) > 1:
        names = [spec.name for spec in specs]
        raise SpecError.single(
            "several-kernels",
            f"the file describes {len(specs)} kernels, allowed here: one",
            path=os.fspath(path),
            notes=(f"they are {', '.join(names[:4])}{' and more' if len(names) > 4 else ''}",),
            help="take `mla-codegen build` or `matrix`, which make all of them, or a file without matrix",
        )
    return specs[0]


def loads_specs(text: str, *, path: str | None = None) -> tuple[Spec, ...]:
    """All specs of a YAML text; with a path its stem must equal `name`, and diagnostics show it."""
    if len(text) > MAX_FILE_BYTES:
        raise _too_large(path)
    if text.startswith("\ufeff"):
        raise _form_error(
            "byte-order-mark", "the file starts with a byte order mark, allowed: UTF-8 without one", path
        )
    document = read_document(text)
    if _other_version(document) or not document.data:
        if not document.faults:
            document.faults += check_mapping({})[1]
        raise SpecError(_placed(fault, document, path) for fault in document.faults)
    _check_stem(document, path)
    products = expand(document)
    specs, faults = _check(products, document, path)
    faults = [*(_placed(fault, document, path) for fault in document.faults), *faults]
    if faults:
        raise SpecError(dict.fromkeys(faults))
    return specs


def _check(
    products: tuple[Product, ...], document: Document, path: str | None
) -> tuple[tuple[Spec, ...], list[Diagnostic]]:
    """The specs of all products; a fault of some products only gets a note that names the first of them."""
    specs: list[Spec] = []
    names_of: dict[Diagnostic, list[str]] = {}
    checked = 0
    for product in products:
        spec, faults = check_mapping(product.data, broken=tuple(document.broken))
        origin = Origin(path=path, positions=product.values)
        keys = dataclasses.replace(origin, positions={**product.values, **document.keys})
        for fault in faults:
            placed = (keys if fault.code == "unknown-key" else origin).locate(fault)
            names_of.setdefault(placed, []).append(_product_name(product))
        if spec is not None:
            specs.append(spec.with_origin(origin))
        checked += 1
        if len(names_of) > MAX_FAULTS:
            break
    found = []
    for fault, names in names_of.items():
        if len(names) < checked:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            fault = dataclasses.replace(fault, notes=(*fault.notes, f"in {names[0]}{more}"))
        found.append(fault)
    return tuple(specs), found


def _product_name(product: Product) -> str:
    name = product.data.get("name")
    return name if isinstance(name, str) and name.isascii() and name.isidentifier() else shown(name)


def _check_stem(document: Document, path: str | None) -> None:
    """Report a `name` that differs from the stem of the file."""
    name = document.data.get("name")
    if path is None or not isinstance(name, str) or name == Path(path).stem:
        return
    stem = Path(path).stem
    message = f"name is {shown(name)}, allowed: {shown(stem)}, the stem of the file"
    document.report(
        "name-stem", message, "rename the file or the kernel", document.values["name"], field="name"
    )


def _other_version(document: Document) -> bool:
    """Report a spec_version of another time, about whose keys nothing can be said."""
    version = document.data.get("spec_version")
    if isinstance(version, bool) or not isinstance(version, int) or version == SPEC_VERSION:
        return False
    age = (
        "a newer mla-codegen wrote this file: upgrade"
        if version > SPEC_VERSION
        else "the versions start at 1"
    )
    message = (
        f"spec_version is {shown(version)}, allowed: {SPEC_VERSION}, the version that this mla-codegen reads"
    )
    position = document.values["spec_version"]
    document.report("spec-version", message, f"{age}, or write spec_version: {SPEC_VERSION}", position)
    return True


def _placed(fault: Diagnostic, document: Document, path: str | None) -> Diagnostic:
    """The fault with its path, and where it has no position yet, with that of its field."""
    if fault.line is not None:
        return dataclasses.replace(fault, path=path)
    return Origin(path=path, positions=document.values).locate(fault)


def _decoded(content: bytes, path: str) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise _too_large(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, col = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        message = f"byte 0x{content[error.start]:02x} is found, allowed: UTF-8"
        fault = Diagnostic(
            code="not-utf8", message=message, path=path, line=line, col=col, help="save the file as UTF-8"
        )
        raise SpecError((fault,)) from error


def _too_large(path: str | None) -> SpecError:
    message = f"the file has more than {MAX_FILE_BYTES} bytes, allowed: {MAX_FILE_BYTES}"
    return SpecError.single(
        "too-large", message, path=path, help="a spec has a few dozen lines: give another file"
    )


def _form_error(code: str, message: str, path: str | None) -> SpecError:
    fault = Diagnostic(
        code=code, message=message, path=path, line=1, col=1, help="save the file as UTF-8 without it"
    )
    return SpecError((fault,))
