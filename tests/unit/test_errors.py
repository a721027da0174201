"""Diagnostics render in the house form, sort by position and travel inside every error of the package."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from mla_codegen.errors import CompileError, Diagnostic, LaunchError, MlaCodegenError, PlanError, SpecError

SMEM = Diagnostic(
    code="smem-overflow",
    message="needs 246784 B of shared memory, sm_90a offers 232448 B",
    path="specs/x.yaml",
    line=14,
    col=9,
    notes=("q 49152 + kv 3 x 65536 + barriers 1024",),
    help="set kv_stages: 2 or block_n: 64",
    field="pipeline.kv_stages",
)


def test_render_gives_location_message_note_and_help() -> None:
    assert SMEM.render() == (
        "specs/x.yaml:14:9: error[smem-overflow]: needs 246784 B of shared memory, sm_90a offers 232448 B\n"
        "  note: q 49152 + kv 3 x 65536 + barriers 1024\n"
        "  help: set kv_stages: 2 or block_n: 64"
    )


@pytest.mark.parametrize(
    ("path", "line", "col", "start"),
    [
        (None, None, None, "error[c]: m"),
        ("x.yaml", None, None, "x.yaml: error[c]: m"),
        ("x.yaml", 3, None, "x.yaml:3: error[c]: m"),
        (None, 3, 4, "3:4: error[c]: m"),
        ("x.yaml", None, 4, "x.yaml: error[c]: m"),
        ("a\n\x1b[1m\udcff.yaml", 1, 2, "a\\n\\x1b[1m\\udcff.yaml:1:2: error[c]: m"),
    ],
)
def test_unknown_parts_of_the_location_are_left_out(
    path: str | None, line: int | None, col: int | None, start: str
) -> None:
    assert Diagnostic(code="c", message="m", path=path, line=line, col=col).render() == start


def test_diagnostics_are_immutable_and_closed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMEM.line = 3  # type: ignore[misc]
    assert not hasattr(SMEM, "__dict__")
    with pytest.raises(TypeError):
        Diagnostic("c", "m")  # type: ignore[misc]


def test_errors_sort_by_line_and_column_as_numbers() -> None:
    places = [("b", 1, 1), ("a", 10, 1), ("a", 9, 12), ("a", 9, 2), ("a", None, None)]
    faults = [Diagnostic(code="c", message="m", path=path, line=line, col=col) for path, line, col in places]
    error = SpecError(faults)
    assert [(f.path, f.line, f.col) for f in error.diagnostics] == [
        ("a", None, None),
        ("a", 9, 2),
        ("a", 9, 12),
        ("a", 10, 1),
        ("b", 1, 1),
    ]
    assert str(error) == "\n".join(fault.render() for fault in error.diagnostics)


@pytest.mark.parametrize("kind", [SpecError, PlanError, CompileError, LaunchError])
def test_every_error_is_caught_by_the_base_and_keeps_its_kind(kind: type[MlaCodegenError]) -> None:
    error = kind.single("code", "message", path="p", notes=("n",), help="h", field="tile.block_m")
    assert type(error) is kind
    assert isinstance(error, MlaCodegenError)
    assert isinstance(error, ValueError) == (kind is LaunchError)
    assert str(error) == "p: error[code]: message\n  note: n\n  help: h"
    assert error.diagnostics[0].field == "tile.block_m"


def test_errors_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(PlanError((SMEM,))))
    assert type(copy) is PlanError
    assert copy.diagnostics == (SMEM,)


def test_an_error_without_diagnostics_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="at least one diagnostic"):
        SpecError(())
