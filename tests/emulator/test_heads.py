"""Several heads a CTA: no hazard whatever their number, and the very bits of one head a CTA."""

from __future__ import annotations

from typing import Any

import pytest

from mla_codegen.emulator import EmulationReport
from tests.emulator.fault import Edit
from tests.emulator.heads import KERNELS, kernel_of, plan_of, problem_of, source_of, spec_of
from tests.pairs import faults_of

LENGTHS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    # Tails, no query, no key, one block only, rows of whole warpgroups that see nothing (causal: 70 keys and
    # 150 queries hide the first 80 rows), and a block that ends with the sequence.
    "mixed": ((150, 0, 33, 1, 64), (70, 40, 0, 17, 192)),
    "several blocks": ((40, 200), (301, 517)),
}
RUNS = [1, 2, 3, 4, 6]
"""Heads of a problem with groups of one; 6 are a run of 4 and one of 2."""


def heads_of(name: str, heads: int) -> int:
    """As many heads as the spec takes."""
    taken = spec_of(name).heads
    return heads * taken.group if taken.q == "any" else taken.q


def ran(name: str, arguments: dict[str, Any], run_heads: int, seed: int, source: str = "") -> EmulationReport:
    policy = ("late", "early", "random")[seed % 3]
    return kernel_of(name, run_heads, source or None).run(**arguments, seed=seed, policy=policy)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", KERNELS)
def test_many_heads_give_the_bits_of_one(name: str, lengths: str) -> None:
    for number, heads in enumerate(RUNS if lengths == "mixed" else [3]):
        arguments = problem_of(name, *LENGTHS[lengths], heads_of(name, heads), seed=number)
        alone = ran(name, arguments, 1, seed=number)
        assert not alone.hazards, alone.render()
        together = ran(name, arguments, 4, seed=number)
        assert not together.hazards, together.render()
        assert together.unwritten_elements == alone.unwritten_elements  # tokens behind the last sequence
        assert together.out.tobytes() == alone.out.tobytes()
        assert (together.lse is None) is (alone.lse is None)
        if together.lse is not None:
            assert together.lse.tobytes() == alone.lse.tobytes()
        assert together.counts["ctas"] < alone.counts["ctas"] or heads_of(name, heads) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_runs_of_heads_keep_the_contract_under_many_schedules(name: str) -> None:
    arguments = problem_of(name, (150, 70), (260, 90), heads_of(name, 2), seed=11)
    for seed in range(9):
        report = ran(name, arguments, 4, seed)
        assert not report.hazards, report.render()
    faults, errors = faults_of(plan_of(name), arguments, report.out, report.lse)
    assert not faults, (faults, errors)


_RELEASE_Q = "if (block == 0) release_slot(q_empty(self.index), self.lane);\n"
_RELEASE_K = "release_slot(k_empty(k_stage), self.lane);\n"
_TAIL_WAIT = (
    "for (u32 consumer = 0; consumer < kNumConsumers; ++consumer) mbarrier_wait(q_empty(consumer), q.phase);"
)
_PASS = "if (block > 0 || !is_last || !self.last_head) {"
# Fault, kernel, and each text with what stands in its place.
FAULTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "Q fetched before it is free": ("fp8", [("mbarrier_wait(q_empty(consumer), q.phase);\n", "")]),
    "Q fetched before it is free, bf16": (
        "bf16",
        [("mbarrier_wait(q_empty(consumer), q.phase);\nif (issues_copies)", "if (issues_copies)")],
    ),
    "Q never released": ("fp8", [(_RELEASE_Q, "")]),
    "Q of a warpgroup without rows never released": (
        "fp8",
        [("release_slot(q_empty(consumer), lane);\n", "")],
    ),
    "Q released before the last product is complete": (
        "fp8",
        [
            (_RELEASE_Q, ""),
            ("wgmma_wait_group<0>(o, s);\n", _RELEASE_Q + "wgmma_wait_group<0>(o, s);\n"),
        ],
    ),
    "Q released before the rope product": (
        "raw_k_token",
        [
            ("add_rope(s, self.q, k_stage);\n", _RELEASE_Q + "add_rope(s, self.q, k_stage);\n"),
            (_RELEASE_K + _RELEASE_Q, _RELEASE_K),
        ],
    ),
    "K released twice": ("fp8", [(_RELEASE_K, _RELEASE_K * 2)]),
    "turn not handed to the next head": ("fp8", [(_PASS, "if (block > 0 || !is_last) {")]),
    "first turn given again at every head": ("bf16", [("if (done == 0 && consumer + 1", "if (consumer + 1")]),
    "tail cleared before the one before was seen": ("bf16", [(_TAIL_WAIT, "")]),
    "tail cleared in the slot of the first head": ("bf16", [("skip_blocks(v, tile.num_blocks);", "")]),
    "work tile read before it is written": (
        "fp8",
        [("if (thread_index() == 0) write_work_tile(tile);\ncta_sync();", "cta_sync();\n"
          "if (thread_index() == 0) write_work_tile(tile);")],
    ),
    "Q of the second head waited for with the phase of the first": (
        "fp8",
        [("const u32 q_phase = (u32)done % 2;", "const u32 q_phase = 0;")],
    ),
    "phase of free Q kept": ("fp8", [("q.advance();\n", "")]),
    "P of the step before overwritten": (
        "bf16",
        [("kv_step_lazy(s, o, p, next_p, rows,", "kv_step_lazy(s, o, p, p, rows,")],
    ),
    "P of another step multiplied": (
        "bf16",
        [("kv_step_lazy(s, o, next_p, p, rows,", "kv_step_lazy(s, o, p, next_p, rows,")],
    ),
    "exact step before O is complete": (
        "bf16",
        [("wgmma_wait_group<0>(o);\nonline_softmax(s, o, next_p,", "online_softmax(s, o, next_p,")],
    ),
    "V slot of the last block kept": (
        "fp8",
        [("release_slot(v_empty(v.stage), lane);\nv.advance();\nadd_master", "v.advance();\nadd_master")],
    ),
}  # fmt: skip
SEEDS = range(9)


def found_as(kernel: str, source: str, seed: int) -> str:
    """Kind of the first hazard, `wrong result` where the bits are others, or nothing."""
    # The rows of the last warpgroup end before the tile does; scores that rise make exact steps.
    arguments = problem_of(kernel, (100, 190), (460, 300), heads_of(kernel, 3), seed=3)
    arguments["softmax_scale"] = 1.0
    right = ran(kernel, arguments, 4, 0)
    report = ran(kernel, arguments, 4, seed, source)
    if report.hazards:
        return report.hazards[0].kind
    return "" if report.out.tobytes() == right.out.tobytes() else "wrong result"


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_runs_of_heads_are_found(fault: str) -> None:
    kernel, changes = FAULTS[fault]
    source = source_of(kernel)
    for old, new in changes:
        source = Edit(old=old, new=new).applied(source, f"{fault}: {{}}")
    found = {seed: found_as(kernel, source, seed) for seed in SEEDS}
    assert all(found.values()), (
        f"not found under the seeds {[seed for seed, kind in found.items() if not kind]}"
    )


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in FAULTS.values()}))
def test_the_kernels_without_faults_show_nothing(kernel: str) -> None:
    assert {found_as(kernel, source_of(kernel), seed) for seed in SEEDS} == {""}
