"""What a user reads where ``MLASmemStorage`` does not fit: the terms of the sum, and the ways to less."""

from __future__ import annotations

from dataclasses import replace

from mla_codegen.errors import Diagnostic
from mla_codegen.plan.barriers import num_mbars
from mla_codegen.plan.model import Smem
from mla_codegen.plan.registers import two_consumers
from mla_codegen.plan.smem import fits, plan_smem
from mla_codegen.plan.tiles import SMALLEST_BLOCK_N, WGMMA_ROWS, Tiles

_SHRINKABLE = (
    ("pipeline.kv_stages", "k_stages"),
    ("pipeline.v_stages", "v_stages"),
    ("pipeline.v_raw_stages", "v_raw_stages"),
    ("tile.block_n", "block_n"),
)
"""Spec field and attribute of Tiles of what takes less memory when it is smaller."""


def smem_faults(smem: Smem, tiles: Tiles, *, arch: str, asked: tuple[str, ...]) -> tuple[Diagnostic, ...]:
    """A diagnostic with the terms of the sum where the map does not fit.

    ``asked`` are the fields that the user set, and ``tiles`` what remains once ``auto`` has given way as far
    as it may; each change that the help names is then enough by itself.
    """
    if fits(smem):
        return ()
    ways = _ways_to_less(smem, tiles, asked)
    auto_fits = bool(asked) and _fits_in(smem, _smallest(tiles))
    located = [field for field, _ in ways if field in asked] or list(asked)
    fields = filter(None, (", ".join(asked[:-1]), *asked[-1:]))
    to_auto = f"leave {' and '.join(fields)} to auto" if auto_fits else "take smaller dims"
    texts = " or ".join(text for _, text in ways)
    return (
        Diagnostic(
            code="smem-overflow",
            field=located[0] if located else "dims",
            message=f"needs {smem.sizeof_bytes} B of shared memory, {arch} offers {smem.limit_bytes} B",
            notes=(_terms(smem, tiles), _sizes(tiles)),
            help=f"set {texts}, or {to_auto}" if ways else to_auto,
        ),
    )


def _terms(smem: Smem, tiles: Tiles) -> str:
    """The fields as terms whose sum is what is needed."""
    times = {
        "kv_smem": tiles.k_stages,
        "v_smem": tiles.v_stages,
        "v_raw_smem": tiles.v_raw_stages,
        "k_scale_smem": tiles.k_stages,
        "v_scale_smem": tiles.k_stages,
        "mbar_base": smem.fields[-1].count,
    }
    terms = []
    for field in smem.fields:
        count = times.get(field.name, 1)
        product = f"{count} x {field.size_bytes // count}" if count > 1 else str(field.size_bytes)
        terms.append(f"{field.name} {product}")
    padding = smem.sizeof_bytes - sum(field.size_bytes for field in smem.fields)
    return " + ".join([*terms, f"padding {padding}"])


def _sizes(tiles: Tiles) -> str:
    raw = f", v_raw_stages {tiles.v_raw_stages}" if tiles.transposes_v else ""
    return (
        f"block_m {tiles.block_m}, block_n {tiles.block_n}, kv_stages {tiles.k_stages}, "
        f"v_stages {tiles.v_stages}{raw}"
    )


def _ways_to_less(smem: Smem, tiles: Tiles, asked: tuple[str, ...]) -> list[tuple[str, str]]:
    """Fields with the change of each that is enough by itself; the largest that fits.

    Of the fields that decide about sizes only those that the user set: ``auto`` has tried the others.
    """
    ways = []
    for field, attribute in _SHRINKABLE:
        if field not in asked:
            continue
        step, least = (tiles.block_n_step, SMALLEST_BLOCK_N) if attribute == "block_n" else (1, 1)
        for value in range(getattr(tiles, attribute) - step, least - 1, -step):
            if _fits_in(smem, replace(tiles, **{attribute: value})):
                ways.append((field, f"{field}: {value}"))
                break
    fewer = replace(tiles, consumers=2, block_m=2 * WGMMA_ROWS)
    rows = [field for field in ("tile.block_m", "schedule.consumers") if field in asked]
    if rows and tiles.consumers > 2 and _fits_in(smem, fewer):
        ways.append((rows[0], two_consumers(asked)))
    return ways


def _fits_in(smem: Smem, tiles: Tiles) -> bool:
    """Whether these tiles would fit where those of ``smem`` do not."""
    return fits(plan_smem(tiles, mbarriers=num_mbars(tiles), limit_bytes=smem.limit_bytes))


def _smallest(tiles: Tiles) -> Tiles:
    """The last that ``auto`` tries."""
    return replace(
        tiles,
        consumers=2,
        block_m=2 * WGMMA_ROWS,
        block_n=SMALLEST_BLOCK_N,
        k_stages=1,
        v_stages=1,
        v_raw_stages=1 if tiles.transposes_v else 0,
    )
