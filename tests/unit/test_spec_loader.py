"""Reading spec files: positions, every fault at once against stored texts, matrix, hostile input."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_codegen.errors import Diagnostic, SpecError
from mla_codegen.spec_loader import MAX_FILE_BYTES, load_spec, load_specs, loads_specs

MESSAGES = Path(__file__).parent / "messages"

HEAD = """\
name: k
arch: sm_90a
dtypes: {qkv: e4m3}
dims: {nope: 128, rope: 64, v: 128}
"""

WRONG: dict[str, str] = {
    "unknown_key": HEAD + "tile:\n  blok_m: 64\nkv_stages: 2\nsomething: 3\n",
    "dotted_key": HEAD + "tile.block_m: 64\n",
    "duplicate_key": HEAD + "tile:\n  block_m: 64\n  block_n: 64\n  block_m: 128\n",
    "misspelt_dtype": HEAD.replace("e4m3", "e4m4"),
    "missing_rope_convention": HEAD + "scales: {q: token, k: token}\n",
    "scales_on_bf16": HEAD.replace("e4m3", "bf16") + "scales:\n  q: token\n  v: tensor\n",
    "prescaled_per_head": HEAD + "scales: {q: head, k: head, rope: prescaled}\n",
    "name_differs_from_stem": HEAD.replace("name: k", "name: other"),
    "keyword_name": HEAD.replace("name: k", "name: class"),
    "missing_fields": "name: k\ndims: {nope: 128, v: 128}\n",
    "empty_mapping": "{}\n",
    "empty_file": "# only a remark\n",
    "list_file": "- name: k\n",
    "yaml_1_1_traps": HEAD
    + "scales: {q: no, k: off}\ntile: {block_m: 0x80, block_n: 1_28}\nsoftmax: {sink: yes, softcap: 1e3}\n"
    + "heads: {q: 0128, group: 1:30}\nmask: {window: [0o7, 3]}\n",
    "wrong_types": HEAD
    + 'tile: {block_m: "64", block_n: 64.0}\nsoftmax: {sink: 1, softcap: true}\nheads: 8\nlayout:\n',
    "bad_numbers": HEAD.replace("nope: 128", "nope: 100")
    + "tile: {block_n: 1000}\npipeline: {kv_stages: -1}\n",
    "bad_unions": HEAD + "mask: {windw: [1, 2]}\nlayout: {kv: {paged: 0}, q: paged}\n",
    "spec_version": "spec_version: 7\n" + HEAD + "new_key: 1\n",
    "anchors_and_aliases": HEAD + "tile: &t {block_m: 64}\nheads: *t\n",
    "merge_key": HEAD + "tile:\n  <<: {block_m: 64}\n",
    "tags": HEAD + "tile: !!python/object/apply:os.system [ls]\nsmem: {layout: !x auto}\n",
    "two_documents": HEAD + "---\n" + HEAD,
    "complex_key": HEAD + "? [a, b]\n: 1\n",
    "syntax": HEAD + "tile: {block_m: 64\nheads: 3\n",
    "tab": HEAD + "tile:\n\tblock_m: 64\n",
    "control_character": HEAD + "tile: {block_m: \x07}\n",
    "huge_escape": HEAD + 'mask: "\\UFFFFFFFF"\n',
    "too_deep": HEAD + "tile: " + "[" * 50000 + "\n",
    "byte_order_mark": "\ufeff" + HEAD,
    "matrix_paths": HEAD
    + "matrix:\n  tile.blok_n: [64]\n  tile: [1]\n  name: [a]\n  mask.chunk: 3\n  layout.v: []\n"
    + "  layout.kv: [dense]\n  layout.kv.paged: [64, 64, [1]]\n",
    "matrix_values": HEAD + "matrix:\n  tile.block_n: [64, 100]\n  layout.v: [rows, rws]\n  scales.q: [no]\n",
    "matrix_rules": HEAD + "scales: {rope: prescaled}\nmatrix:\n  scales.k: [token, head, none]\n",
    "matrix_too_large": HEAD
    + "".join(
        ["matrix:\n"] + [f"  pipeline.{name}_stages: [1, 2, 3, 4, 5, 6, 7]\n" for name in ("kv", "pv", "v")]
    ),
    "many_faults": """\
