"""Running hand-written kernels: a source of `kernels/` with constants replaced, on plain arrays and maps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from mla_codegen.emulator.compiler import build_kernel
from mla_codegen.emulator.launcher import launcher_source
from mla_codegen.emulator.native import GlobalRange, KernelLibrary, RunConfig, RunResult
from mla_codegen.emulator.packing import pack_map
from mla_codegen.resources import primitives_folder

KERNELS = Path(__file__).parent / "kernels"


def source_with(name: str, constants: Mapping[str, str]) -> str:
    """The source with `constexpr TYPE NAME = ...;` and `using NAME = ...;` given other values.

    Common primitives, which it includes by their file's name, stand in it as they do in a generated file.
    """
    text = (KERNELS / f"{name}.cu").read_text()
    common = primitives_folder() / "common"
    text = re.sub(r'#include "(\w+\.cuh)"\n', lambda match: (common / match[1]).read_text(), text)
    for constant, value in constants.items():
        text, count = re.subn(rf"\b{constant} = [^;]*;", f"{constant} = {value};", text, count=1)
        assert count == 1, f"{name}.cu has no constant {constant}"
    return text


def tensor_map(array: np.ndarray, box: Sequence[int], swizzle_bytes: int = 0) -> bytes:
    """A map over a contiguous-last array of rank 1 to 5; `box` innermost first."""
    return pack_map(
        array.ctypes.data,
        list(reversed(array.shape)),
        list(reversed(array.strides))[1:],
        box,
        array.itemsize,
        swizzle_bytes,
    )


def run_small(
    name: str,
    source: str,
    *,
    arrays: Mapping[str, np.ndarray],
    outputs: Sequence[str] = ("out",),
    maps: Sequence[bytes] = (),
    numbers: Mapping[str, int] | None = None,
    mapped: Sequence[np.ndarray] = (),
    threads: int = 128,
    smem_bytes: int = 65536,
    launch_registers: int = 128,
    seed: int = 0,
    policy: int = 0,
) -> RunResult:
    """Runs `mla::test::kernel` in one CTA; Params hold a pointer per array, then the numbers as i32."""
    numbers = numbers or {}
    fields = [*arrays, *numbers]
    variant = SimpleNamespace(
        namespace="mla::test",
        entry="kernel",
        tensor_maps=maps,
        params=[SimpleNamespace(name=field) for field in fields],
    )
    launcher = launcher_source(SimpleNamespace(name=name, variants=[variant]))  # type: ignore[arg-type]
    library = KernelLibrary(build_kernel(name, source, launcher))
    config = RunConfig(
        threads=threads,
        smem_bytes=smem_bytes,
        launch_registers=launch_registers,
        grid=(1, 1, 1),
        seed=seed,
        policy=policy,
        checks=1,
        workers=1,
        stack_bytes=262144,
    )
    ranges = [
        GlobalRange(
            address=array.ctypes.data, bytes=array.nbytes, marks=0, writable=key in outputs, index=index
        )
        for index, (key, array) in enumerate(
            {**arrays, **{f"map {i}": a for i, a in enumerate(mapped)}}.items()
        )
    ]
    slots = [array.ctypes.data for array in arrays.values()]
    slots += [value & 0xFFFFFFFF for value in numbers.values()]
    return library.run(0, config, ranges, b"".join(maps), slots)


def aligned(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """A contiguous copy whose memory starts at a multiple of `alignment`."""
    raw = np.empty(array.nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
