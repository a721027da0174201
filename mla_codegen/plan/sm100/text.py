"""The plan comment of a Blackwell kernel: what its tables have beside those of every kernel."""

from __future__ import annotations

from mla_codegen.plan.model import Region, TmemMap
from mla_codegen.plan.sm100.body import Body
from mla_codegen.plan.sm100.names import body_name
from mla_codegen.plan.text import columns


def title(body: Body) -> str:
    """What a body is, in one line."""
    rows = f"{body.config.block_m} query rows"
    if body.config.single_o:
        return f"{rows}, one O, and two S that the blocks of keys use in turn"
    if body.config.num_q == 2:
        return f"{rows} in two halves, which see the same blocks of keys"
    return f"{rows}, whose blocks of keys two warpgroups take in turn"


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
    rows = _SCHEDULES[body_name(body)]
    return (
        *columns(rows),
        "The tail warps clear V(n) beyond the end of the sequence before its first product.",
        "P is handed over in two parts; products of a side start when the first one is written.",
    )


_SCHEDULES = {
    "two_q": [
        ("load", "mma", "softmax 0 / 1", "correction"),
        ("Q0, K(n); Q1", "S0 = Q0*K(n)", "", "first O: nothing to rescale"),
        ("V(n)", "S1 = Q1*K(n)", "0: S0 -> P0(n)", ""),
        ("K(n-1)", "O0 = P0(n)*V(n)", "1: S1 -> P1(n)", ""),
        ("", "S0 = Q0*K(n-1)", "0: S0, factor -> P0(n-1)", "rescale O0"),
        ("V(n-1)", "O1 = P1(n)*V(n)", "", ""),
        ("", "S1 = Q1*K(n-1)", "1: S1, factor -> P1(n-1)", "rescale O1"),
        ("...", "O0 += P0(n-1)*V(n-1)", "", ""),
        ("", "...", "O / row sum -> out", ""),
    ],
    "one_q": [
        ("load", "mma", "softmax 0 / 1", "correction"),
        ("Q, K(n)", "S0 = Q*K(n)", "", "first O: nothing to rescale"),
        ("K(n-1)", "S1 = Q*K(n-1)", "0: S0 -> P0(n)", ""),
        ("V(n)", "O0 = P0(n)*V(n)", "1: S1 -> P1(n-1)", ""),
        ("V(n-1); K(n-2)", "S0 = Q*K(n-2)", "0: S0, factor -> P0(n-2)", "rescale O0"),
        ("K(n-3)", "O1 = P1(n-1)*V(n-1)", "", ""),
        ("V(n-2)", "S1 = Q*K(n-3)", "1: S1, factor -> P1(n-3)", "rescale O1"),
        ("...", "O0 += P0(n-2)*V(n-2)", "", ""),
        ("", "...", "exchange sums; merge O0, O1 -> out", ""),
    ],
    "single_o": [
        ("load", "mma", "softmax", "correction"),
        ("Q, K(n)", "S0 = Q*K(n)", "", "first O: nothing to rescale"),
        ("V(n); K(n-1)", "S1 = Q*K(n-1)", "S0 -> P0(n)", ""),
        ("V(n-1)", "O = P0(n)*V(n)", "S1, factor -> P1(n-1)", "rescale O"),
        ("K(n-2)", "S0 = Q*K(n-2)", "", ""),
        ("V(n-2)", "O += P1(n-1)*V(n-1)", "S0, factor -> P0(n-2)", "rescale O"),
        ("...", "...", "O / row sum -> out", ""),
    ],
}
"""A column per role, rows in time; n is the last block."""
