"""Compiles, loads and launches generated kernels; needs neither the planner nor the templates.

CuPy is imported only where an output has to be allocated for arrays that are not torch's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mla_codegen.errors import LaunchError
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.built_folder import read_built_folder

if TYPE_CHECKING:
    from mla_codegen.runtime.kernel import Kernel

__all__ = ["load_kernel", "make_kernel", "may_compile", "read_built_folder"]


def load_kernel(folder: str | os.PathLike[str], *, compile: str = "auto") -> Kernel:
    """The kernel of a folder with plan.json and the source; LaunchError where they do not match.

    `<name>.cubin` with `<name>.cubin.json` in the folder is used where it was compiled from this source; else
    the cache and the compiler are asked, with compile="never" the cache only.
    """
    path = Path(folder)
    plan, source = read_built_folder(path)
    return make_kernel(plan, source, folder=path, compile=compile)


def make_kernel(plan: Plan, source: str, *, folder: Path | None = None, compile: str = "auto") -> Kernel:
    """The kernel of a plan and the source that was rendered from it."""
    from mla_codegen.files import cache_folder
    from mla_codegen.runtime.build import KernelBuild
    from mla_codegen.runtime.cache import default_cache
    from mla_codegen.runtime.kernel import Kernel

    allowed = may_compile(compile)
    cache = default_cache(cache_folder())
    build = KernelBuild(plan, source, cache=cache, folder=folder, may_compile=allowed)
    return Kernel(plan, source, build)


def may_compile(compile: str) -> bool:
    """Whether the option allows a compiler to run; LaunchError where it is neither 'auto' nor 'never'."""
    if compile not in ("auto", "never"):
        raise LaunchError.single("compile", f"compile is {compile!r}, 'auto' or 'never' is allowed")
    return compile == "auto"
