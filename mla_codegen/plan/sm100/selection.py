"""Which configuration a shape gets: two O, then a single O, then a single O with 64 keys per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mla_codegen.arch import ArchLimits
from mla_codegen.errors import Diagnostic
from mla_codegen.plan.sm100.mla import ROPE_DEPTH, MLAConfig
from mla_codegen.plan.sm100.operands import Operands
from mla_codegen.plan.sm100.supported import support_faults

CAPPED_BLOCK_N = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A configuration that was tried, what it is in words, and why it cannot work."""

    rule: str
    config: MLAConfig
    faults: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The configuration to build and the rule that chose it; ``rejected`` were tried before.

    Where nothing works, ``config`` is the first one tried and ``faults`` says why it cannot be built.
    """

    config: MLAConfig
    rule: str
    rejected: tuple[Rejected, ...]
    faults: tuple[Diagnostic, ...]


def select_mla_prefill_config(
    *,
    operands: Operands,
    limits: ArchLimits,
    num_q_heads: int,
    group: int,
    depth: int,
    page_size: int = 0,
    v_depth: int | None = None,
    rope_depth: int = ROPE_DEPTH,
) -> Selection:
    """The first of the seed's three candidates that is supported; depths in elements."""
    two_o = MLAConfig(
        operands=operands,
        limits=limits,
        num_q_heads=num_q_heads,
        group=group,
        depth=depth,
        page_size=page_size,
        v_depth=v_depth,
        rope_depth=rope_depth,
    )
    rejected: list[Rejected] = []
    for rule, config in _candidates(two_o):
        faults = support_faults(config.fa4)
        if not faults:
            return Selection(config=config, rule=rule, rejected=tuple(rejected), faults=())
        rejected.append(Rejected(rule=rule, config=config, faults=faults))
    first = rejected[0]
    return Selection(config=first.config, rule=first.rule, rejected=tuple(rejected), faults=first.faults)


def _candidates(two_o: MLAConfig) -> Iterator[tuple[str, MLAConfig]]:
    single_o = replace(two_o, num_q=1, single_o=True)
    yield "two O, 2Q", two_o
    yield "single O", single_o
    yield f"single O, at most {CAPPED_BLOCK_N} keys", replace(single_o, bn_cap=CAPPED_BLOCK_N)
