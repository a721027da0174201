"""wgmma instruction shapes and the operand text of their inline PTX (PTX ISA, wgmma.mma_async, sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import MmaAtom, MmaFamily, MmaNames
from mla_codegen.plan.tiles import Tiles

SWIZZLE_MODES = {128: 1, 64: 2, 32: 3}
"""Swizzle width in bytes -> the mode bits of the matrix descriptor."""
_OPERAND_COLUMNS = 98
_A_DESCRIPTOR = "u64 a"
_A_REGISTERS = "u32 a0, u32 a1, u32 a2, u32 a3"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    kind: str
    k: int
    a_parameters: str
    transpose: str | None
    comment: str


def _families(kind: str) -> dict[str, _Family]:
    """The wrappers for one 16-bit type."""
    return {
        f"wgmma_{kind}_ss": _Family(
            kind=kind,
            k=16,
            a_parameters=_A_DESCRIPTOR,
            transpose="0, 0",
            comment=f"A 64 x 16 and B N x 16 {kind} K-major in smem",
        ),
        f"wgmma_{kind}_rs_mn": _Family(
            kind=kind,
            k=16,
            a_parameters=_A_REGISTERS,
            transpose="1",
            comment=f"A 64 x 16 {kind} in registers, B 16 x N MN-major in smem",
        ),
    }


_FAMILIES = {
    "wgmma_e4m3_ss": _Family(
        kind="e4m3",
        k=32,
        a_parameters=_A_DESCRIPTOR,
        transpose=None,
        comment="A 64 x 32 and B N x 32 e4m3 K-major in smem",
    ),
    "wgmma_e4m3_rs": _Family(
        kind="e4m3",
        k=32,
        a_parameters=_A_REGISTERS,
        transpose=None,
        comment="A 64 x 32 e4m3 in registers, B N x 32 K-major in smem",
    ),
    **_families("bf16"),
    **_families("f16"),
}


def mma_names(tiles: Tiles) -> MmaNames:
    """The wrappers of the three products: nope and V in their type, rope in its own."""
    pv = "wgmma_e4m3_rs" if tiles.fp8 else f"wgmma_{tiles.qkv}_rs_mn"
    first, later = "chunk + step", "1"
    return MmaNames(
        qk_nope=f"wgmma_{tiles.qkv}_ss",
        qk_rope=f"wgmma_{tiles.rope}_ss",
        pv=pv,
        nope_accumulates=later if tiles.rope_first else first,
        rope_accumulates=first if tiles.rope_first else later,
    )


def mma_atoms(tiles: Tiles) -> tuple[MmaAtom, ...]:
    """Every shape that the kernel issues, once."""
    names = mma_names(tiles)
    wanted = [(names.qk_nope, tiles.block_n)]
    if tiles.rope_depth:
        wanted.append((names.qk_rope, tiles.block_n))
    wanted.append((names.pv, tiles.ov_depth))
    return tuple(_atom(function, n) for function, n in dict.fromkeys(wanted))


def mma_families(atoms: tuple[MmaAtom, ...]) -> tuple[MmaFamily, ...]:
    """The wrappers that the atoms specialise."""
    return tuple(
        MmaFamily(function=name, a_parameters=_FAMILIES[name].a_parameters, comment=_FAMILIES[name].comment)
        for name in dict.fromkeys(atom.function for atom in atoms)
    )


def _atom(function: str, n: int) -> MmaAtom:
    family = _FAMILIES[function]
    count = n // 2
    in_registers = family.a_parameters == _A_REGISTERS
    a_count = 4 if in_registers else 1
    a_operands = [f"%{count + i}" for i in range(a_count)]
    b = count + a_count
    operands = _braced([f"%{i}" for i in range(count)])
    operands += _braced(a_operands) if in_registers else a_operands
    operands += [f"%{b}", "p", "1", "1", *([] if family.transpose is None else family.transpose.split(", "))]
    accumulators = _packed([f"{'' if i else ': '}MLA_D8({i})" for i in range(0, count, 8)])
    a_inputs = [f'"r"(a{i})' for i in range(4)] if in_registers else ['"l"(a)']
    return MmaAtom(
        function=function,
        n=n,
        accumulators=count,
        a_parameters=family.a_parameters,
        instruction=f"wgmma.mma_async.sync.aligned.m64n{n}k{family.k}.f32.{family.kind}.{family.kind}",
        operands=_packed(operands, blank=" "),
        predicate_operand=f"%{b + 1}",
        constraints=(*accumulators, ": " + ", ".join([*a_inputs, '"l"(b)', '"r"(accumulate)'])),
    )


def _braced(entries: list[str]) -> list[str]:
    """The entries with a bracket before the first and one behind the last."""
    return [f"{{{entries[0]}", *entries[1:-1], f"{entries[-1]}}}"]


def _packed(entries: list[str], *, blank: str = "") -> tuple[str, ...]:
    """The entries with commas between them, as many on a line as fit; a line goes on after `blank`."""
    lines = [entries[0]]
    for entry in entries[1:]:
        longer = f"{lines[-1]}, {entry}"
        if len(longer) <= _OPERAND_COLUMNS:
            lines[-1] = longer
        else:
            lines.append(entry)
    return (*(f"{line},{blank}" for line in lines[:-1]), lines[-1])
