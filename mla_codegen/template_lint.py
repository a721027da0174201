"""Shows logic in templates and hardware access outside the primitive layer.

Templates print a plan and decide nothing: names, `for` over a plan's tuples, `include`, and a plain yes-or-no
`if` that is not nested. Hardware is reached through primitives only: a `*.cu.j2` file holds no inline
assembly, no `__shared__` variable and no CUDA built-in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
from jinja2 import nodes

from mla_codegen.errors import Diagnostic
from mla_codegen.render import FILTERS, environment
from mla_codegen.resources import primitives_folder, templates_folder

MAX_COLUMNS = 110
"""Width of a line of primitive and generated file; a template's own lines are as long as their names."""

INSTRUCTION_PARTIALS = ("_wgmma_atoms.cu.j2",)
"""Partials that print instruction wrappers from operand lists: a part of the primitive layer."""

_PLAIN = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Getattr)

_FORBIDDEN: tuple[tuple[type[nodes.Node] | tuple[type[nodes.Node], ...], str], ...] = (
    (nodes.Compare, "a comparison"),
    ((nodes.And, nodes.Or), "boolean logic"),
    (nodes.Concat, "a concatenation with ~"),
    (nodes.Getitem, "indexing"),
    ((nodes.Call, nodes.CallBlock), "a call"),
    (nodes.Macro, "a macro"),
    ((nodes.Assign, nodes.AssignBlock), "set"),
    (nodes.CondExpr, "an inline if"),
    (nodes.Test, "a test"),
    ((nodes.BinExpr, nodes.UnaryExpr), "arithmetic"),
    (nodes.Literal, "a literal"),
)

_QUALIFIERS = "device|global|forceinline|noinline|launch_bounds|grid_constant|cluster_dims|restrict|align"
_BUILT_INS = re.compile(
    r"\b(?:asm|threadIdx|blockIdx|blockDim|gridDim|warpSize|clock(?:64)?|atomic[A-Z]\w*|printf"
    rf"|__(?!(?:{_QUALIFIERS})__\b|CUDA)\w+)\b"
)
_NOT_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|\{#.*?#\}', re.DOTALL)


def lint(templates: Path | None = None, *, primitives: Path | None = None) -> tuple[Diagnostic, ...]:
    """Every fault in the `*.j2` files of the templates and the headers of the primitives, sorted."""
    folder = templates or templates_folder()
    found: list[Diagnostic] = []
    for path in sorted(folder.glob("**/*.j2")):
        found += lint_template(path.read_text(encoding="utf-8"), path=_shown(path))
    for path in sorted((primitives or primitives_folder()).glob("**/*.cuh")):
        found += _lint_layout(path.read_text(encoding="utf-8"), str(_shown(path)), max_columns=MAX_COLUMNS)
    return tuple(sorted(found))


def _shown(path: Path) -> Path:
    """`path` from the current directory where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def lint_template(text: str, *, path: Path) -> tuple[Diagnostic, ...]:
    """Every fault in one template; the file name says whether it is CUDA (`*.cu.j2`)."""
    try:
        tree = environment(path.parent).parse(text)
    except jinja2.TemplateSyntaxError as fault:
        message = (fault.message or "").rstrip(".").lower()
        return (Diagnostic(code="template-syntax", message=message, path=str(path), line=fault.lineno),)
    found = [*_lint_layout(text, str(path)), *_lint_node(tree, str(path), nested=False)]
    if path.name.endswith(".cu.j2") and path.name not in INSTRUCTION_PARTIALS:
        found += _lint_built_ins(text, str(path))
    return tuple(sorted(found))


def _lint_layout(text: str, path: str, *, max_columns: int | None = None) -> Iterator[Diagnostic]:
    for number, line in enumerate(text.split("\n"), start=1):
        fault = re.search(r"[^ -~]", line)
        if fault:
            yield _diagnostic(
                "layout", f"character {fault[0]!r}, files are ASCII with LF and no tabs", path, number
            )
        elif line.endswith(" "):
            yield _diagnostic("layout", "trailing blank", path, number)
        elif max_columns is not None and len(line) > max_columns:
            yield _diagnostic("layout", f"{len(line)} columns, {max_columns} are allowed", path, number)


def _lint_built_ins(text: str, path: str) -> Iterator[Diagnostic]:
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in _BUILT_INS.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        message = f"`{match[0]}` outside the primitive layer"
        help = "call a primitive from mla_codegen/primitives/"
        yield Diagnostic(code="built-in", message=message, path=path, line=line, help=help)


def _lint_node(node: nodes.Node, path: str, *, nested: bool) -> Iterator[Diagnostic]:
    """Faults at or below `node`; `nested` says that an `if` of the same file stands around it."""
    fault = _fault(node, nested=nested)
    if fault:
        yield _diagnostic("template-logic", f"{fault} in a template", path, node.lineno)
        return
    inside = nested or isinstance(node, nodes.If)
    for child in _children(node):
        yield from _lint_node(child, path, nested=inside)


def _children(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes below `node` that are to be judged; conditions and literal includes have been."""
    for name, value in node.iter_fields():
        judged = (isinstance(node, nodes.If) and name == "test") or isinstance(value, nodes.Const)
        if isinstance(value, nodes.Node) and not judged:
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, nodes.Node))


def _fault(node: nodes.Node, *, nested: bool) -> str | None:
    """What is wrong with the node itself, as a noun, or None."""
    if isinstance(node, nodes.If):
        return _if_fault(node, nested=nested)
    if isinstance(node, nodes.For):
        if node.test is not None or node.recursive or node.else_:
            return "a for with condition, recursion or else"
        return None if isinstance(node.target, nodes.Name) else "a for with several targets"
    if isinstance(node, nodes.Include):
        plain = (
            isinstance(node.template, nodes.Const | nodes.Name | nodes.Getattr) and not node.ignore_missing
        )
        return None if plain else "an include of more than one name"
    if isinstance(node, nodes.Filter):
        return None if node.name in FILTERS and not node.args and not node.kwargs else f"filter {node.name!r}"
    if isinstance(node, _PLAIN):
        return None
    return next((noun for kind, noun in _FORBIDDEN if isinstance(node, kind)), type(node).__name__.lower())


def _if_fault(node: nodes.If, *, nested: bool) -> str | None:
    if nested:
        return "a nested if"
    if node.elif_:
        return "an elif"
    condition = node.test.node if isinstance(node.test, nodes.Not) else node.test
    if isinstance(condition, nodes.Name | nodes.Getattr):
        return None
    return next((noun for kind, noun in _FORBIDDEN if isinstance(condition, kind)), "a computed condition")


def _diagnostic(code: str, message: str, path: str, line: int) -> Diagnostic:
    return Diagnostic(code=code, message=message, path=path, line=line)
