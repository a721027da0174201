"""render(plan): what the environment allows, how primitives come in, and what may leave it."""

from __future__ import annotations

import importlib
from pathlib import Path

import jinja2
import pytest

from mla_codegen.render import RenderError, c_float, hex_literal, render, render_init, tidy
from mla_codegen.resources import primitives_folder, templates_folder
from tests.tiny_plan import tiny_plan, tiny_templates


def test_primitives_are_inlined_verbatim(tmp_path: Path) -> None:
    header = "primitives/device/matrix_transpose.cuh"
    text = render(tiny_plan(primitives=(header,)), templates=tiny_templates(tmp_path))
    original = (primitives_folder() / "device" / "matrix_transpose.cuh").read_text()
    assert "{%0" in original, "the test needs a primitive whose assembly looks like a Jinja tag"
    assert text == f"// tiny for sm_90a\n\n{original.strip()}\n\n// tile.block_n = 64\n"


def test_every_primitive_can_be_included(tmp_path: Path) -> None:
    headers = tuple(
        f"primitives/{path.relative_to(primitives_folder()).as_posix()}"
        for path in sorted(primitives_folder().glob("**/*.cuh"))
    )
    text = render(tiny_plan(primitives=headers), templates=tiny_templates(tmp_path))
    assert all((primitives_folder().parent / header).read_text().strip() in text for header in headers)


@pytest.mark.parametrize("header", ["primitives/device/absent.cuh", "primitives/../errors.py", "../x.j2"])
def test_names_outside_the_folders_are_not_found(tmp_path: Path, header: str) -> None:
    with pytest.raises(jinja2.TemplateNotFound):
        render(tiny_plan(primitives=(header,)), templates=tiny_templates(tmp_path))


@pytest.mark.parametrize("name", ["plan.absent", "plans", "range", "loop"])
def test_unknown_names_are_errors(tmp_path: Path, name: str) -> None:
    with pytest.raises(jinja2.UndefinedError):
        render(tiny_plan(), templates=tiny_templates(tmp_path, main=f"{{{{ {name} }}}}\n"))


def test_builtin_filters_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(jinja2.TemplateAssertionError, match="upper"):
        render(tiny_plan(), templates=tiny_templates(tmp_path, main="{{ plan.name | upper }}\n"))


def test_filters_print_cuda_literals(tmp_path: Path) -> None:
    assert hex_literal(255) == "0xffu"
    assert c_float(0.5) == "0x1.0000000000000p-1f"
    assert float.fromhex(c_float(0.1).removesuffix("f")) == 0.1


@pytest.mark.parametrize("text", ["a\tb\n", "a\r\nb\n", "caf\u00e9\n"])
def test_forbidden_characters_are_our_bug(text: str) -> None:
    with pytest.raises(RenderError, match=r"x\.cu\.j2 prints character .* in line 1"):
        tidy(text, name="x.cu.j2")


def test_gaps_of_empty_partials_close() -> None:
    assert tidy("\n\na  \n \n\n\nb\n\nc\n\n\n", name="x") == "a\n\nb\n\nc\n"


def test_init_is_python_that_names_the_digest() -> None:
    text = render_init(tiny_plan("some_kernel"))
    compile(text, "__init__.py", "exec")
    assert 'SOURCE_DIGEST = "None"' in text
    assert "some_kernel" in text
    assert len(text.splitlines()) < 20


def test_installed_templates_come_before_those_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = importlib.import_module("mla_codegen.resources")
    package = tmp_path / "site" / "mla_codegen"
    package.mkdir(parents=True)
    monkeypatch.setattr(resources, "package_folder", lambda: package)
    assert templates_folder() == tmp_path / "site" / "templates"
    (package / "_templates").mkdir()
    assert templates_folder() == package / "_templates"
