"""Host time of a warm call, of the first call and of a build.

    python benchmarks/host.py specs/dsv3_fp8_sm90.yaml --out host.json

A warm call is one like an earlier one with `out=` given, on two short sequences: the median over many, the
device waited for between groups. A build is YAML to cubin in a process that has imported all, no cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from protocol import context, write_json

import mla_codegen as mla
from mla_codegen.runtime.nvrtc import compile_source

CALLS, GROUP = 2000, 50


def make_arguments(spec: Any) -> dict[str, Any]:
    """Two sequences of one head, through `mla.quantize`."""
    lengths = torch.tensor([0, 3, 8], device="cuda", dtype=torch.int32)
    dims = spec.dims
    q, kv, k_rope = (
        torch.randn(8, *shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((1, dims.nope + dims.rope), (1, dims.nope + dims.v), (dims.rope,))
    )
    return mla.quantize(spec, q, kv, k_rope, cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=5)


def microseconds(call: Callable[[], object]) -> float:
    """Median host time of a call after a hundred others."""
    times = []
    for number in range(CALLS + 100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if number % GROUP == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times[100:])


def measure_spec(path: Path) -> dict[str, Any]:
    """Host figures of one spec."""
    start = time.perf_counter()
    spec = mla.load_spec(path)
    plan = mla.make_plan(spec)
    compile_source(mla.render(plan), arch=plan.arch, name=spec.name)
    build_s = time.perf_counter() - start
    kernel = mla.load(path)
    kernel.warmup()
    arguments = make_arguments(spec)
    out = kernel(**arguments)
    given = {"out": out} if not isinstance(out, tuple) else {"out": out[0], "lse": out[1]}
    return {
        "spec": spec.name,
        "source_digest": kernel.plan["source_digest"][:12],
        "build_s": build_s,
        "warm_call_us": microseconds(lambda: kernel(**arguments, **given)),
        "allocating_call_us": microseconds(lambda: kernel(**arguments)),
    }


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="JSON file to write")
def main(specs: tuple[Path, ...], out: Path | None) -> None:
    """Measures every spec, one after the other."""
    rows = [measure_spec(path) for path in specs]
    for row in rows:
        click.echo(
            f"{row['spec']:20} build {row['build_s']:.2f} s  warm call {row['warm_call_us']:.1f} us  "
            f"allocating {row['allocating_call_us']:.1f} us"
        )
    if out is not None:
        write_json(out, {"context": context(), "rows": rows})


if __name__ == "__main__":
    main()
