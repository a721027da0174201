"""What a cubin says about its kernels, read as the ELF file that it is, without any CUDA tool.

The attribute numbers are those that cuobjdump -elf prints: EIATTR_REGCOUNT and so on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mla_codegen.errors import CompileError

_EIATTR_PARAM_CBANK = 0x0A
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_KPARAM_INFO = 0x17
_EIATTR_REGCOUNT = 0x2F
_FORMAT_SIZED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinParameter:
    """A kernel parameter; `address` is that in the constant bank, whose alignment is the real one."""

    address: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinEntry:
    """A kernel of a cubin."""

    name: str
    sm: int
    registers: int
    frame_bytes: int
    parameters: tuple[CubinParameter, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    start: int
    size: int
    link: int


def read_cubin(cubin: bytes) -> Mapping[str, CubinEntry]:
    """The kernels of a cubin by name; CompileError where the bytes are no 64-bit ELF file."""
    try:
        return MappingProxyType({entry.name: entry for entry in _entries(cubin)})
    except (struct.error, IndexError, ValueError) as error:
        message = f"the cubin of {len(cubin)} B cannot be read as a CUDA ELF file ({error})"
        raise CompileError.single("cubin-damaged", message, help="clear the cache and build again") from error


def _entries(cubin: bytes) -> Iterator[CubinEntry]:
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF header")
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    sections = _sections(cubin)
    by_name = {section.name: section for section in sections}
    shared = _whole_file_attributes(cubin, sections, by_name)
    for section in sections:
        if not section.name.startswith(".text."):
            continue
        name = section.name.removeprefix(".text.")
        info = by_name.get(f".nv.info.{name}")
        if info is None or f".nv.constant0.{name}" not in by_name:
            continue
        yield CubinEntry(
            name=name,
            sm=(flags >> 8) & 0xFF,
            registers=shared[_EIATTR_REGCOUNT].get(name, 0),
            frame_bytes=shared[_EIATTR_FRAME_SIZE].get(name, 0),
            parameters=_parameters(cubin, info),
        )


def _sections(cubin: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + index * entry_size) for index in range(count)]
    names = headers[names_index][4]
    return [
        _Section(_text(cubin, names + header[0]), start=header[4], size=header[5], link=header[6])
        for header in headers
    ]


def _whole_file_attributes(
    cubin: bytes, sections: list[_Section], by_name: Mapping[str, _Section]
) -> dict[int, dict[str, int]]:
    """Register count and frame size per function, from .nv.info."""
    symbols = by_name[".symtab"]
    strings = sections[symbols.link].start
    values: dict[int, dict[str, int]] = {_EIATTR_REGCOUNT: {}, _EIATTR_FRAME_SIZE: {}}
    for attribute, words in _attributes(cubin, by_name[".nv.info"]):
        if attribute in values:
            (name_offset,) = struct.unpack_from("<I", cubin, symbols.start + words[0] * 24)
            values[attribute][_text(cubin, strings + name_offset)] = words[1]
    return values


def _parameters(cubin: bytes, info: _Section) -> tuple[CubinParameter, ...]:
    base = 0
    found = []
    for attribute, words in _attributes(cubin, info):
        if attribute == _EIATTR_PARAM_CBANK:
            base = words[1] & 0xFFFF
        if attribute == _EIATTR_KPARAM_INFO:
            found.append((words[1] & 0xFFFF, words[1] >> 16, words[2] >> 18))
    return tuple(CubinParameter(address=base + offset, size=size) for _, offset, size in sorted(found))


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, tuple[int, ...]]]:
    position, end = section.start, section.start + section.size
    while position < end:
        kind, attribute, value = struct.unpack_from("<BBH", cubin, position)
        position += 4
        if kind == _FORMAT_SIZED:
            yield attribute, struct.unpack_from(f"<{value // 4}I", cubin, position)
            position += value


def _text(cubin: bytes, start: int) -> str:
    return cubin[start : cubin.index(b"\0", start)].decode()
