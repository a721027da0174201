"""Every device primitive has a twin in the host model that can be called the same way."""

from __future__ import annotations

import re

from mla_codegen.emulator.compiler import CPP_FOLDER
from tests.emulator.support import GENERATED

PRIMITIVES = GENERATED.parent / "mla_codegen" / "primitives"
DEVICE_ONLY = {"global_timer_ns", "mbarrier_timeout"}
"""Parts of the debug build's wait, which the emulator does not need: it finds every deadlock."""

_DECLARATION = re.compile(
    r"__device__ (?:__forceinline__|__noinline__) [\w ]+?[ *&](\w+)\(((?:[^()]|\([^()]*\))*)\)"
)


def parameter_count(parameters: str) -> int:
    return len(parameters.split(",")) if parameters.strip() else 0


def test_every_device_primitive_has_a_twin() -> None:
    twins: dict[str, set[int]] = {}
    for header in ("mla_host_model.hpp", "host_numbers.hpp"):
        text = (CPP_FOLDER / header).read_text()
        text = re.sub(r",?\s*(MLA_LINE|int line = __builtin_LINE\(\))", "", text)
        for name, parameters in re.findall(r"inline [\w ]+?[ *&](\w+)\(([^{]*)\) \{", text):
            twins.setdefault(name, set()).add(parameter_count(parameters))
    missing = []
    for path in sorted((PRIMITIVES / "device").glob("*.cuh")):
        for name, parameters in _DECLARATION.findall(path.read_text()):
            if name not in DEVICE_ONLY and parameter_count(parameters) not in twins.get(name, set()):
                missing.append(f"{path.name}: {name}/{parameter_count(parameters)}")
    assert not missing
