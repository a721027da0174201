"""Every device primitive has a twin in the host model that can be called the same way and means the same."""

from __future__ import annotations

import re

import numpy as np

from mla_codegen.emulator.compiler import CPP_FOLDER
from tests.emulator.small import run_small, source_with
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
    for header in ("mla_host_model.hpp", "host_numbers.hpp", "host_tensor_memory.hpp"):
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


def all_magnitudes() -> np.ndarray:
    """Around every f16 number of either sign the number itself, its neighbours and ties; and subnormals."""
    codes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (codes[:-1] + codes[1:]) / 2
    near = [np.nextafter(x, np.float32(side)) for x in (codes, middles) for side in (-np.inf, np.inf)]
    beyond = np.array([65519.996, 65520.0, 7e4, 3e38, np.inf, 1e-40, 2.0**-149, 2.0**-126], np.float32)
    positive = np.concatenate([codes, middles, *near, beyond])
    return np.concatenate([positive, -positive])


def test_f16_pairs_and_logarithms_are_those_of_ieee() -> None:
    source = all_magnitudes()
    assert source.size % 2 == 0
    out, logarithm = np.zeros(source.size // 2, np.uint32), np.full(source.size, np.nan, np.float32)
    result = run_small(
        "numbers",
        source_with("numbers", {}),
        arrays={"source": source, "out": out, "logarithm": logarithm},
        outputs=("out", "logarithm"),
        numbers={"pairs": out.size},
    )
    assert not result.hazards
    with np.errstate(over="ignore"):
        assert np.array_equal(out.view(np.uint16), source.astype(np.float16).view(np.uint16))
    flushed = np.where(np.abs(source) < 2.0**-126, 0.0, source).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.log2(flushed)
    assert np.array_equal(np.isnan(logarithm), np.isnan(expected))
    assert np.array_equal(np.isneginf(logarithm), np.isneginf(expected))
    finite = np.isfinite(expected)
    # PTX ISA, lg2.approx: off by at most 2^-22 within [0.5, 2], and by a 2^-22th of the result outside of it.
    bound = np.maximum(2.0**-22, 2.0**-22 * np.abs(expected[finite]))
    assert (np.abs(logarithm[finite] - expected[finite]) <= bound).all()
