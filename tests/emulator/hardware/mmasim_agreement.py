"""Compares the models of wgmma and tcgen05, and results of an H200, with the simulator of the package mmasim.

Run as `python -m tests.emulator.hardware.mmasim_agreement`; needs mmasim and torch (a CPU build will do).
Prints how many of the results are equal bit by bit.
"""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np

from mla_codegen.emulator.compiler import build_engine
from mla_codegen.emulator.native import load_engine
from tests.emulator.hardware.wgmma_bits import CASES, KINDS, N, make_inputs

BITS = Path(__file__).parent / "wgmma_bits.npz"
F16_KINDS = ("f16_normal", "f16_wide")
HOPPER, BLACKWELL = 0, 1
"""`TensorCore` of engine.hpp."""


def f16_inputs(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `make_inputs`, in fp16."""
    rng = np.random.default_rng(200 + F16_KINDS.index(kind))
    wide = 6 if kind == "f16_wide" else 0

    def halves(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape) * 2.0 ** rng.integers(-wide, wide + 1, shape)
        return values.astype(np.float16).view(np.uint8)

    c = (rng.standard_normal((CASES, 64, N)) * 4).astype(np.float32)
    return halves(CASES, 64, 16), halves(CASES, N, 16), c


def main() -> None:
    """Prints a line per unit and kind of input."""
    import torch
    from mmasim.nv_ptx.sim import WGMMA, TCGen05MMA

    forms = {
        "e4m3": (0, "k32", "f8f6f4", torch.float8_e4m3fn),
        "bf16": (1, "k16", "f16", torch.bfloat16),
        "f16": (2, "k16", "f16", torch.float16),
    }
    engine, table = load_engine(build_engine()), np.load(BITS)
    for core, kind in itertools.product((HOPPER, BLACKWELL), (*KINDS, *F16_KINDS)):
        name = kind.split("_")[0]
        number, k, mma_kind, dtype = forms[name]
        simulator = (
            WGMMA("Hopper", f"m64n{N}{k}.f32.{name}.{name}")
            if core == HOPPER
            else TCGen05MMA("Blackwell", f"m64n{N}{k}.kind::{mma_kind}.f32.{name}.{name}")
        )
        a, b, c = f16_inputs(kind) if kind in F16_KINDS else make_inputs(kind)
        model_equal = hardware_equal = 0
        for case in range(CASES):
            left, right = (torch.from_numpy(x[case].copy()).view(dtype) for x in (a, b))
            simulated = simulator(left, right.T, torch.from_numpy(c[case].copy())).numpy().view(np.uint32)
            ours = np.ascontiguousarray(c[case])
            pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a[case].copy(), b[case].copy(), ours)]
            engine.mla_emulator_multiply_on(core, number, 0, N, *pointers)
            model_equal += int((ours.view(np.uint32) == simulated).sum())
            if kind in table:
                hardware_equal += int((table[kind][case] == simulated).sum())
        hardware = f", H200 {hardware_equal}" if kind in table and core == HOPPER else ""
        unit = "wgmma" if core == HOPPER else "tcgen05"
        print(f"{unit}, {kind}: of {c.size} results of mmasim equal: model {model_equal}{hardware}")


if __name__ == "__main__":
    main()
