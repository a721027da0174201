"""Writes docs/benchmarks.md from the results that are committed: python benchmarks/page.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
RUNS = {
    "prefill": "2026-11-30-h200-prefill-8192.json",
    "lengths": "2026-11-30-h200-prefill-4096-16384.json",
    "shapes": "2026-11-30-h200-shapes.json",
    "forms": "2026-11-29-h200-forms.json",
    "quantize": "2026-11-30-h200-quantize.json",
    "host": "2026-11-30-h200-host.json",
}
"""The runs that the page shows; older files in the folder are quoted by docs/notes/performance.md."""

BESIDE = {
    "8x128x2048": "1x128x2048",
    "4x16x4096": "1x128x4096",
    "1x128x512x8192": "1x128x8192",
    "32x128x100-8000": "1x128x3276",
    "1x8x16384": "1x128x16384",
}
"""Shapes that are compared with one sequence of 128 heads; the mean of the drawn lengths is 3,276."""

INTRODUCTION = """# Benchmarks

Made by `python benchmarks/page.py` from the files in `benchmarks/results/`; a test compares them. Each
file names the GPU, its driver, clocks and power limit, the versions and its command, and each row the
digest of the source that it measured. The commands run as they stand on a machine with an H200, torch and
this package.

**How it is measured** (`benchmarks/protocol.py`). Burst: the median of blocks of ten launches, each after
150 ms of idle time, so that the card is neither hot nor clocked down. Sustained: the second half of a
quarter of a second of launches back to back, where the power limit sets the clock. Times are CUDA events;
N(0, 1) inputs rotate through more than three times the L2 cache; every kernel is compared with float64
before it is timed.

