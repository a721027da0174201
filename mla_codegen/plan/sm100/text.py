"""The plan comment of a Blackwell kernel: what its tables have beside those of every kernel."""

from __future__ import annotations

from mla_codegen.plan.model import Region, TmemMap
from mla_codegen.plan.sm100.body import Body
from mla_codegen.plan.text import columns


def title(body: Body) -> str:
    """What a body is, in one line."""
    return f"{body.config.block_m} query rows in two halves, which see the same blocks of keys"


def region_table(regions: tuple[Region, ...]) -> tuple[str, ...]:
    """Offset, bytes and content of each tile."""
    rows = [("offset", "bytes", "stride", "tile", "what")]
    for region in regions:
        over = f"over {region.alias_of}: " if region.alias_of else ""
        size = f"{region.count} x {region.size_bytes}"
        what = f"{over}{region.content}"
        rows.append((str(region.offset_bytes), size, str(region.stride_bytes), region.name, what))
    return columns(rows)


def tmem_table(tmem: TmemMap) -> tuple[str, ...]:
    """Columns, type and content of each region."""
    rows = [("columns", "region", "type", "what")]
    for region in tmem.regions:
        last = region.first_col + region.cols - 1
        over = f"over {region.alias_of}: " if region.alias_of else ""
        rows.append((f"{region.first_col}-{last}", region.name, region.dtype, f"{over}{region.content}"))
    return columns(rows)


def schedule(body: Body) -> tuple[str, ...]:
    """A column per role, rows in time."""
    rows = [
        ("load", "mma", "softmax 0 / 1", "correction"),
        ("Q0, K(n); Q1", "S0 = Q0*K(n)", "", "first O: nothing to rescale"),
        ("V(n)", "S1 = Q1*K(n)", "0: S0 -> P0(n)", ""),
        ("K(n-1)", "O0 = P0(n)*V(n)", "1: S1 -> P1(n)", ""),
        ("", "S0 = Q0*K(n-1)", "0: S0, factor -> P0(n-1)", "rescale O0"),
        ("V(n-1)", "O1 = P1(n)*V(n)", "", ""),
        ("", "S1 = Q1*K(n-1)", "1: S1, factor -> P1(n-1)", "rescale O1"),
        ("...", "O0 += P0(n-1)*V(n-1)", "", ""),
        ("", "...", "O / row sum -> out", ""),
    ]
    return (
        *columns(rows),
        "The tail warps clear V(n) beyond the end of the sequence before its first product.",
        "P is handed over in two parts; products of a side start when the first one is written.",
    )
