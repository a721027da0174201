"""A kernel under test, random problems on the GPU, guarded outputs, and the comparison with float64."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

import mla_codegen as mla
from mla_codegen.accuracy import ErrorReport, contract_bound, measure
from mla_codegen.plan.model import Plan
from mla_codegen.reference import row_indices
from mla_codegen.tensors import TensorFacts, tensor_facts
from tests.gpu import batches
from tests.gpu.batches import Arguments
from tests.gpu.checks import Checks, spec_path

DEVICE = "cuda"
ROW_BOUNDS = {"e4m3": 0.08, "bf16": 0.012, "f16": 0.012}
"""Relative error of the worst row on random values: e4m3 rounds each P by at most 1/16, bf16 by 1/256."""

UNIFORM_ROW_BOUND = 0.012
"""The same where all P of a row are equal and so exact: one key too few or too many shows."""

_GUARD = 4096
_POISON = {2: 0x7FAB, 4: 0x7FABCDEF}
_HEADS = ("q_nope", "q_rope", "k_nope", "v")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """The kernel of one spec, with the numbers of its plan."""

    name: str
    plan: Plan
    kernel: Any
    facts: TensorFacts

    @property
    def block_m(self) -> int:
        return self.plan.variants[0].launch.block_m

    @property
    def block_n(self) -> int:
        return self.plan.variants[0].launch.block_n

    @property
    def out_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.facts.out_dtype == "bf16" else torch.float32

    @property
    def has_scales(self) -> bool:
        return self.facts.q_scale != "none"

    def query_tiles(self) -> list[int]:
        """Rows of a query tile, each size of a variant once."""
        return sorted({variant.launch.block_m for variant in self.plan.variants})

    def key_tiles(self) -> list[int]:
        """Keys of a KV tile, each size of a variant once."""
        return sorted({variant.launch.block_n for variant in self.plan.variants})

    def ring_depths(self) -> list[int]:
        """Stages of the rings in shared memory, each depth once."""
        barriers = [barrier for variant in self.plan.variants for barrier in variant.mbarriers]
        return sorted({barrier.stages for barrier in barriers if barrier.name.endswith("_empty")})

    def flush_blocks(self) -> int | None:
        """KV blocks after which O is brought to its fp32 sum; None where it never is."""
        values = [choice.value for choice in self.plan.choices if choice.field == "accumulation.flush_blocks"]
        return int(values[0]) if values and values[0].isdecimal() else None


@functools.cache
def subject(name: str) -> Subject:
    """The subject of a spec, compiled and loaded."""
    spec = mla.load_spec(spec_path(name))
    kernel = mla.load(spec)
    kernel.warmup()
    return Subject(name=name, plan=mla.make_plan(spec), kernel=kernel, facts=tensor_facts(spec))


def device_is_alive() -> bool:
    """Whether the device still takes work."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    torch.cuda.empty_cache()
    return True


def generator(name: str) -> torch.Generator:
    """A generator of its own for each name."""
    return torch.Generator(DEVICE).manual_seed(zlib.crc32(name.encode()))


def normal(random: torch.Generator, *shape: int) -> torch.Tensor:
    """N(0, 1), rounded to bf16, as float32."""
    values = torch.randn(*shape, generator=random, device=DEVICE)
    return values.to(torch.bfloat16).float()


