"""emit: products, writing only what changed, the check that writes nothing, orphans and output folders."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from mla_codegen import emit
from mla_codegen.files import write_atomically
from mla_codegen.plan.model import Plan
from tests.tiny_plan import tiny_plan, tiny_templates


@pytest.fixture
def files(tmp_path: Path) -> tuple[emit.Product, ...]:
    return emit.products(tiny_plan(), templates=tiny_templates(tmp_path / "templates"))


def test_products_are_three_files_tied_by_the_digest(files: tuple[emit.Product, ...]) -> None:
    assert [product.path.as_posix() for product in files] == [
        "tiny/tiny.cu",
        "tiny/plan.json",
        "tiny/__init__.py",
    ]
    digest = hashlib.sha256(files[0].text.encode()).hexdigest()
    assert json.loads(files[1].text)["source_digest"] == digest
    assert digest in files[2].text
    assert Plan.from_json(files[1].text) == emit.stamped(tiny_plan(), files[0].text)


def test_write_touches_only_what_differs(files: tuple[emit.Product, ...], tmp_path: Path) -> None:
    out = tmp_path / "generated"
    assert [change.verb for change in emit.write(files, out)] == ["wrote"] * 3
    before = {path: path.stat().st_mtime_ns for path in sorted(out.glob("tiny/*"))}
    assert len(before) == 3, "temporary files are gone"
    (out / "tiny" / "plan.json").write_text("{}\n")
    assert [change.verb for change in emit.write(files, out)] == ["unchanged", "wrote", "unchanged"]
    untouched = [path for path in before if path.name != "plan.json"]
    assert all(path.stat().st_mtime_ns == before[path] for path in untouched)
    assert (out / "tiny" / "plan.json").read_text() == files[1].text


def test_check_writes_nothing_and_shows_the_difference(
    files: tuple[emit.Product, ...], tmp_path: Path
) -> None:
    out = tmp_path / "generated"
    assert [change.verb for change in emit.check(files, out)] == ["would write"] * 3
    assert not out.exists()
    emit.write(files, out)
    edited = out / "tiny" / "tiny.cu"
    edited.write_text(edited.read_text().replace("64", "65"))
    changes = emit.check(files, out)
    assert [change.verb for change in changes] == ["would write", "unchanged", "unchanged"]
    assert "-// tile.block_n = 65\n+// tile.block_n = 64" in changes[0].diff
    assert "65" in edited.read_text()


def test_a_change_of_line_ends_alone_is_drift(files: tuple[emit.Product, ...], tmp_path: Path) -> None:
    emit.write(files, tmp_path)
    source = tmp_path / "tiny" / "tiny.cu"
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    assert emit.check(files, tmp_path)[0].verb == "would write"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def refuse(source: str, target: Path) -> None:
        raise OSError(28, "no space", str(target))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_orphans_are_product_folders_without_a_plan(files: tuple[emit.Product, ...], tmp_path: Path) -> None:
    emit.write(files, tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "stray.cu").write_text("")
    assert emit.orphans(tmp_path, {"tiny"}) == (tmp_path / "stray",)
    assert emit.orphans(tmp_path, set()) == (tmp_path / "stray", tmp_path / "tiny")
    assert emit.orphans(tmp_path / "absent", set()) == ()


def test_default_out_is_beside_the_specs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert emit.default_out(Path("specs/a.yaml")) == Path("generated")
    assert emit.default_out(Path("mine/specs/a.yaml")) == Path("mine/generated")
    assert emit.default_out(Path("a.yaml")) == Path("generated")
    assert emit.default_out(Path("elsewhere/a.yaml")) == Path("generated")


def test_equal_plans_give_equal_bytes(tmp_path: Path) -> None:
    templates = tiny_templates(tmp_path / "templates")
    assert emit.products(tiny_plan(), templates=templates) == emit.products(tiny_plan(), templates=templates)
    assert emit.products(tiny_plan(), templates=templates) != emit.products(
        tiny_plan(value="96"), templates=templates
    )
