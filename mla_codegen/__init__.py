"""Generator of MLA prefill attention kernels: spec -> plan -> CUDA source -> cubin -> kernel.

The names below are loaded on first use, so that importing the package, or a generated kernel, needs none of
the planner's dependencies. `reference`, `quantize`, `render` and `build` are functions even though modules of
these names hold them: import those modules' other names with `from mla_codegen.reference import ...`.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_codegen.accuracy import measure
    from mla_codegen.build import build
    from mla_codegen.loading import load
    from mla_codegen.plan.builder import make_plan
    from mla_codegen.quantize import quantize
    from mla_codegen.reference import reference
    from mla_codegen.render import render
    from mla_codegen.spec_loader import load_spec

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "build",
    "load",
    "load_spec",
    "make_plan",
    "measure",
    "quantize",
    "reference",
    "render",
]

_HOMES = {
    "build": "mla_codegen.build",
    "load": "mla_codegen.loading",
    "load_spec": "mla_codegen.spec_loader",
    "make_plan": "mla_codegen.plan.builder",
    "measure": "mla_codegen.accuracy",
    "quantize": "mla_codegen.quantize",
    "reference": "mla_codegen.reference",
    "render": "mla_codegen.render",
}


class _Package(types.ModuleType):
    """The package as a module in which an imported submodule never hides the function of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        """Drops the binding of a submodule that the import system makes where the name is a function's."""
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
