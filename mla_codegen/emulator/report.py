"""What a run under the emulator found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mla_codegen.errors import MlaCodegenError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One fault at one pair of source lines, in the first CTA that showed it."""

    kind: str
    """`race`, `uninitialised`, `proxy-fence`, `barrier`, `transaction`, `deadlock`, `registers`, `bounds`,
    `alignment`, `wgmma`, `tcgen05`, `tcgen05-wait`, `tcgen05-fence`, `tmem`, `divergence`, `at-exit`,
    `schedule` or `internal`."""
    message: str
    """One sentence with the names of the plan."""
    cta: tuple[int, int, int]
    role: str
    """Role, warp and lane; empty where no thread was running."""
    line: int
    """Line of the generated file, 0 where there is none."""
    other_line: int
    """Line of the other access or operation, 0 where there is none."""
    count: int
    """How often it was seen in this schedule."""
    seed: int
    policy: str

    def render(self, source_name: str) -> str:
        """The hazard as one line of text, in the form of a compiler's diagnostic."""
        place = f"{source_name}:{self.line}: " if self.line else f"{source_name}: "
        thread = f", {self.role}" if self.role else ""
        where = f"CTA ({', '.join(str(index) for index in self.cta)}){thread}"
        times = f", {self.count} times" if self.count > 1 else ""
        schedule = f"seed {self.seed}, policy {self.policy}"
        return f"{place}hazard[{self.kind}]: {self.message} [{where}{times}; {schedule}]"

    def to_mapping(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "kind": self.kind,
            "message": self.message,
            "cta": list(self.cta),
            "role": self.role,
            "line": self.line,
            "other_line": self.other_line,
            "count": self.count,
            "seed": self.seed,
            "policy": self.policy,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationReport:
    """Results and findings of all schedules of a run; the outputs are those of the last one."""

    source_name: str
    out: np.ndarray
    lse: np.ndarray | None
    hazards: tuple[Hazard, ...]
    schedules: tuple[tuple[int, str], ...]
    """Seed and policy of each schedule."""
    counts: Mapping[str, int]
    """Totals over all schedules: ctas, switches, tma_copies, tma_bytes, wgmma, tcgen05, macs, mbarrier_waits,
    barrier_arrivals."""
    unwritten_elements: int
    """Elements of `out` that no thread wrote in the last schedule."""
    seconds: float
    """Wall time of the runs, without compiling."""

    @property
    def hazard_count(self) -> int:
        """Distinct faults over all schedules."""
        return len(self.hazards)

    def render(self) -> str:
        """All hazards as text, one a line, or a sentence where there are none; then what was not written."""
        lines = [hazard.render(self.source_name) for hazard in self.hazards]
        if not lines:
            lines = [f"{self.source_name}: no hazard in {len(self.schedules)} schedules"]
        if self.unwritten_elements:
            lines.append(f"{self.unwritten_elements} elements of out were not written")
        return "\n".join(lines)


class EmulationError(MlaCodegenError):
    """A call of an emulated kernel that met hazards; its text names each."""


def outputs_differ(used: list[tuple[int, str]]) -> Hazard:
    """The hazard of a schedule, the last one used, whose outputs are not those of the first."""
    (first_seed, first_policy), (seed, policy) = used[0], used[-1]
    return Hazard(
        kind="schedule",
        message=f"the outputs differ in bits from those of seed {first_seed}, policy {first_policy}",
        cta=(0, 0, 0),
        role="",
        line=0,
        other_line=0,
        count=1,
        seed=seed,
        policy=policy,
    )
