"""YAML text -> plain values with the position of every key and value.

Works on the event stream of PyYAML: it constructs nothing, expands nothing, does not recurse, and is read
only as far as the limits allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from mla_codegen.errors import Diagnostic
from mla_codegen.spec import Spec
from mla_codegen.spec_faults import allowed_at, bare, joined
from mla_codegen.spec_scalars import AmbiguousScalarError, plain_scalar, unambiguous

MAX_DEPTH = 8
"""Levels of mappings and lists in one another."""
MAX_NODES = 8192
"""Keys, values and members of lists in one file."""

Position = tuple[int, int]

_KEY = re.compile(r"[A-Za-z0-9_]+")
_DOTTED_KEY = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


@dataclass(slots=True, kw_only=True)
class Node:
    """A scalar (`text`) or a mapping or list (`items`: keys and values in turn, or members)."""

    kind: str
    position: Position
    text: str = ""
    plain: bool = False
    broken: bool = False
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Document:
    """The values of a file and where they stand; `broken` names fields that were reported and left out."""

    data: dict[str, object] = field(default_factory=dict)
    values: dict[str, Position] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def report(
        self,
        code: str,
        message: str,
        way_out: str,
        position: Position,
        *,
        field: str | None = None,
        note: str | None = None,
    ) -> None:
        """Add a fault at a position."""
        notes = () if note is None else (note,)
        line, col = position
        self.faults.append(
            Diagnostic(code=code, message=message, notes=notes, help=way_out, line=line, col=col, field=field)
        )


def read_document(text: str) -> Document:
    """The top-level mapping of `text` with its positions, and every fault of its form."""
    document = Document()
    root = _read_tree(text, document)
    if root is None:
        if not document.faults:
            document.report(
                "empty-file",
                "the file is empty, allowed: a mapping",
                "start with name, arch, dtypes and dims",
                (1, 1),
            )
        return document
    document.values[""] = root.position
    if root.kind != "mapping" and not root.broken:
        found = "list" if root.kind == "list" else "scalar"
        document.report(
            "not-a-mapping",
            f"the file holds a {found}, allowed: a mapping",
            "write key: value lines",
            root.position,
        )
        return document
    if root.kind == "mapping":
        document.data = _mapping(root, "", document)
    return document


def _read_tree(text: str, document: Document) -> Node | None:
    """The nodes of the first document; stops at the first fault that makes the rest unreadable."""
    try:
        return _build(text, document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        problem = " ".join(str(error.problem or error.context).split())
        document.report(
            "yaml-syntax", f"not valid YAML: {problem}", "check indentation, colons and quotes", position
        )
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"character U+{ord(text[error.position]):04X} is found, allowed: printable characters"
        document.report("yaml-syntax", message, "remove the character", position)
    except (ValueError, OverflowError):
        # PyYAML hands on what int() and chr() raise for version directives and for escapes like "\UFFFFFFFF".
        message = "not valid YAML: a directive or an escape holds a number that is out of range"
        document.report("yaml-syntax", message, "remove directives and escapes", (1, 1))
    return None


def _build(text: str, document: Document) -> Node | None:
    """Nodes from events; raises what PyYAML raises."""
    root: Node | None = None
    stack: list[Node] = []
    nodes = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        position = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            node = _node(event, position, document)
            if stack:
                stack[-1].items.append(node)
            else:
                root = node
            if isinstance(event, yaml.CollectionStartEvent):
                stack.append(node)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            message = "a second document starts, allowed: one"
            document.report("several-documents", message, "write one file per spec", position)
            return root
        if len(stack) > MAX_DEPTH or nodes > MAX_NODES:
            message = (
                f"the file is deeper than {MAX_DEPTH} levels or has more than {MAX_NODES} keys and values"
            )
            document.report(
                "too-large", message, "no spec needs more than four levels and 200 keys", position
            )
            return None
    return None if root is not None and root.kind == "scalar" and root.plain and not root.text else root


def _node(event: yaml.NodeEvent, position: Position, document: Document) -> Node:
    """One node without its children; reports anchors, aliases and tags."""
    found = ""
    if isinstance(event, yaml.AliasEvent):
        found, code, way_out = f"alias *{event.anchor[:40]}", "alias", "write the value out"
    elif event.anchor is not None:
        found, code, way_out = f"anchor &{event.anchor[:40]}", "anchor", "remove the anchor"
    elif getattr(event, "tag", None) is not None:
        found, code, way_out = f"tag {bare(event.tag)}", "tag", "remove the tag"
    if found:
        document.report(code, f"{found} is found, allowed: plain values", way_out, position)
    node = Node(kind="scalar", position=position, broken=bool(found))
    if isinstance(event, yaml.MappingStartEvent):
        node.kind = "mapping"
    elif isinstance(event, yaml.SequenceStartEvent):
        node.kind = "list"
    elif isinstance(event, yaml.ScalarEvent):
        node.text, node.plain = event.value, event.style is None
    return node


def _mapping(node: Node, path: str, document: Document) -> dict[str, object]:
    """A mapping as a dict without the keys and values at fault."""
    found: dict[str, object] = {}
    for key, value in zip(node.items[::2], node.items[1::2], strict=True):
        name = _key(key, path, document)
        if name is None:
            continue
        field = f"{path}.{name}" if path else name
        if field in document.keys:
            line, col = document.keys[field]
            message = f"{field} is given twice (first at {line}:{col}), allowed: once"
            document.report("duplicate-key", message, "remove one of the two", key.position, field=field)
            continue
        document.keys[field] = key.position
        document.values[field] = key.position if value.kind == "mapping" else value.position
        _store(found, name, value, field, document)
    return found


def _store(found: dict[str, object], name: str, value: Node, field: str, document: Document) -> None:
    """Put the value under its name, or note the field as broken."""
    before = len(document.broken)
    plain = _value(value, field, document)
    if field not in document.broken[before:]:
        found[name] = plain


def _key(key: Node, path: str, document: Document) -> str | None:
    """The name of a key, or None after a report."""
    where = f"in {path}" if path else "at the top level"
    if key.broken:
        return None
    if key.kind != "scalar":
        document.report(
            "bad-key",
            f"a key {where} is a {key.kind}, allowed: a name",
            "write a name and a colon",
            key.position,
        )
    elif key.plain and key.text == "<<":
        document.report(
            "merge-key", f"merge key << is found {where}, allowed: names", "write the keys out", key.position
        )
    elif not (_DOTTED_KEY if path == "matrix" else _KEY).fullmatch(key.text):
        way_out = (
            "write a.b: c as a: {b: c}"
            if _DOTTED_KEY.fullmatch(key.text)
            else "write a name of letters, digits and _"
        )
        document.report(
            "unknown-key", f"unknown key {bare(key.text)} {where}, allowed: names", way_out, key.position
        )
    else:
        return key.text
    return None


def _value(node: Node, path: str, document: Document) -> object:
    """The plain value of a node; what is at fault is reported and its path noted as broken."""
    if node.broken:
        document.broken.append(path)
    if node.kind == "mapping":
        return _mapping(node, path, document)
    if node.kind == "list":
        values = []
        for index, item in enumerate(node.items):
            document.values[f"{path}.{index}"] = item.position
            values.append(_value(item, f"{path}.{index}", document))
        return values
    return _scalar(node, path, document)


def _scalar(node: Node, path: str, document: Document) -> object:
    """Text, bool, int, float or None; reports a text that YAML versions read differently."""
    if not node.plain:
        return node.text
    try:
        return plain_scalar(node.text)
    except AmbiguousScalarError:
        document.broken.append(path)
        field = path.removeprefix("matrix.")
        allowed = allowed_at(Spec, field) or ("true", "false", "null", "decimal numbers", "words")
        message = f"{path} is written {node.text[:40]}, allowed: {joined(allowed)}"
        way_out = unambiguous(node.text, allowed)
        note = "YAML 1.1 and YAML 1.2 read this as different values"
        document.report("ambiguous-value", message, way_out, node.position, field=path, note=note)
        return None
