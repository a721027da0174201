"""Expansion of `matrix`: every product of its values as a mapping of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from mla_codegen.spec import Spec
from mla_codegen.spec_faults import covers, did_you_mean, scalar_fields, shown
from mla_codegen.spec_nodes import Document, Position

MAX_PRODUCTS = 256
"""Kernels that one file may describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One combination: the complete mapping of a spec and the positions of its fields."""

    data: dict[str, object]
    values: dict[str, Position]


def expand(document: Document) -> tuple[Product, ...]:
    """All products in the order of the file; just one, without a change, where there is no matrix.

    Faults of the matrix are added to the document. Its fields at fault do not vary and join the broken ones,
    so that the rest of the file is still checked.
    """
    base = {key: value for key, value in document.data.items() if key != "matrix"}
    products = []
    axes = _axes(document)
    for choice in itertools.product(*axes.values()):
        data, values, name = base, dict(document.values), str(base.get("name"))
        for field, (index, value) in zip(axes, choice, strict=True):
            data = _with(data, field.split("."), value)
            values[field] = document.values[f"matrix.{field}.{index}"]
            name += f"__{field.replace('.', '_')}_{_word(value)}"
        if isinstance(base.get("name"), str):
            data = {**data, "name": name}
        products.append(Product(data=data, values=values))
    return tuple(products)


def _axes(document: Document) -> dict[str, list[tuple[int, object]]]:
    """The sound fields of the matrix, each with its sound values and their indices in the file."""
    matrix = document.data.get("matrix", {})
    if not isinstance(matrix, dict):
        message = f"matrix is {shown(matrix)}, allowed: a mapping of dotted fields to lists of values"
        way_out = "write tile.block_n: [64, 128] below matrix"
        document.report("bad-matrix", message, way_out, document.values["matrix"])
        return {}
    axes: dict[str, list[tuple[int, object]]] = {}
    for field, values in matrix.items():
        options = _options(field, values, document) if _may_vary(field, axes, document) else []
        if options:
            axes[field] = options
        else:
            document.broken.append(field)
    count = math.prod(len(options) for options in axes.values())
    if count > MAX_PRODUCTS:
        message = f"matrix has {shown(count)} products, allowed: {MAX_PRODUCTS}"
        document.report("bad-matrix", message, "split the file or drop values", document.keys["matrix"])
        document.broken += axes
        return {}
    return axes


def _may_vary(field: str, axes: Iterable[str], document: Document) -> bool:
    """Whether the field is a scalar one apart from those before it; reports it otherwise."""
    position = document.keys[f"matrix.{field}"]
    allowed = tuple(name for name in scalar_fields(Spec) if name not in ("name", "spec_version"))
    others = [other for other in axes if covers(other, field)]
    if field not in allowed:
        guess = did_you_mean(field, allowed)
        way_out = f"did you mean {guess}?" if guess else "write the path of a field, such as tile.block_n"
        message = (
            f"matrix has {field[:60]}, allowed: fields that hold a scalar, other than name and spec_version"
        )
        document.report("bad-matrix", message, way_out, position)
    elif others:
        message = f"matrix has {field} beside {others[0]}, allowed: fields that do not hold one another"
        document.report("bad-matrix", message, "keep one of the two", position)
    return field in allowed and not others


def _options(field: str, values: object, document: Document) -> list[tuple[int, object]]:
    """Index and value of each sound value; reports those at fault that were not reported before."""
    path = f"matrix.{field}"
    if not isinstance(values, list) or not values:
        message = f"{path} is {shown(values)}, allowed: a list of at least one value"
        way_out = f"write {field}: [...] with the values in the brackets"
        document.report("bad-matrix", message, way_out, document.values[path])
        return []
    options: dict[str, tuple[int, object]] = {}
    for index, value in enumerate(values):
        position = document.values[f"{path}.{index}"]
        if f"{path}.{index}" in document.broken:
            continue
        if isinstance(value, (dict, list)):
            message = f"{path} holds {shown(value)}, allowed: scalars"
            document.report("bad-matrix", message, "write the key that differs into the path", position)
        elif options.setdefault(_word(value), (index, value))[0] != index:
            message = f"{path} holds {shown(value)} twice, allowed: different values"
            document.report("bad-matrix", message, "remove one of the two", position)
    return list(options.values())


def _with(data: dict[str, object], path: list[str], value: object) -> dict[str, object]:
    """A copy of `data` with the value at the path; a scalar on the way, such as `kv: ragged`, gives way."""
    head, *rest = path
    if not rest:
        return {**data, head: value}
    inner = data.get(head)
    if (head in ("mask", "kv", "rope") and len(rest) == 1) or (inner is None and head not in data):
        inner = {}
    return {**data, head: _with(inner, rest, value) if isinstance(inner, dict) else inner}


def _word(value: object) -> str:
    """A scalar as part of a name: 64, rows, true, null, 30_5."""
    if isinstance(value, str):
        return value
    return shown(value).replace(".", "_").replace("-", "minus_")
