"""The PTX that the device primitives wrap, against how CCCL spells the same instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.emulator.hardware.ptx_opcodes import FAMILIES, instructions
from tests.emulator.support import GENERATED

DEVICE = GENERATED.parent / "mla_codegen" / "primitives" / "device"
TABLE = Path(__file__).parent / "hardware" / "ptx_opcodes.json"
ALIASES = ((".shared.", ".shared::cta."), (".release.cta.", "."), (".acquire.cta.", "."))
"""What the PTX ISA takes for the same: `.shared` is the CTA's; release, acquire and cta are defaults."""


def plain(name: str) -> str:
    for spelled, same in ALIASES:
        name = name.replace(spelled, same)
    return name


def wrapped(text: str) -> set[tuple[str, int]]:
    return {(plain(name), count) for name, count in instructions(text) if name.startswith(FAMILIES)}


def known() -> set[tuple[str, int]]:
    return {(plain(name), count) for name, count in json.loads(TABLE.read_text(encoding="utf-8"))}


def test_every_instruction_is_spelled_as_cccl_spells_it() -> None:
    found = {path.name: wrapped(path.read_text(encoding="utf-8")) for path in sorted(DEVICE.glob("*.cuh"))}
    wrong = {name: sorted(names - known()) for name, names in found.items() if names - known()}
    assert not wrong
    families = {
        family for family in FAMILIES for names in found.values() for n, _ in names if n.startswith(family)
    }
    assert families == set(FAMILIES)


@pytest.mark.parametrize(
    "code",
    [
        "mbarrier.arrive.expect_tx.shared::cta.b64 [%0], %1;",
        "fence.proxy.async.shared;",
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%0];",
        "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, p;",
    ],
)
def test_other_spellings_are_not_known(code: str) -> None:
    names = wrapped(f'asm volatile("{code}"::);')
    assert names
    assert not names <= known()
