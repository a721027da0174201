"""The commands: what they print where, what they write, and their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mla_codegen import emit
from mla_codegen.cli import app, machine, run
from mla_codegen.cli.options import Lengths
from mla_codegen.cli.output import plain_table
from mla_codegen.emulator import compiler
from mla_codegen.machine import Driver, Finding, Gpu
from mla_codegen.resources import specs_folder

ROOT = Path(__file__).resolve().parents[2]
DEMO = specs_folder() / f"{run.DEMO_SPEC}.yaml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A buildable spec in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    Path("specs/mine.yaml").write_text(DEMO.read_text().replace(run.DEMO_SPEC, "mine"))
    return Path("specs/mine.yaml")


def test_build_writes_what_changed(spec: Path) -> None:
    done = call("build", "--no-compile", spec)
    names = ("mine.cu", "plan.json", "__init__.py", "mine_quantize.cu")
    paths = [f"generated/mine/{name}" for name in names]
    assert (done.exit_code, done.stdout.splitlines()) == (0, [f"wrote {path}" for path in paths])
    again = call("build", "--no-compile", spec)
    assert again.stdout.splitlines() == [f"unchanged {path}" for path in paths]
    assert call("build", "--check", spec).exit_code == 0


def test_check_shows_drift_and_writes_nothing(spec: Path) -> None:
    missing = call("build", "--check", spec)
    assert missing.exit_code == 1
    assert "would write generated/mine/mine.cu" in missing.stdout
    assert not Path("generated").exists()
    call("build", "--no-compile", spec)
    plan = Path("generated/mine/plan.json")
    plan.write_text(plan.read_text().replace('"name": "mine"', '"name": "yours"', 1))
    edited = call("build", "--check", spec)
    assert edited.exit_code == 1
    assert '-  "name": "yours",\n+  "name": "mine",' in edited.stdout


def test_check_shows_orphans(spec: Path) -> None:
    call("build", "--no-compile", spec)
    Path("generated/stray").mkdir()
    Path("generated/stray/plan.json").write_text("{}")
    done = call("build", "--check", spec)
    assert done.exit_code == 1
    fault = "generated/stray: error[orphan]: no spec describes stray"
    assert done.stderr == f"{fault}\n  help: remove the folder, or bring its spec back\n"


def test_two_specs_of_one_name_are_refused(spec: Path) -> None:
    Path("other").mkdir()
    Path("other/mine.yaml").write_text(spec.read_text())
    done = call("build", "--no-compile", spec, "other/mine.yaml")
    assert (done.exit_code, Path("generated").exists()) == (1, False)
    assert (
        "other/mine.yaml: error[same-name]: the kernel mine is described by specs/mine.yaml too"
        in done.stderr
    )


def test_too_little_memory_is_diagnosed(spec: Path) -> None:
    done = call("emulate", spec, "--q-len", 2, "--kv-len", 10**13)
    assert done.exit_code == 1
    assert done.stderr.startswith("error[memory]: there is not enough memory: ")
    assert done.stderr.endswith("  help: take a smaller problem\n")


def test_check_beside_other_files_looks_at_its_spec_alone(spec: Path) -> None:
    Path("compose.yaml").write_text("services: {}\n")
    Path("generated/other").mkdir(parents=True)
    Path("generated/other/plan.json").write_text("{}")
    spec = spec.rename("mine.yaml")
    call("build", "--no-compile", spec)
    assert call("build", "--check", spec).exit_code == 0


def test_a_broken_spec_is_diagnosed_on_stderr(spec: Path) -> None:
    spec.write_text(spec.read_text().replace("mask: causal", "mask: causl"))
    done = call("build", spec)
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.match(r"specs/mine\.yaml:\d+:7: error\[", done.stderr)
    assert "causl" in done.stderr


def test_faults_of_all_specs_are_reported_at_once(spec: Path) -> None:
    Path("specs/other.yaml").write_text("name: other\n")
    spec.write_text("name: 7\n")
    done = call("build", spec, "specs/other.yaml")
    assert done.exit_code == 1
    assert "specs/mine.yaml:" in done.stderr
    assert "specs/other.yaml:" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("build", "--check", "--cubin", "a.yaml"),
        ("build", "--arch", "sm_80", "a.yaml"),
        ("init", "Bad-Name"),
        ("run", "a.yaml", "--q-len", "1,x"),
        ("emulate", "a.yaml", "--data", "odd"),
        ("nothing",),
    ],
)
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_an_unwritable_folder_is_diagnosed(spec: Path) -> None:
    Path("generated").write_text("a file where a folder should be")
    done = call("build", "--no-compile", spec)
    assert done.exit_code == 1
    assert "error[file]: " in done.stderr


def test_plan_json_is_the_file_byte_for_byte(spec: Path) -> None:
    call("build", "--no-compile", spec)
    done = call("plan", "--json", spec)
    assert done.exit_code == 0
    assert done.stdout_bytes == Path("generated/mine/plan.json").read_bytes()


def test_plan_shows_every_part(spec: Path) -> None:
    done = call("plan", spec)
    assert done.exit_code == 0
    for part in (
        "choices",
        "shared memory",
        "mbarriers",
        "named barriers",
        "roles",
        "tensor maps",
        "kv_smem",
    ):
        assert part in done.stdout


def test_matrix_is_one_line_for_a_ci(spec: Path) -> None:
    done = call("matrix", "--json", spec)
    entry = {"spec": "specs/mine.yaml", "name": "mine", "arch": "sm_90a"}
    assert json.loads(done.stdout) == {"include": [entry]}
    assert done.stdout.count("\n") == 1
    assert "mine  sm_90a  specs/mine.yaml" in call("matrix", spec).stdout


def test_init_writes_a_spec_that_builds_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("init", "fresh_one")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "wrote fresh_one.yaml")
    assert call("build", "--no-compile", "fresh_one.yaml").exit_code == 0
    again = call("init", "fresh_one")
    assert (again.exit_code, again.stderr) == (
        1,
        "Error: fresh_one.yaml exists already: take another name, or remove it\n",
    )
    keyword = call("init", "class")
    assert (keyword.exit_code, Path("class.yaml").exists()) == (1, False)
    assert "name is class, a keyword of Python" in keyword.stderr
    Path("specs").mkdir()
    assert "wrote specs/fresh_one.yaml" in call("init", "fresh_one").stdout


def test_schema_is_json() -> None:
    assert json.loads(call("schema").stdout)["title"] == "mla-codegen spec"


def test_lint_is_clean() -> None:
    done = call("lint")
    assert (done.exit_code, done.stderr) == (0, "")


def test_doctor_says_whether_it_can_build(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = (
        Finding(name="NVRTC", found="NVRTC 13.0", needed_to="build", help="pip install it"),
        Finding(name="GPU", found=None, needed_to="run", help="a GPU is needed"),
    )
    monkeypatch.setattr(machine, "findings", lambda folder: findings)
    done = call("doctor")
    assert done.exit_code == 0
    assert "to run: a GPU is needed\nkernels can be built here" in done.stdout
    monkeypatch.setattr(machine, "findings", lambda folder: (findings[1], *[_missing(findings[0])]))
    done = call("doctor", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["can_build"] is False


def _missing(finding: Finding) -> Finding:
    return Finding(name=finding.name, found=None, needed_to=finding.needed_to, help=finding.help)


def test_doctor_looks_at_this_machine() -> None:
    done = call("doctor", "--json")
    names = [finding["name"] for finding in json.loads(done.stdout)["findings"]]
    assert names[0] == "Python"
    assert {"NVRTC", "CuPy", "CUDA driver", "GPU", "C++ compiler", "cache folder"} < set(names)


def test_cache_info_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLA_CODEGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "a.cubin").write_bytes(b"12345")
    assert call("cache", "info").stdout == f"{tmp_path}: 1 kernels, 5 B\n"
    assert json.loads(call("cache", "info", "--json").stdout) == {
        "folder": str(tmp_path),
        "kernels": 1,
        "bytes": 5,
    }
    assert call("cache", "clear").stdout == f"{tmp_path}: removed 1 kernels\n"
    assert list(tmp_path.iterdir()) == []


def test_run_without_a_gpu_says_what_it_needs(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "gpu_for", lambda arch: None)
    old = Driver(cuda_version=(12, 4), gpus=(Gpu(name="Old GPU", compute_capability=(8, 0)),))
    for driver, found in ((None, "no CUDA driver"), (old, "Old GPU")):
        monkeypatch.setattr(run, "find_driver", lambda driver=driver: driver)
        done = call("run", spec, "--json")
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"error[no-gpu]: mine needs a GPU for sm_90a, found {found}\n" in done.stderr


def test_emulate_traces_and_takes_workers(spec: Path) -> None:
    done = call(
        "emulate", spec, "--q-len", 70, "--kv-len", 90, "--heads", 1, "--workers", 2, "--trace", "t.json"
    )
    assert done.exit_code == 0
    assert re.fullmatch(r"0 hazards, error [1-9]\.\de-02, contract kept", done.stdout.splitlines()[-1])
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    names = {event["name"] for event in events} | {event["args"].get("name") for event in events}
    assert {"wait k_full[0]", "arrive k_empty[0]", "warp 0: load", "tensor core"} <= names


def test_a_bar_is_drawn_on_a_terminal_only(spec: Path) -> None:
    code = "from mla_codegen.cli import main, run; run._BAR_SECONDS = 0; main()"
    sizes = ["--q-len", "70", "--kv-len", "90", "--heads", "1", "--schedules", "2"]
    for extra, drawn in (([], True), (["--json"], False)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-c", code, "emulate", str(spec), *sizes, *extra]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        subprocess.run(
            command, env=environment, stderr=theirs, stdout=subprocess.PIPE, timeout=120, check=True
        )
        os.close(theirs)
        assert ("CTAs" in _read_all(ours)) == drawn


def _read_all(terminal: int) -> str:
    """What was written to a terminal whose other end is closed."""
    parts = []
    with contextlib.suppress(OSError):  # Linux reports the end as an error
        while part := os.read(terminal, 4096):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


def test_demo_emulates_where_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "gpu_for", lambda arch: None)
    done = call("demo")
    assert done.exit_code == 0
    assert re.fullmatch(r"0 hazards, error [1-9]\.\de-02, contract kept", done.stdout.splitlines()[-1])


def test_demo_shows_the_plan_where_nothing_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "gpu_for", lambda arch: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler.find_compiler.cache_clear()
    done = call("demo")
    compiler.find_compiler.cache_clear()
    assert done.exit_code == 0
    assert "no C++20 compiler found (looked for no-such-compiler)" in done.stderr
    assert "not run: no GPU for sm_90a here" in done.stdout


def test_a_bug_shows_its_traceback_and_exits_with_70() -> None:
    break_schema = "app.commands['schema'].callback = lambda: {}['absent']"
    code = f"from mla_codegen.cli import app, main\n{break_schema}\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "schema"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert "KeyError: 'absent'" in done.stderr
    assert done.stderr.endswith("this is a bug of mla-codegen: please report it with the lines above\n")


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mla_codegen", "--version"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("mla-codegen, version ")


def test_lengths_are_lists_of_numbers() -> None:
    assert Lengths().convert("131,0,7", None, None) == (131, 0, 7)
    assert Lengths().convert("5", None, None) == (5,)


def test_tables_are_aligned_columns_where_there_is_no_terminal() -> None:
    text = plain_table("title", ("name", "B"), [("a", "1"), ("longer", "22")])
    assert text == "title\n  name    B\n  a       1\n  longer  22\n"


def test_write_goes_through_the_emit_layer(spec: Path) -> None:
    call("build", "--no-compile", "--out", "elsewhere", spec)
    assert emit.orphans(Path("elsewhere"), {"mine"}) == ()
    assert Path("elsewhere/mine/mine.cu").is_file()
