"""A fault: edits of the source of a kernel, or a change of its plan; how it is built and what finds it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mla_codegen.emulator import EmulatedKernel
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.render import render
from tests.emulator.support import BOUNDS, Problem, plan_of, relative_error, run, source_of
from tests.forms import FORMS, form


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`old` becomes `new`, whatever the indentation of its lines, at the `nth` of its places (0: the one)."""

    old: str
    new: str
    nth: int = 0

    def applied(self, source: str, complaint: str) -> str:
        """The source with the edit; AssertionError where the text does not stand there as it says."""
        places = [match.span() for match in _pattern(self.old).finditer(source)]
        found = 1 < len(places) >= self.nth if self.nth else len(places) == 1
        assert found, complaint.format(f"{self.old!r} stands {len(places)} times")
        begin, end = places[max(self.nth - 1, 0)]
        return source[:begin] + self.new + source[end:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Edits of the source of `kernel`, a committed one or a form, or another swizzle of one of its maps."""

    name: str
    kernel: str
    edits: tuple[Edit, ...] = ()
    swizzle_of: str = ""
    swizzle_bytes: int = 0

    @property
    def plan(self) -> Plan:
        """The plan without the fault."""
        return form_plan(self.kernel) if self.kernel in FORMS else plan_of(self.kernel)

    def build(self) -> EmulatedKernel:
        """The kernel with the fault in it."""
        plan = self.plan
        source = form_source(self.kernel) if self.kernel in FORMS else source_of(self.kernel)
        if self.swizzle_of:
            return EmulatedKernel(_with_swizzle(plan, self.swizzle_of, self.swizzle_bytes), source)
        for change in self.edits:
            source = change.applied(source, f"{self.name}: {{}} in {self.kernel}, adapt the fault")
        return EmulatedKernel(plan, source)

    def found_as(self, kernel: EmulatedKernel, problem: Problem, *, seed: int) -> str:
        """Kind of the first hazard of a schedule, `wrong result`, or nothing at all."""
        report = run(kernel, problem, seed=seed)
        if report.hazards:
            return report.hazards[0].kind
        bound = BOUNDS[self.plan.spec["dtypes"]["qkv"]]
        return "" if relative_error(report.out, problem.expected) <= bound else "wrong result"


def drop(name: str, kernel: str, old: str, *, nth: int = 0) -> Fault:
    """`old` left out."""
    return edit(name, kernel, old, "", nth=nth)


def edit(name: str, kernel: str, old: str, new: str, *, nth: int = 0) -> Fault:
    """`new` in place of `old`."""
    return Fault(name=name, kernel=kernel, edits=(Edit(old=old, new=new, nth=nth),))


def edits(name: str, kernel: str, changes: Sequence[tuple[str, str]]) -> Fault:
    """The second text of each pair in place of the first, one after the other."""
    return Fault(name=name, kernel=kernel, edits=tuple(Edit(old=old, new=new) for old, new in changes))


@functools.cache
def form_plan(name: str) -> Plan:
    """The plan of a form."""
    return make_plan(form(name))


@functools.cache
def form_source(name: str) -> str:
    """The source of a form."""
    return render(form_plan(name))


def _pattern(text: str) -> re.Pattern[str]:
    """`text` with any indentation of its lines."""
    return re.compile(r"\s*\n\s*".join(re.escape(line.strip()) for line in text.strip().splitlines()))


def _with_swizzle(plan: Plan, name: str, swizzle_bytes: int) -> Plan:
    variant = plan.variants[0]
    maps = tuple(
        dataclasses.replace(item, swizzle_bytes=swizzle_bytes) if item.name == name else item
        for item in variant.tensor_maps
    )
    return dataclasses.replace(plan, variants=(dataclasses.replace(variant, tensor_maps=maps),))