Shape: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Changes q [tokens, heads, nope + rope], kv [tokens, heads, nope + v], k_rope [tokens, rope] in place."""


def uniform(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
    """All logits are 0."""
    q.zero_()


def problem(
    under: Subject,
    name: str,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    heads: int = 2,
    shape: Shape | None = None,
) -> Arguments:
    """Arguments of the kernel: N(0, 1) changed by `shape`, quantised on the device."""
    facts, random = under.facts, generator(f"{under.name} {name}")
    q = normal(random, sum(q_lens), heads, facts.nope + facts.rope)
    kv = normal(random, sum(kv_lens), heads // facts.group, facts.nope + facts.v)
    k_rope = normal(random, sum(kv_lens), facts.rope)
    if shape is not None:
        shape(q, kv, k_rope)
    return mla.quantize(
        mla.load_spec(spec_path(under.name)),
        q,
        kv,
        k_rope,
        cu_seqlens_q=batches.cumulative(q_lens),
        cu_seqlens_k=batches.cumulative(kv_lens),
        max_seqlen_q=max(q_lens, default=0),
    )


class GuardedOutput:
    """An output full of a NaN pattern, with the same pattern on both sides and, if strided, in the gaps.

    `layout` makes the view [tokens, heads, v] of a buffer of `elements`; default is the contiguous one.
    """

    def __init__(
        self,
        under: Subject,
        arguments: Mapping[str, Any],
        *,
        elements: int | None = None,
        layout: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Allocates and poisons."""
        tokens, heads = arguments["q_nope"].shape[:2]
        shape = (tokens, heads, under.facts.v)
        elements = tokens * heads * under.facts.v if elements is None else elements
        size = under.out_dtype.itemsize
        self._poison = _POISON[size]
        self._raw = torch.full(
            (elements + 2 * _GUARD,), self._poison, dtype=batches.CODES[size], device=DEVICE
        )
        middle = self._raw[_GUARD : _GUARD + elements].view(under.out_dtype)
        self.view = middle.view(shape) if layout is None else layout(middle)
        assert tuple(self.view.shape) == shape

    def poison(self) -> None:
        """Fills everything with the pattern again."""
        self._raw.fill_(self._poison)

    def unwritten(self) -> int:
        """Elements of the output that still hold the pattern."""
        return int((batches.bits(self.view) == self._poison).sum())

    def written_outside(self) -> int:
        """Elements beside and between the output that do not hold the pattern any more."""
        changed = int((self._raw != self._poison).sum())
        return changed - (self.view.numel() - self.unwritten())


def launch(
    under: Subject, arguments: Mapping[str, Any], checks: Checks, *, all_written: bool = True
) -> torch.Tensor:
    """The output after three launches: on two fresh buffers and again on the first one.

    Checks that bits are equal, everything is written and nothing around it is.
    """
    first, second = GuardedOutput(under, arguments), GuardedOutput(under, arguments)
    under.kernel(**arguments, out=first.view)
    under.kernel(**arguments, out=second.view)
    kept = first.view.clone()
    under.kernel(**arguments, out=first.view)
    checks.true("a second launch gives equal bits", batches.same_bits(kept, second.view))
    checks.true("a launch on a used buffer gives equal bits", batches.same_bits(kept, first.view))
    checks.equal("elements written around the output", first.written_outside(), 0)
    if all_written:
        checks.equal("elements of the output not written", first.unwritten(), 0)
    return kept


def judge(
    under: Subject,
    arguments: Mapping[str, Any],
    out: torch.Tensor,
    checks: Checks,
    *,
    heads: Sequence[int] | None = None,
    rows: Any = None,
    bound: float | None = None,
    row_bound: float | None = None,
    factor: float = 1.0,
) -> ErrorReport:
    """Checks an output against float64, on some heads and on some rows of each sequence where given.

    `bound` replaces the relative error of the contract, `factor` multiplies it.
    """
    assert under.facts.group == 1, "heads are picked from queries and keys alike"
    picked = list(range(out.shape[1])) if heads is None else list(heads)
    chosen = {**arguments, **{name: batches.picked_heads(arguments[name], picked) for name in _HEADS}}
    spec = under.plan.spec
    expected, _ = mla.reference(spec, **chosen, rows=rows)
    places = torch.as_tensor(row_indices(arguments["cu_seqlens_q"], rows), device=out.device)
    actual = out[places][:, picked].float().cpu().numpy()
    report = measure(actual, expected, out_dtype=under.facts.out_dtype)
    if bound is None and under.facts.qkv_dtype == "e4m3":
        p_rounding = under.plan.variants[0].p_rounding
        emulated, _ = mla.reference(spec, **chosen, rows=rows, p_rounding=p_rounding)
        bound = contract_bound(spec, expected=expected, emulated=emulated).rel_frobenius
    elif bound is None:
        bound = contract_bound(spec).rel_frobenius
    where = (
        f"worst element at {report.worst_coordinate} of the rows compared: "
        f"{report.worst_actual:.5g} instead of {report.worst_expected:.5g}"
    )
    checks.equal("places where inf or NaN differ", list(report.nonfinite_mismatch), [])
    checks.at_most("relative error", report.rel_frobenius, bound * factor, where)
    worst = f"row {report.worst_row_coordinate} of the rows compared"
    limit = ROW_BOUNDS[under.facts.qkv_dtype] if row_bound is None else row_bound
    checks.at_most("relative error of the worst row", report.worst_row, limit, worst)
    return report
