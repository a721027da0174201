"""Plan -> text, through the one Jinja environment of the package.

Templates see exactly one name, `plan`. `{% include header %}` with a header such as
`primitives/device/mbarrier.cuh` prints that file of the primitive layer verbatim. What leaves this module is
ASCII with LF line ends, without tabs, trailing blanks or two blank lines in a row, and ends in one newline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import jinja2

from mla_codegen.plan.model import Plan
from mla_codegen.plan.quantizer_model import QuantizerPlan
from mla_codegen.resources import primitives_folder, templates_folder

PRIMITIVES_PREFIX = "primitives/"
"""Template names with this prefix are files of the primitive layer."""


class RenderError(RuntimeError):
    """A template printed what no generated file may contain: a bug in a template, not in a spec."""


def hex_literal(value: int) -> str:
    """An unsigned integer as a C++ hex literal: 255 -> `0xffu`."""
    assert value >= 0, f"hex literals are for unsigned numbers, not {value}"
    return f"{value:#x}u"


def c_float(value: float) -> str:
    """A number as an exact C++ float literal: 0.5 -> `0x1.0000000000000p-1f`."""
    return f"{float(value).hex()}f"


FILTERS: Mapping[str, Callable[..., str]] = MappingProxyType({"hex": hex_literal, "c_float": c_float})
"""All filters that a template may use."""


class _Loader(jinja2.BaseLoader):
    """Templates from one folder; primitives, as raw text, from the package."""

    def __init__(self, templates: Path) -> None:
        self._files = jinja2.FileSystemLoader(templates)

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        if not template.startswith(PRIMITIVES_PREFIX):
            return self._files.get_source(environment, template)
        path = primitives_folder().joinpath(*jinja2.loaders.split_template_path(template)[1:])
        if not path.is_file():
            raise jinja2.TemplateNotFound(template)
        text = path.read_text(encoding="ascii").strip("\n")
        return f"{{% raw %}}{text}\n{{% endraw %}}\n", str(path), lambda: False


def environment(templates: Path | None = None) -> jinja2.Environment:
    """The environment that renders and that the lint parses with; `templates` replaces our folder."""
    made = jinja2.Environment(
        loader=_Loader(templates or templates_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.filters = dict(FILTERS)
    made.globals.clear()
    return made


def render(plan: Plan, *, templates: Path | None = None) -> str:
    """The CUDA source of `plan`; equal plans give equal text on every machine."""
    return _render(plan.template, plan, templates)


def render_quantizer(plan: QuantizerPlan, *, templates: Path | None = None) -> str:
    """The CUDA source of a quantiser; equal plans give equal text on every machine."""
    return _render(plan.template, plan, templates)


def render_init(plan: Plan, *, templates: Path | None = None) -> str:
    """The `__init__.py` that lies beside the source and loads the kernel on first use."""
    return _render("init.py.j2", plan, templates)


def _render(template: str, plan: Plan | QuantizerPlan, templates: Path | None) -> str:
    return tidy(environment(templates).get_template(template).render({"plan": plan}), name=template)


def tidy(text: str, *, name: str) -> str:
    """`text` without trailing blanks and runs of blank lines; RenderError on what is not printable ASCII."""
    for number, line in enumerate(text.split("\n"), start=1):
        fault = re.search(r"[^ -~]", line)
        if fault:
            raise RenderError(
                f"{name} prints character {fault[0]!r} in line {number} of its output: {line.strip()!r}"
            )
    squeezed = re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", text))
    return squeezed.strip("\n") + "\n"