arch: sm90a
name: other
dtypes: {qkv: bf16, rope_mma: f16, out: f64}
dims: {nope: 120, rope: 64, v: 128}
heads: {q: 10, group: 4}
scales: {q: token, k: none}
mask: causl
tile:
  block_m: 64
  block_m: 128
  block_n: 0x40
pipeline: {kv_stage: 2}
""",
}


AMBIGUOUS = """
    no No NO yes y n on off True FALSE Null 0x40 0o100 0100 0b1 6_4 +64 -0 1:04 64e0 6.4e1 .inf -.Inf .nan .5
    5. 1e3 99999999999999999999
"""


def diagnostics(text: str, path: str | None = "specs/k.yaml") -> tuple[Diagnostic, ...]:
    """The faults of a text that must have some."""
    with pytest.raises(SpecError) as caught:
        loads_specs(text, path=path)
    return caught.value.diagnostics


@pytest.mark.parametrize("case", WRONG)
def test_messages(case: str) -> None:
    """To accept a new text, check it by eye and write it to the file yourself."""
    stored = MESSAGES / f"spec_{case}.txt"
    found = "\n".join(fault.render() for fault in diagnostics(WRONG[case])) + "\n"
    assert stored.is_file(), f"{stored.name} is missing, it should hold:\n{found}"
    assert found == stored.read_text(encoding="utf-8")


def test_every_stored_message_has_its_case() -> None:
    stored = [path.stem.removeprefix("spec_") for path in MESSAGES.glob("spec_*.txt")]
    assert sorted(stored) == sorted(WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_every_diagnostic_has_position_allowed_values_and_a_way_out(case: str) -> None:
    faults = diagnostics(WRONG[case])
    lines = WRONG[case].count("\n") + 1
    for fault in faults:
        assert fault.path == "specs/k.yaml"
        assert fault.line is not None
        assert 1 <= fault.line <= lines
        assert fault.col is not None
        assert fault.help
        assert (
            fault.message[0].islower() or not fault.message[0].isalpha() or fault.message.startswith("YAML")
        )
        assert not fault.message.endswith(".")
    assert list(faults) == sorted(faults)
    assert len(set(faults)) == len(faults)


def test_values_and_positions() -> None:
    (spec,) = loads_specs(
        "# remark\n" + HEAD + "tile:\n  block_m: 64\nsoftmax: {softcap: 30.5}\n", path="k.yaml"
    )
    assert (spec.name, spec.tile.block_m, spec.softmax.softcap) == ("k", 64, 30.5)
    assert spec.origin.path == "k.yaml"
    positions = spec.origin.positions
    assert positions["name"] == (2, 7)
    assert positions["dims.rope"] == (5, 25)
    assert positions["tile"] == (6, 1)
    assert positions["tile.block_m"] == (7, 12)
    placed = spec.locate(Diagnostic(code="c", message="m", field="tile.block_n"))
    assert placed.location() == "k.yaml:6:1"


def test_remarks_order_and_style_do_not_move_the_digest() -> None:
    (one,) = loads_specs(HEAD)
    (other,) = loads_specs(
        "dims:\n  v: 128 # wide\n  rope: 64\n  nope: 128\nname: 'k'\ndtypes: {'qkv': e4m3}\narch: sm_90a\n"
    )
    assert one == other
    assert one.digest() == other.digest()
    assert loads_specs(HEAD.replace("\n", "\r\n"))[0] == one


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("auto", "auto"), ('"auto"', "auto")],
)
def test_plain_scalars(text: str, value: object) -> None:
    (spec,) = loads_specs(HEAD + f"schedule: {{persistent: {text}}}\n")
    assert spec.schedule.persistent is value or spec.schedule.persistent == value


@pytest.mark.parametrize(
    "text",
    AMBIGUOUS.split(),
)
def test_what_yaml_versions_read_differently_is_refused(text: str) -> None:
    (fault,) = diagnostics(HEAD + f"tile:\n  block_m: {text}\n")
    assert (fault.code, fault.field, fault.line, fault.col) == ("ambiguous-value", "tile.block_m", 6, 12)
    assert text in fault.message


def test_quoted_traps_are_texts() -> None:
    (fault,) = diagnostics(HEAD + "scales: {q: 'no'}\n")
    assert fault.code == "bad-value"
    assert "scales.q is no, allowed: none" in fault.message


def test_matrix_expands_in_order_with_full_names_and_positions() -> None:
    text = HEAD + "matrix:\n  tile.block_n: [64, 128]\n  layout.v: [rows, transposed]\n"
    specs = loads_specs(text, path="k.yaml")
    assert [spec.name for spec in specs] == [
        "k__tile_block_n_64__layout_v_rows",
        "k__tile_block_n_64__layout_v_transposed",
        "k__tile_block_n_128__layout_v_rows",
        "k__tile_block_n_128__layout_v_transposed",
    ]
    assert [(spec.tile.block_n, spec.layout.v) for spec in specs] == [
        (64, "rows"),
        (64, "transposed"),
        (128, "rows"),
        (128, "transposed"),
    ]
    assert specs[3].origin.positions["tile.block_n"] == (6, 22)
    assert specs[3].origin.positions["layout.v"] == (7, 20)
    assert "matrix" not in specs[0].to_mapping()


def test_matrix_reaches_inside_unions_and_gives_required_fields() -> None:
    text = HEAD.replace("arch: sm_90a\n", "") + (
        "layout: {kv: dense, q: dense}\nmatrix:\n  arch: [sm_90a, sm_100a]\n  layout.kv.paged: [64]\n"
        "  mask.chunk: [8192]\n  softmax.softcap: [null, 30.5]\n  softmax.sink: [true]\n"
    )
    specs = loads_specs(text)
    assert specs[1].name == (
        "k__arch_sm_90a__layout_kv_paged_64__mask_chunk_8192__softmax_softcap_30_5__softmax_sink_true"
    )
    assert [spec.arch for spec in specs] == ["sm_90a", "sm_90a", "sm_100a", "sm_100a"]
    found = specs[3].to_mapping()
    assert found["layout"] == {"q": "dense", "kv": {"paged": 64}, "rope": None, "v": "rows"}
    assert (found["mask"], found["softmax"]["softcap"]) == ({"chunk": 8192}, 30.5)


def test_empty_matrix_is_no_matrix() -> None:
    assert loads_specs(HEAD + "matrix: {}\n") == loads_specs(HEAD)


def test_load_spec_refuses_a_family(tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(HEAD + "matrix: {tile.block_n: [64, 128]}\n", encoding="utf-8")
    assert len(load_specs(file)) == 2
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    (fault,) = caught.value.diagnostics
    assert fault.code == "several-kernels"
    assert fault.notes == ("they are k__tile_block_n_64, k__tile_block_n_128",)


def test_load_spec_reads_a_file_and_keeps_the_path_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.yaml").write_text(HEAD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_spec("k.yaml").origin.path == "k.yaml"
    assert load_spec(Path("k.yaml")) == loads_specs(HEAD)[0]


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (HEAD.encode("utf-16"), "not-utf8", (1, 1)),
        (HEAD.encode() + b"mask: caf\xe9\n", "not-utf8", (5, 10)),
        (b"#" * (MAX_FILE_BYTES + 1), "too-large", (None, None)),
        (b"", "empty-file", (1, 1)),
    ],
)
def test_unreadable_content(
    tmp_path: Path, content: bytes, code: str, place: tuple[int | None, int | None]
) -> None:
    file = tmp_path / "k.yaml"
    file.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_specs(file)
    (fault,) = caught.value.diagnostics
    assert (fault.code, (fault.line, fault.col), fault.path) == (code, place, str(file))


@pytest.mark.parametrize("name", ["absent.yaml", ".", "a\0b", "x" * 5000])
def test_unreadable_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_specs(f"{tmp_path}/{name}")
    assert [fault.code for fault in caught.value.diagnostics] == ["unreadable"]


HOSTILE = {
    "billion laughs": "a: &a [l, l]\n"
    + "".join(f"{c}: &{c} [*{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
    "open lists": "[" * MAX_FILE_BYTES,
    "open mappings": "{a: " * (MAX_FILE_BYTES // 4),
    "dashes": "- " * (MAX_FILE_BYTES // 2),
    "long list": "a: [" + "1," * (MAX_FILE_BYTES // 2 - 4) + "]",
    "many keys": HEAD + "".join(f"k{number}: 1\n" for number in range(20000)),
    "keys and matrix": HEAD
    + "matrix: {tile.block_n: [16, 32, 48, 64], pipeline.kv_stages: [1, 2, 3, 4, 5, 6, 7, 8]}\n"
    + "".join(f"k{number}: 1\n" for number in range(3000)),
    "long scalar": "mask: " + "0" * (MAX_FILE_BYTES - 10),
    "long key": "k" * (MAX_FILE_BYTES - 10) + ": 1",
    "version": "%YAML 1." + "1" * 5000 + "\n---\na: 1\n",
    "huge matrix": HEAD
    + "matrix:\n"
    + "".join(
        f"  {name}: [{', '.join(map(str, range(1, 33)))}]\n"
        for name in ("tile.block_m", "tile.block_n", "heads.q")
    ),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_soon(text: str) -> None:
    started = time.perf_counter()
    faults = diagnostics(text[:MAX_FILE_BYTES])
    assert all(len(fault.render()) < 2000 for fault in faults)
    assert time.perf_counter() - started < 5


WORDS = """
    name arch dtypes qkv dims matrix tile.block_n mask window layout kv paged e4m3 sm_90a 0x2 no 1e3 64 -1
    null
