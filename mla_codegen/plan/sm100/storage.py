"""How a map of ``MLASmemStorage`` is made up: fields in order, and the named regions inside of them."""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import Region, SeedConstant, Smem, SmemField
from mla_codegen.plan.sm100.attention import align_up

STRUCT_ALIGN_BYTES = 1024
"""Eight rows of 128 bytes: the repeat of the widest swizzle (PTX ISA, tcgen05, shared-memory layout)."""
_ELEMENT_BYTES = {"u8": 1, "float": 4, "u64": 8, "u32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """``MLASmemStorage``: the struct, its regions, and what the seed's own count of it is.

    ``smem.sizeof_bytes`` is with the struct aligned to 1,024 bytes; ``seed_sizeof_bytes`` with its natural
    alignment of 8, as the seed declares it.
    """

    layout: str
    smem: Smem
    regions: tuple[Region, ...]
    seed_sizeof_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A field to be placed: ``count`` elements of ``element``."""

    name: str
    element: str
    count: int
    content: str
    live: str


def natural_align_bytes(name: str, element: str) -> int:
    """Tiles are aligned for the widest swizzle, everything else for its element."""
    return STRUCT_ALIGN_BYTES if name in ("q_smem", "kv_smem") else _ELEMENT_BYTES[element]


def place(wanted: tuple[Wanted, ...], constants: tuple[SeedConstant, ...], limit_bytes: int) -> Smem:
    """The fields one behind the other, each at the next multiple of its element's alignment.

    A tile region whose size is no multiple of 1,024 would move what follows; the invariants say whether that
    happens, see :mod:`mla_codegen.plan.sm100.checks`.
    """
    fields: list[SmemField] = []
    end = 0
    for want in wanted:
        element_bytes = _ELEMENT_BYTES[want.element]
        offset = align_up(end, natural_align_bytes(want.name, want.element))
        fields.append(
            SmemField(
                name=want.name,
                element=want.element,
                count=want.count,
                offset_bytes=offset,
                size_bytes=want.count * element_bytes,
                align_bytes=natural_align_bytes(want.name, want.element),
                content=want.content,
                live=want.live,
            )
        )
        end = offset + want.count * element_bytes
    return Smem(
        fields=tuple(fields),
        constants=constants,
        sized_constants=tuple(item for item in constants if item.field is not None),
        last_field=fields[-1].name,
        used_bytes=end,
        sizeof_bytes=align_up(end, STRUCT_ALIGN_BYTES),
        align_bytes=STRUCT_ALIGN_BYTES,
        limit_bytes=limit_bytes,
    )


def tail_fields(num_mbars: int) -> tuple[Wanted, ...]:
    """What ends both structs."""
    whole = "the whole CTA"
    return (
        Wanted(name="mbar_base", element="u64", count=num_mbars, content="mbarriers.", live=whole),
        Wanted(name="tmem_addr", element="u32", count=1, content="Base of tensor memory.", live=whole),
    )


def field(smem: Smem, name: str) -> SmemField:
    """The field of this name."""
    return next(item for item in smem.fields if item.name == name)


def fits(storage: Storage) -> bool:
    """Whether a CTA can have this much."""
    return storage.smem.sizeof_bytes <= storage.smem.limit_bytes


def q_regions(
    *, halves: int, rows: int, nope_bytes: int, rope_bytes: int, swizzles: tuple[int, int]
) -> tuple[Region, ...]:
    """Q0 nope, Q0 rope, Q1 nope, Q1 rope: ``nope_bytes`` and ``rope_bytes`` of one half of ``rows`` rows."""
    half = nope_bytes + rope_bytes
    kinds = (("q_nope", 0, nope_bytes, swizzles[0]), ("q_rope", nope_bytes, rope_bytes, swizzles[1]))
    return tuple(
        Region(
            name=name,
            field="q_smem",
            offset_bytes=offset,
            size_bytes=size,
            count=halves,
            stride_bytes=half,
            swizzle_bytes=swizzle,
            content=f"{rows} rows of each half of Q, in columns of {swizzle} bytes",
            live="from the first full barrier of K or q1_full to the last Q*K of its half",
        )
        for name, offset, size, swizzle in kinds
        if size
    )
