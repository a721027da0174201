"""A fault of `tensor_chain.cu`: edits of its source, and the kinds of hazard that find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.emulator.fault import Edit
from tests.emulator.tensor_chain import BOUND, chain_problem, chain_source, run_chain


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFault:
    """Edits of the bf16 or the e4m3 kernel; the first hazard of a schedule is of one of the `kinds`."""

    name: str
    kinds: tuple[str, ...]
    edits: tuple[Edit, ...]
    fp8: bool = False
    rows: int = 128

    def source(self) -> str:
        """The kernel with the fault in it."""
        text = chain_source(fp8=self.fp8)
        for change in self.edits:
            text = change.applied(text, f"{self.name}: {{}} in tensor_chain.cu, adapt the fault")
        return text

    def found_as(self, source: str, *, seed: int) -> str:
        """Kind of the first hazard of a schedule, `wrong result`, or nothing at all."""
        result, error = run_chain(source, chain_problem(fp8=self.fp8), seed=seed, rows=self.rows)
        if result.hazards:
            return result.hazards[0].kind
        return "wrong result" if self.rows and error > BOUND else ""


def edits(
    name: str, kinds: str, changes: Sequence[tuple[str, str]], *, fp8: bool = False, rows: int = 128
) -> TensorFault:
    """The second text of each pair in place of the first, one after the other."""
    made = tuple(Edit(old=old, new=new) for old, new in changes)
    return TensorFault(name=name, kinds=tuple(kinds.split(" or ")), edits=made, fp8=fp8, rows=rows)


def edit(name: str, kinds: str, old: str, new: str, *, fp8: bool = False) -> TensorFault:
    """`new` in place of `old`."""
    return edits(name, kinds, [(old, new)], fp8=fp8)


def drop(name: str, kinds: str, old: str) -> TensorFault:
    """`old` left out."""
    return edits(name, kinds, [(old, "")])
