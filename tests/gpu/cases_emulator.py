"""What the GPU computes and what the emulator computes, for kernels whose output is f32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import mla_codegen as mla
from tests.gpu import batches, harness
from tests.gpu.checks import Case, Checks, run_cases, spec_path
from tests.gpu.harness import Subject

SHARE_OF_LARGEST = {"e4m3": 5e-3, "bf16": 1e-3, "f16": 1e-3}
"""Largest difference, as a share of the largest output.

The products are modelled bit by bit. What is left is the last bit of ex2 and of the division; rarely it moves
a P to the next number of its dtype, 1/16 of it in e4m3.
"""

_CODES = {1: np.uint8, 2: np.uint16}


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    m, n = under.block_m, under.block_n
    problems: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        "one tile": ([m], [n]),
        "ragged": ([1, 130, 0, 65], [300, 2 * n + 1, 7, n - 1]),
        "many tiles of keys": ([70], [9 * n + 5]),
        "more queries than keys": ([m + 9, 40], [33, 1]),
        "rows without keys": ([5, m], [0, 64]),
    }
    cases: dict[str, Case] = {
        name: functools.partial(_agrees, under, name, q_lens, kv_lens)
        for name, (q_lens, kv_lens) in problems.items()
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _agrees(under: Subject, name: str, q_lens: Sequence[int], kv_lens: Sequence[int], checks: Checks) -> None:
    arguments = harness.problem(under, f"emulator {name}", q_lens, kv_lens)
    on_gpu = under.kernel(**arguments).float().cpu().numpy()
    emulated = mla.load(spec_path(under.name), backend="emulator")
    report = emulated.run(**{key: _on_host(value) for key, value in arguments.items()}, schedules=3)
    checks.equal("hazards", [hazard.message for hazard in report.hazards], [])
    difference = np.abs(on_gpu - report.out.astype(np.float32))
    where = f"at {np.unravel_index(np.argmax(difference), difference.shape)}"
    largest = float(np.abs(on_gpu).max())
    checks.at_least("largest output", largest, 0.01)
    allowed = SHARE_OF_LARGEST[under.facts.qkv_dtype] * largest
    checks.at_most("largest difference", float(difference.max()), allowed, where)


def _on_host(value: Any) -> Any:
    """A tensor as NumPy codes or numbers; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype in (torch.float32, torch.int32):
        return value.cpu().numpy()
    codes = batches.bits(value).cpu().numpy()
    return codes.view(_CODES[codes.itemsize])