**What is compared.** FLOP are 2 x 320 for every head and visible query-key pair. A share is of the rate
that matrix products alone would reach, at the rates of 8192 x 8192 x 8192 products in the same run:
r_bf16, r_fp8, and 640 / (512 / r_fp8 + 128 / r_bf16) where rope is bf16 beside e4m3. Absolute figures of
different runs, and of different cards, are not comparable; the card is at its power limit in every row
here."""

NOTES = {
    "forms": "Measured with the kernels of 29 November, before CTAs went through several heads: the "
    "shares have moved since, the costs of e4m3 forms hardly.",
    "quantize": "From 8,192 tokens on the library's copy went to a copy engine, which is slower than a "
    "kernel: there the share says nothing, and the GB/s are to be compared with the copy at 4,096 tokens.",
    "host": "The machine's processor was busy with other work; the compiler alone takes 0.8 s (e4m3) to "
    "1.4 s (bf16) of one core elsewhere.",
}
"""What a reader of a table has to know beside its figures."""


def load(folder: Path, run: str) -> dict[str, Any]:
    """One result file; its rows are in `rows`, or in named lists."""
    return json.loads((folder / RUNS[run]).read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def origin(data: Mapping[str, Any], run: str) -> str:
    """Where the figures of a table come from."""
    context = data["context"]
    gpu = f"{context['gpu']}, driver {context['driver']}, {context['power_limit']}"
    return f"`benchmarks/results/{RUNS[run]}` ({gpu}): `{context['command']}`"


def rates(data: Mapping[str, Any]) -> str:
    """The matrix-product rates of a run."""
    found = [
        f"r_{name} {data['matmul'][dtype]['burst_tflops']:.0f} burst, "
        f"{data['matmul'][dtype]['sustained_tflops']:.0f} sustained"
        for name, dtype in (("bf16", "bf16"), ("fp8", "e4m3"))
    ]
    return f"TFLOP/s of the matrix products in this run: {'; '.join(found)}."


def cell(row: Mapping[str, Any], kind: str) -> str:
    return f"{row[f'{kind}_tflops']:.0f} ({row[f'{kind}_share']:.3f})"


def prefill(data: Mapping[str, Any]) -> str:
    rows = (
        (
            f"`{row['spec']}`" if "source_digest" in row else row["spec"],
            row["shape"],
            row["mask"],
            cell(row, "burst"),
            cell(row, "sustained"),
            f"{row['error']:.1e}" if "error" in row else "",
        )
        for row in sorted(data["rows"], key=lambda row: (row["spec"], row["mask"], _size(row["shape"])))
    )
    head = ("kernel", "batch x heads x tokens", "mask", "burst (share)", "sustained (share)", "error")
    return table(head, rows)


def _size(shape: str) -> int:
    return int(shape.split("x")[-1].split("-")[-1])


def shapes(data: Mapping[str, Any]) -> str:
    """Each shape beside one sequence of 128 heads of its own length, in the same run."""
    plain = {(row["spec"], row["shape"]): row["burst_tflops"] for row in data["rows"]}
    rows = []
    for row in data["rows"]:
        beside = BESIDE.get(row["shape"])
        if beside is not None:
            ratio = row["burst_tflops"] / plain[row["spec"], beside]
            rows.append((f"`{row['spec']}`", row["shape"], cell(row, "burst"), beside, f"{ratio:.2f}"))
    return table(("kernel", "shape", "burst (share)", "beside", "ratio"), rows)


def forms(data: Mapping[str, Any]) -> str:
    rows = (
        (
            row["group"],
            row["form"],
            f"{row['block_m']} x {row['block_n']}",
            f"{row['burst_tflops']:.0f} ({row['burst_share']:.3f})",
            f"{row['cost']:.3f}",
        )
        for row in data["rows"]
    )
    return table(("group", "form", "rows x keys", "burst (share)", "time over the first of its group"), rows)


def quantize(data: Mapping[str, Any]) -> str:
    kernels = table(
        ("quantiser", "tokens", "ms", "GB/s", "copy GB/s", "share of the copy"),
        (
            (
                row["quantizer"],
                str(row["tokens"]),
                f"{row['burst_ms']:.3f}",
                f"{row['gb_per_s']:.0f}",
                f"{row['copy_gb_per_s']:.0f}",
                f"{row['share']:.3f}",
            )
            for row in data["quantizers"]
        ),
    )
    names = [key.removesuffix("_speedup") for key in data["end_to_end"][0] if key.endswith("_speedup")]
    whole = table(
        ("tokens", "bf16 kernel, ms", *(f"quantise + `{name}`, ms (bf16 over it)" for name in names)),
        (
            (
                str(row["tokens"]),
                f"{row['bf16_ms']:.3f}",
                *(f"{row[f'{name}_ms']:.3f} ({row[f'{name}_speedup']:.2f})" for name in names),
            )
            for row in data["end_to_end"]
        ),
    )
    return f"{kernels}\n\nEnd to end, causal, 128 heads:\n\n{whole}"


def host(data: Mapping[str, Any]) -> str:
    rows = (
        (
            f"`{row['spec']}`",
            f"{row['warm_call_us']:.1f}",
            f"{row['allocating_call_us']:.1f}",
            f"{row['build_s']:.2f}",
        )
        for row in data["rows"]
    )
    return table(("kernel", "warm call, us", "the same without `out=`, us", "YAML to cubin, s"), rows)


SECTIONS = {
    "prefill": ("Prefill of 8,192 tokens", prefill),
    "lengths": ("Prefill of 4,096 and 16,384 tokens", prefill),
    "shapes": ("Batches, few heads, short queries", shapes),
    "forms": ("What each form costs", forms),
    "quantize": ("Quantising", quantize),
    "host": ("Host time", host),
}


def page(folder: Path = RESULTS) -> str:
    """The text of docs/benchmarks.md."""
    parts = [INTRODUCTION]
    for run, (title, show) in SECTIONS.items():
        data = load(folder, run)
        note = f"\n\n{NOTES[run]}" if run in NOTES else ""
        note += f"\n\n{rates(data)}" if "matmul" in data else ""
        parts.append(f"## {title}\n\n{origin(data, run)}{note}\n\n{show(data)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
