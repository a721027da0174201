"""The `gpu` marker: such tests are collected everywhere and run where a GPU of their arch is."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from mla_codegen.machine import Gpu, gpu_for


@functools.cache
def _gpu(arch: str) -> Gpu | None:
    return gpu_for(arch)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("gpu"):
            (arch,) = marker.args
            if _gpu(arch) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU for {arch}, this machine has none"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests compile into a cache of their own, which their child processes share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLA_CODEGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