"""
MARKS = ["\n  ", ": ", "- ", "<<: ", "---\n", "...\n", "!!str ", "&a ", "*a", "\\U", "%YAML 1."]
CHARACTERS = "[]{}:,-?&*!|>'\"%@`#\n ~=\t\0\r\ud800\u2028\u00e9"
TOKENS = st.sampled_from([*WORDS.split(), *MARKS, *CHARACTERS])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(TOKENS, max_size=60).map("".join)), st.booleans())
def test_random_text_gives_specs_or_a_spec_error(text: str, after_head: bool) -> None:
    try:
        specs = loads_specs(HEAD + text if after_head else text, path="specs/k.yaml")
    except SpecError as error:
        assert error.diagnostics
        str(error).encode()
    else:
        assert after_head
        assert specs


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 600),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(["auto", "none", "token", "head", "prescaled", "bf16", "e4m3", "no", "a b", "", "é\n"]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["tile", "scales", "mask", "layout", "heads", "matrix", "dtypes", "dims", "softmax", "x y"]
        ),
        st.recursive(
            SCALARS,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["q", "k", "v", "rope", "kv", "paged", "qkv", "group", "tile.block_n", "layout.kv"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_random_values_give_specs_or_a_spec_error(data: dict[str, object]) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in data.items()]
    present = {"dtypes", "dims"} & set(data)
    head = "".join(line + "\n" for line in HEAD.splitlines() if line.split(":")[0] not in present)
    try:
        loads_specs(head + "".join(lines))
    except SpecError as error:
        assert all(fault.line is not None for fault in error.diagnostics)
