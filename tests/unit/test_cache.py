"""The cache of compiled kernels, with a stub in place of the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from mla_codegen.files import cache_folder
from mla_codegen.runtime.cache import CubinCache
from mla_codegen.runtime.compiler_log import EntryFigures
from mla_codegen.runtime.nvrtc import CompileResult

SOURCE = "// kernel"
FIGURES = EntryFigures(
    name="k",
    registers=168,
    spill_store_bytes=0,
    spill_load_bytes=0,
    stack_bytes=0,
    barriers=16,
    static_smem_bytes=0,
)


class StubCompiler:
    """Writes a line per compilation, also across processes."""

    def __init__(self, log: Path, *, seconds: float = 0.0) -> None:
        self.log = log
        self.seconds = seconds

    def __call__(
        self, source: str, *, arch: str, name: str, extra_options: tuple[str, ...] = (), strict: bool = True
    ) -> CompileResult:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(self.seconds)
        return CompileResult(
            cubin=f"{source} {arch} {name} {extra_options} {strict}".encode(),
            log="log",
            entries=(FIGURES,),
            seconds=0.5,
            options=(arch, *extra_options),
            nvrtc_version=(13, 0),
            library_path="stub",
        )

    def count(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def make_cache(
    folder: Path | None,
    log: Path,
    *,
    version: str = "nvrtc 13.0",
    seconds: float = 0.0,
    lock_seconds: float = 60.0,
) -> tuple[CubinCache, StubCompiler]:
    compiler = StubCompiler(log, seconds=seconds)
    cache = CubinCache(
        folder, compile_function=compiler, version_function=lambda arch: version, lock_seconds=lock_seconds
    )
    return cache, compiler


def test_second_use_reads_what_the_first_compiled(tmp_path: Path) -> None:
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log")
    assert cache.find(SOURCE, arch="sm_90a", name="k") is None
    first = cache.get(SOURCE, arch="sm_90a", name="k")
    other, _ = make_cache(tmp_path / "cache", tmp_path / "log")
    second = other.get(SOURCE, arch="sm_90a", name="k")
    assert compiler.count() == 1
    assert (second.cubin, second.entries, second.options) == (first.cubin, first.entries, first.options)
    assert cache.info().entries == 1 and cache.info().bytes > len(first.cubin)
    assert cache.clear() == 1
    assert cache.info().entries == 0
    cache.get(SOURCE, arch="sm_90a", name="k")
    assert compiler.count() == 2


def test_everything_that_decides_the_cubin_is_in_the_key(tmp_path: Path) -> None:
    cache, _ = make_cache(tmp_path, tmp_path / "log")
    newer, _ = make_cache(tmp_path, tmp_path / "log", version="nvrtc 13.1")
    keys = {
        cache.key(SOURCE, arch="sm_90a", name="k"),
        cache.key(SOURCE + " ", arch="sm_90a", name="k"),
        cache.key(SOURCE, arch="sm_100a", name="k"),
        cache.key(SOURCE, arch="sm_90a", name="other"),
        cache.key(SOURCE, arch="sm_90a", name="k", extra_options=("-G",)),
        cache.key(SOURCE, arch="sm_90a", name="k", strict=False),
        newer.key(SOURCE, arch="sm_90a", name="k"),
    }
    assert len(keys) == 7
    assert cache.key(SOURCE, arch="sm_90a", name="k") in keys


def damage_cubin(folder: Path, key: str) -> None:
    (folder / f"{key}.cubin").write_bytes(b"damaged")


def truncate_json(folder: Path, key: str) -> None:
    path = folder / f"{key}.cubin.json"
    path.write_bytes(path.read_bytes()[:40])


def remove_json(folder: Path, key: str) -> None:
    (folder / f"{key}.cubin.json").unlink()


def empty_cubin(folder: Path, key: str) -> None:
    (folder / f"{key}.cubin").write_bytes(b"")


def drop_a_figure(folder: Path, key: str) -> None:
    path = folder / f"{key}.cubin.json"
    record = json.loads(path.read_bytes())
    del record["entries"][0]["registers"]
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("damage", [damage_cubin, truncate_json, remove_json, empty_cubin, drop_a_figure])
def test_damaged_entries_are_compiled_again(tmp_path: Path, damage: object) -> None:
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log")
    good = cache.get(SOURCE, arch="sm_90a", name="k")
    assert callable(damage)
    damage(tmp_path / "cache", cache.key(SOURCE, arch="sm_90a", name="k"))
    assert cache.get(SOURCE, arch="sm_90a", name="k").cubin == good.cubin
    assert compiler.count() == 2
    assert cache.get(SOURCE, arch="sm_90a", name="k").cubin == good.cubin
    assert compiler.count() == 2


@pytest.mark.parametrize("kind", ["a file in the way", "no home"])
def test_without_a_folder_kernels_stay_in_memory_with_one_warning(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    folder = None if kind == "no home" else tmp_path / "file" / "cache"
    cache, compiler = make_cache(folder, tmp_path / "log")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for source in ("a", "b", "a"):
            cache.get(source, arch="sm_90a", name="k")
    assert compiler.count() == 2
    assert cache.find("b", arch="sm_90a", name="k") is not None
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert "in memory only" in str(warning.message) and "MLA_CODEGEN_CACHE_DIR" in str(warning.message)


def test_a_stale_lock_only_delays(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="needs the file locks of a Unix system")
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log", lock_seconds=0.2)
    (tmp_path / "cache").mkdir()
    key = cache.key(SOURCE, arch="sm_90a", name="k")
    with (tmp_path / "cache" / f"{key}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        start = time.monotonic()
        cache.get(SOURCE, arch="sm_90a", name="k")
        assert 0.2 <= time.monotonic() - start < 5
    assert compiler.count() == 1


def test_threads_compile_once(tmp_path: Path) -> None:
    cache, compiler = make_cache(tmp_path / "cache", tmp_path / "log", seconds=0.1)
    threads = [
        threading.Thread(target=cache.get, args=(SOURCE,), kwargs={"arch": "sm_90a", "name": "k"})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.count() == 1


WORKER = """
import sys
from pathlib import Path
from tests.unit.test_cache import SOURCE, make_cache
cache, _ = make_cache(Path(sys.argv[1]), Path(sys.argv[2]), seconds=0.3)
assert cache.get(SOURCE, arch="sm_90a", name="k").cubin.startswith(SOURCE.encode())
"""


def test_sixteen_cold_processes_compile_once(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="needs the file locks of a Unix system")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WORKER, str(tmp_path / "cache"), str(tmp_path / "log")]
    workers = [subprocess.Popen(command, cwd=root) for _ in range(16)]
    assert [worker.wait(timeout=120) for worker in workers] == [0] * 16
    _, compiler = make_cache(tmp_path / "cache", tmp_path / "log")
    assert compiler.count() == 1
    assert not list((tmp_path / "cache").glob(".*"))


def test_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLA_CODEGEN_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MLA_CODEGEN_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mla-codegen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mla-codegen"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "mla-codegen"
