"""From a spec or a built folder to a kernel that can be called."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mla_codegen.arch import ARCHS
from mla_codegen.errors import CompileError, LaunchError
from mla_codegen.files import cache_folder
from mla_codegen.plan.model import Plan
from mla_codegen.runtime import make_kernel, may_compile, read_built_folder
from mla_codegen.runtime.limited import Limited

if TYPE_CHECKING:
    from mla_codegen.runtime.quantizer import Quantizer
    from mla_codegen.spec import Spec
    from mla_codegen.tensors import SpecLike, TensorFacts

    Source: TypeAlias = "str | os.PathLike[str] | Spec"

_BACKENDS = ("gpu", "emulator", "auto")
_MAX_QUANTIZERS = 64
_quantizers: Limited[tuple[str, str, TensorFacts], Quantizer | None] = Limited(_MAX_QUANTIZERS)


def load(
    source: Source | Sequence[Source], *, backend: str = "gpu", debug: bool = False, compile: str = "auto"
) -> Any:
    """The kernel of a spec file, a Spec or a built folder; of a list, the one for the device at hand.

    `backend="emulator"` runs on the CPU with NumPy arrays, `"auto"` on the GPU if there is one. `debug=True`
    is a kernel whose barrier waits give up and say where. `compile="never"` makes a late compile an error: no
    compiler runs, neither for the GPU nor for the emulator, and a call of a kernel that was not compiled
    before is a CompileError.
    """
    if backend not in _BACKENDS:
        raise LaunchError.single("backend", f"backend is {backend!r}, {' or '.join(_BACKENDS)} is allowed")
    if backend == "auto":
        backend = "gpu" if _device_capability() is not None else "emulator"
    sources = list(source) if isinstance(source, (list, tuple)) else [source]
    if not sources:
        raise LaunchError.single("no-source", "load got an empty list, at least one spec is needed")
    if backend == "emulator":
        return _emulated(_built(sources[0], debug=debug), may_compile(compile))
    built = [_built(item, debug=debug) for item in sources]
    plan, text, folder = built[0] if len(built) == 1 else _fitting(built)
    return make_kernel(plan, text, folder=folder, compile=compile)


Built: TypeAlias = tuple[Plan, str, "Path | None"]


def _built(source: Source, *, debug: bool) -> Built:
    """Plan and source, rendered in memory where `source` is no built folder."""
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        if debug:
            raise LaunchError.single(
                "debug-folder",
                f"{os.fspath(source)} is a built folder, a debug build is rendered from a spec",
                help="load the spec with debug=True",
            )
        return (*read_built_folder(Path(source)), Path(source))
    return (*_render(source, debug=debug), None)


def _render(source: Source, *, debug: bool) -> tuple[Plan, str]:
    from mla_codegen.emit import stamped
    from mla_codegen.plan import make_plan
    from mla_codegen.render import render
    from mla_codegen.spec import Spec
    from mla_codegen.spec_loader import load_spec

    spec = load_spec(source) if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(spec, Spec):
        raise LaunchError.single(
            "source",
            f"load got an object of type {type(spec).__name__}, the path of a spec or of a built folder, or "
            "a Spec is needed",
            help="make a Spec of a mapping with mla_codegen.spec.Spec.from_mapping",
        )
    plan = make_plan(spec, debug=debug)
    text = render(plan)
    return stamped(plan, text), text


def load_quantizer(spec: SpecLike, facts: TensorFacts) -> Quantizer | None:
    """The generated quantiser of a spec with these facts, made once per process.

    None where there is none: the spec is not of e4m3, it is a mapping without name or target, or the
    templates' library or the compiler is not installed.
    """
    from mla_codegen.tensors import spec_mapping

    mapping = spec_mapping(spec)
    key = (str(mapping.get("name")), str(mapping.get("arch")), facts)
    if key not in _quantizers:
        _quantizers.keep(key, _make_quantizer(mapping))
    return _quantizers[key]


def _make_quantizer(mapping: Mapping[str, Any]) -> Quantizer | None:
    from mla_codegen.plan.quantizer import plan_quantizer
    from mla_codegen.runtime.cache import default_cache
    from mla_codegen.runtime.nvrtc import find_nvrtc
    from mla_codegen.runtime.quantizer import Quantizer

    plan = plan_quantizer(mapping)
    if plan is None:
        return None
    try:
        from mla_codegen.render import render_quantizer

        find_nvrtc(plan.arch)
    except (ModuleNotFoundError, CompileError):
        return None
    return Quantizer(plan, render_quantizer(plan), cache=default_cache(cache_folder()))


def _fitting(built: Sequence[Built]) -> Built:
    """The first plan whose target runs on the current device."""
    capability = _device_capability()
    names = ", ".join(f"{plan.name} ({plan.arch})" for plan, _, _ in built)
    if capability is None:
        raise LaunchError.single(
            "no-device",
            f"no usable GPU to choose one of {names} for",
            help="load one spec with backend='emulator'",
        )
    for candidate in built:
        if capability in ARCHS[candidate[0].arch].compute_capabilities:
            return candidate
    raise LaunchError.single(
        "unsupported-gpu",
        f"the device has compute capability {capability[0]}.{capability[1]}, none of {names} runs on it",
        help="add a spec whose arch fits the device",
    )


def _device_capability() -> tuple[int, int] | None:
    """Compute capability of the current device; None where there is no usable GPU."""
    from mla_codegen.runtime.driver import the_driver

    try:
        driver = the_driver()
        return driver.compute_capability(driver.current_device()) if driver.device_count() else None
    except LaunchError:
        return None


def _emulated(built: Built, allowed: bool) -> Any:
    """The kernel on the CPU."""
    from mla_codegen.emulator import load_emulated

    plan, text, _ = built
    return load_emulated(plan, text, may_compile=allowed)
