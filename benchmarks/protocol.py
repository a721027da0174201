"""How the benchmarks measure: launches after idle time, sustained runs, rooflines and the context of the run.

* burst: median of the mean times of blocks of `BURST_LAUNCHES` launches, each block after `IDLE_S` seconds of
  idle, so that the card is neither hot nor clocked down. Times are CUDA events.
* sustained: mean time of the second half of about `SUSTAINED_S` seconds of launches back to back, where the
  power limit sets the clock.
* Inputs rotate through as many copies as it takes to exceed three times the L2 cache.
* Figures of different runs are not comparable (clocks, temperature, power): quote ratios to the
  matrix-product rates that the same run measured.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mla_codegen.tensors import tensor_facts

IDLE_S = 0.15
BURST_BLOCKS = 4
BURST_LAUNCHES = 10
SUSTAINED_S = 0.25
L2_MULTIPLE = 3
MATMUL_SIZE = 8192

Launch = Callable[[], Any]


def rotation(bytes_per_set: int) -> int:
    """How many input sets exceed three times the L2 cache; at least one."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, -(-L2_MULTIPLE * l2_bytes // max(bytes_per_set, 1)))


def measure(launches: Sequence[Launch]) -> dict[str, float]:
    """Milliseconds per launch, burst and sustained, of launches taken in rotation."""
    times = measure_burst(launches)
    burst = times["burst_ms"]
    count = max(4, int(SUSTAINED_S * 1e3 / burst))
    time.sleep(IDLE_S)
    _enqueue(launches, count // 2)
    sustained = _block(launches, count - count // 2, idle_s=0.0)
    return {**times, "sustained_ms": sustained}


def measure_burst(launches: Sequence[Launch]) -> dict[str, float]:
    """Milliseconds per launch, burst, of launches taken in rotation."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    blocks = [_block(launches, BURST_LAUNCHES, idle_s=IDLE_S) for _ in range(BURST_BLOCKS)]
    burst = statistics.median(blocks)
    return {"burst_ms": burst, "burst_spread": (max(blocks) - min(blocks)) / burst}


def _block(launches: Sequence[Launch], count: int, *, idle_s: float) -> float:
    if idle_s:
        torch.cuda.synchronize()
        time.sleep(idle_s)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    _enqueue(launches, count)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count


def _enqueue(launches: Sequence[Launch], count: int) -> None:
    for index in range(count):
        launches[index % len(launches)]()


def matmul_rates() -> dict[str, dict[str, float]]:
    """TFLOP/s of 8192 x 8192 x 8192 products on random data, bf16 and e4m3: r_bf16 and r_fp8 of this run."""
    n = MATMUL_SIZE
    flop = 2.0 * n**3
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    rates = {"bf16": _rates(measure([lambda: torch.mm(a, b.t(), out=out)]), flop)}
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda", dtype=torch.float32)

    def product() -> torch.Tensor:
        return torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return {**rates, "e4m3": _rates(measure([product]), flop)}


def _rates(times: dict[str, float], flop: float) -> dict[str, float]:
    return {
        "burst_tflops": flop / times["burst_ms"] * 1e-9,
        "sustained_tflops": flop / times["sustained_ms"] * 1e-9,
    }


def rates(times: dict[str, float], flop: float) -> dict[str, float]:
    """`times` with TFLOP/s beside them."""
    return {**times, **_rates(times, flop)}


def product_depths(spec: Any) -> dict[str, int]:
    """Elements that a query-key pair multiplies, by the dtype of the product: nope and V, and rope."""
    facts = tensor_facts(spec)
    depths = {facts.qkv_dtype: facts.nope + facts.v}
    if facts.rope:
        depths[facts.rope_dtype] = depths.get(facts.rope_dtype, 0) + facts.rope
    return depths


def roofline(depths: Mapping[str, int], matmul: Mapping[str, Mapping[str, float]], kind: str) -> float:
    """TFLOP/s of the matrix products alone at the rates of this run; `kind` is burst or sustained.

    Of 640 = 2 * (192 + 128) FLOP per head and visible pair, a kernel with e4m3 nope and V and bf16 rope does
    512 at the e4m3 rate and 128 at the bf16 rate.
    """
    rate = {dtype: matmul["e4m3" if dtype == "e4m3" else "bf16"][f"{kind}_tflops"] for dtype in depths}
    return sum(depths.values()) / sum(depth / rate[dtype] for dtype, depth in depths.items())


def context() -> dict[str, Any]:
    """GPU, driver, clocks, versions and the command of this run."""
    query = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    values = [value.strip() for value in answer.stdout.splitlines()[0].split(",")]
    names = ("gpu", "driver", "max_sm_clock", "max_memory_clock", "power_limit")
    return {
        **dict(zip(names, values, strict=True)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n")
