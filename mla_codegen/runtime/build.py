"""Where a kernel's cubin comes from: files beside the source, the cache, the compiler, in this order."""

from __future__ import annotations

import threading
from pathlib import Path

from mla_codegen.errors import CompileError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.cache import CubinCache
from mla_codegen.runtime.cubin import check_against_plan
from mla_codegen.runtime.nvrtc import CompileResult
from mla_codegen.runtime.stored import read_stored


class KernelBuild:
    """The compiled form of one generated source; thread-safe."""

    def __init__(
        self,
        plan: Plan,
        source: str,
        *,
        cache: CubinCache,
        folder: Path | None = None,
        may_compile: bool = True,
    ) -> None:
        """`folder` is looked at first for `<name>.cubin` with its JSON file."""
        self._plan = plan
        self._source = source
        self._cache = cache
        self._folder = folder
        self._may_compile = may_compile
        self._strict = not any(variant.features.debug for variant in plan.variants)
        self._result: CompileResult | None = None
        self._lock = threading.Lock()

    def find(self) -> CompileResult | None:
        """The compiled kernel if no compiler has to run for it."""
        with self._lock:
            return self._find()

    def get(self) -> CompileResult:
        """The compiled kernel; CompileError where it cannot or may not be, or differs from its plan."""
        with self._lock:
            found = self._find()
            if found is None:
                if not self._may_compile:
                    raise CompileError.single(
                        "late-compile",
                        f"kernel {self._plan.name} is not compiled, and compile='never' forbids to do it now",
                        help="build it before with mla-codegen build, or load it with compile='auto'",
                    )
                found = self._cache.get(
                    self._source, arch=self._plan.arch, name=self._plan.name, strict=self._strict
                )
                self._result = self._checked(found)
            return found

    def _find(self) -> CompileResult | None:
        if self._result is not None:
            return self._result
        found = None if self._folder is None else read_stored(self._folder, self._plan.name, self._source)
        if found is None:
            try:
                found = self._cache.find(
                    self._source, arch=self._plan.arch, name=self._plan.name, strict=self._strict
                )
            except CompileError:  # no compiler here: its version is part of the cache's key
                return None
        if found is not None:
            self._result = self._checked(found)
        return found

    def _checked(self, result: CompileResult) -> CompileResult:
        if self._strict:
            faults = tuple(
                fault for variant in self._plan.variants for fault in check_against_plan(variant, result)
            )
            if faults:
                raise CompileError(faults)
        return result
