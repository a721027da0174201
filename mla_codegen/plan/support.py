"""What this version's planner makes sm_90a kernels for; what else a spec can say is refused here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mla_codegen.errors import Diagnostic, PlanError

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

QKV = ("e4m3", "bf16", "f16")


def unsupported(spec: Spec) -> tuple[Diagnostic, ...]:
    """Every field of the spec that no kernel can be planned for yet; empty where the planner can go on."""
    return tuple(_faults(spec))


def raise_if(spec: Spec, faults: Iterable[Diagnostic]) -> None:
    """PlanError with these diagnostics, each at the place of its field, where there are any."""
    located = tuple(spec.locate(fault) for fault in faults)
    if located:
        raise PlanError(located)


def _faults(spec: Spec) -> Iterator[Diagnostic]:
    yield from _dtype_faults(spec)
    mask = spec.mask if isinstance(spec.mask, str) else spec.mask.model_dump(mode="json")
    yield from must_be("mask", mask, "full", "causal")
    yield from _layout_faults(spec)
    yield from _schedule_faults(spec)


def _dtype_faults(spec: Spec) -> Iterator[Diagnostic]:
    dtypes, scales = spec.dtypes, spec.scales
    yield from must_be("dtypes.qkv", dtypes.qkv, *QKV)
    if dtypes.qkv not in QKV:
        return  # what the other types and the scales may be depends on it
    yield from must_be("dtypes.p", dtypes.p, "auto", dtypes.qkv)
    when = f"with dtypes.rope_gmem {dtypes.rope_gmem}"  # nothing here converts rope in shared memory
    yield from must_be("dtypes.rope_mma", dtypes.rope_mma, dtypes.rope_gmem, when=when)
    yield from must_be("scales.rope_k", scales.rope_k, "none")


def _layout_faults(spec: Spec) -> Iterator[Diagnostic]:
    layout, softmax = spec.layout, spec.softmax
    kv = layout.kv if isinstance(layout.kv, str) else layout.kv.model_dump()
    rope = None if layout.rope is None else layout.rope.model_dump()
    yield from must_be("layout.kv", kv, "ragged", "dense")
    yield from must_be("layout.rope", rope, None)
    yield from must_be("softmax.sink", softmax.sink, False)
    yield from must_be("softmax.softcap", softmax.softcap, None)
    yield from must_be("smem.layout", spec.smem.layout, "auto")
    if spec.dtypes.qkv != "e4m3":
        flush = spec.accumulation.flush_blocks
        yield from must_be("accumulation.flush_blocks", flush, "auto", when="with 16-bit qkv")
    elif softmax.variant == "online":
        flush = spec.accumulation.flush_blocks
        yield from must_be("accumulation.flush_blocks", flush, "auto", when="with the online softmax")


def _schedule_faults(spec: Spec) -> Iterator[Diagnostic]:
    pipeline, schedule = spec.pipeline, spec.schedule
    yield from must_be("pipeline.qk_stages", pipeline.qk_stages, 1)
    yield from must_be("pipeline.pv_stages", pipeline.pv_stages, "auto", 1)
    yield from must_be("pipeline.kv_ring", pipeline.kv_ring, "auto", "separate")
    order = "turns" if spec.dtypes.qkv == "e4m3" else "ping_pong"
    kind = "e4m3" if spec.dtypes.qkv == "e4m3" else "16-bit"
    yield from must_be("schedule.order", schedule.order, "auto", order, when=f"with {kind} qkv")
    if spec.layout.v == "transposed":
        when = "with layout.v transposed"
        yield from must_be("schedule.transpose_warps", schedule.transpose_warps, "auto", when=when)
    else:
        yield from must_be("schedule.transpose_warps", schedule.transpose_warps, "auto", 3)
    yield from must_be("schedule.longest_first", schedule.longest_first, "auto", True)


def must_be(field: str, found: object, *allowed: object, when: str | None = None) -> Iterator[Diagnostic]:
    """A diagnostic where ``found`` is none of ``allowed``; ``when`` says what the restriction depends on."""
    if any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in allowed):
        return
    condition = f" {when}" if when else ""
    values = [_yaml(value) for value in allowed]
    kernels = f"kernels{condition} for {_listed(values, 'and')}"
    yield Diagnostic(
        code="unsupported",
        field=field,
        message=f"{field} is {_yaml(found)}, this version makes {kernels}",
        help=f"set {field}: {_listed(values, 'or')}",
    )


def _listed(values: list[str], word: str) -> str:
    return f" {word} ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _yaml(value: object) -> str:
    """The value as the spec has it: ``null``, ``true``, ``{paged: 64}``."""
    return json.dumps(value).replace('"', "")
