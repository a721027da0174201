"""torch operators on the GPU: bits, torch's own checks, torch.compile, CUDA graphs, streams, host time."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import torch

import mla_codegen as mla
from mla_codegen import torch_ops
from mla_codegen.call.rules import INPUT_NAMES
from mla_codegen.spec import Spec
from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases, spec_path
from tests.gpu.harness import GuardedOutput, Subject

OPS = torch.ops.mla_codegen

_Q_LENS = (130, 0, 7, 300)
_KV_LENS = (200, 5, 97, 301)
_CAPACITY_Q, _CAPACITY_K = (400, 300, 200), (500, 500, 400)
_REPLAYS = (
    (_CAPACITY_Q, _CAPACITY_K),
    ((1, 0, 77), (3, 9, 200)),
    ((0, 0, 0), (0, 0, 0)),
    ((400, 0, 5), (0, 300, 700)),
)
_SLEEP_CYCLES = 100_000_000
_CALLS = 1000
_OVERHEAD_SECONDS = 60e-6
"""30 us of the kernel's own call and what torch's dispatcher adds to it, with other processes at work."""


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    torch_ops.register(under.kernel, spec)
    cases: dict[str, Case] = {
        "bits of the kernel's own call": functools.partial(_bits, under),
        "log-sum-exp": functools.partial(_lse, under),
        "torch's checks": functools.partial(_opcheck, under),
        "torch.compile": functools.partial(_compiled, under),
        "torch.compile, other lengths": functools.partial(_dynamic, under),
        "torch.compile with CUDA graphs": functools.partial(_reduced_overhead, under),
        "CUDA graph through prefill": functools.partial(_graph, under, functional=True),
        "CUDA graph through prefill_out": functools.partial(_graph, under, functional=False),
        "torch's current stream": functools.partial(_stream, under),
        "host time of prefill_out": functools.partial(_host_time, under),
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _split(arguments: Arguments) -> tuple[list[Any], Arguments]:
    """Positional and named arguments."""
    named = dict(arguments)
    return [named.pop(name) for name in INPUT_NAMES[:5]], named


def _codes(arguments: Arguments) -> Arguments:
    """The same with e4m3 as bytes, since torch compares no e4m3."""
    return {
        name: value.view(torch.uint8) if getattr(value, "dtype", None) == torch.float8_e4m3fn else value
        for name, value in arguments.items()
    }


def _base(under: Subject) -> Arguments:
    return harness.problem(under, "torch", _Q_LENS, _KV_LENS, heads=3)


def _bits(under: Subject, checks: Checks) -> None:
    base = _base(under)
    positional, named = _split(base)
    wanted = under.kernel(**base)
    output = GuardedOutput(under, base)
    found = OPS.prefill(under.name, *positional, **named)
    checks.true("prefill gives the bits of the call", batches.same_finite_bits(found, wanted))
    OPS.prefill_out(under.name, *positional, **named, out=output.view)
    checks.true("prefill_out gives the bits of the call", batches.same_bits(output.view, wanted))
    checks.equal("elements written around the output", output.written_outside(), 0)
    scaled = OPS.prefill(under.name, *positional, **named, softmax_scale=0.01)
    same = batches.same_bits(scaled, under.kernel(**base, softmax_scale=0.01))
    checks.true("softmax_scale arrives", same and not batches.same_bits(scaled, wanted))


def _with_lse(under: Subject) -> Any:
    """The kernel of the same spec with a log-sum-exp."""
    mapping = mla.load_spec(spec_path(under.name)).to_mapping()
    softmax = {**mapping["softmax"], "lse": "natural"}
    return mla.load(Spec.from_mapping({**mapping, "name": f"{under.name}_lse", "softmax": softmax}))


def _lse(under: Subject, checks: Checks) -> None:
    kernel = _with_lse(under)
    key = torch_ops.register(kernel)
    base = _base(under)
    positional, named = _split(_codes(base))
    out, lse = kernel(**base)
    found = OPS.prefill_lse(key, *positional, **named)
    checks.equal(
        "same bits", [batches.same_bits(*pair) for pair in zip(found, (out, lse), strict=True)], [True] * 2
    )
    checks.true("prefill drops the LSE", batches.same_bits(OPS.prefill(key, *positional, **named), out))
    torch.library.opcheck(OPS.prefill_lse.default, (key, *positional), named)
    given = {"out": torch.zeros_like(out), "lse": torch.zeros_like(lse)}
    torch.library.opcheck(OPS.prefill_out.default, (key, *positional), {**named, **given})
    OPS.prefill_out(key, *positional, **named, **given)
    checks.true("prefill_out gives the bits of both", batches.same_bits(given["lse"], lse))


def _opcheck(under: Subject, checks: Checks) -> None:
    positional, named = _split(_codes(_base(under)))
    out = torch.zeros_like(OPS.prefill(under.name, *positional, **named))
    for op, given in ((OPS.prefill, {}), (OPS.prefill_out, {"out": out})):
        verdicts = torch.library.opcheck(op.default, (under.name, *positional), {**named, **given})
        checks.equal("verdicts", set(verdicts.values()), {"SUCCESS"}, str(op))


def _layer(key: str, arguments: Arguments) -> Any:
    """Views of computed tensors go in, the output is worked on."""
    positional, named = _split(arguments)
    q_nope, q_rope, k_nope, k_rope, v = positional
    if q_nope.dtype == q_rope.dtype:
        q = torch.cat([q_nope, q_rope], -1) * 1
        q_nope, q_rope = q[..., :128], q[..., 128:]
    k_rope = (k_rope * 1)[:, None].expand(-1, q_nope.shape[1], -1)
    return OPS.prefill(key, q_nope, q_rope, k_nope, k_rope, v, **named) * 2


def _compiled(under: Subject, checks: Checks) -> None:
    base = _base(under)
    wanted = under.kernel(**base) * 2
    torch._dynamo.reset()
    found = torch.compile(_layer, fullgraph=True)(under.name, base)
    checks.true("bits of the call in eager mode", batches.same_finite_bits(found, wanted))


def _dynamic(under: Subject, checks: Checks) -> None:
    """The first other length makes a graph for all lengths."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(_layer, fullgraph=True, backend=counter)
    for q_lens, kv_lens in (
        ((50, 2), (90, 3)),
        ((60, 3), (110, 7)),
        ((700, 20), (1300, 90)),
        ((9, 4), (17, 6)),
    ):
        arguments = harness.problem(under, f"dynamic {q_lens}", q_lens, kv_lens)
        found = compiled(under.name, arguments)
        same = batches.same_finite_bits(found, under.kernel(**arguments) * 2)
        checks.true("bits of the call in eager mode", same, str(q_lens))
    checks.at_most("graphs", counter.frame_count, 2)


def _reduced_overhead(under: Subject, checks: Checks) -> None:
    """Inductor captures the operator in CUDA graphs of its own."""
    base = _base(under)
    wanted = under.kernel(**base) * 2
    torch._dynamo.reset()
    compiled = torch.compile(_layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        same = batches.same_finite_bits(compiled(under.name, base), wanted)
        checks.true("bits of the call in eager mode", same)
    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    checks.equal("graphs that were not captured", skipped, 0)


def _graph(under: Subject, checks: Checks, *, functional: bool) -> None:
    """Captured once, replayed with other lengths and other contents below the capacities."""
    held = harness.problem(under, "torch graph", _CAPACITY_Q, _CAPACITY_K)
    positional, named = _split(held)
    output = GuardedOutput(under, held)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        if functional:
            found = OPS.prefill(under.name, *positional, **named)
        else:
            OPS.prefill_out(under.name, *positional, **named, out=output.view)
            found = output.view
    for number, (q_lens, kv_lens) in enumerate(_REPLAYS):
        fresh = harness.problem(under, f"torch graph {number}", q_lens, kv_lens)
        for name, value in fresh.items():
            if isinstance(value, torch.Tensor):
                batches.bits(held[name])[: value.shape[0]].copy_(batches.bits(value))
        graph.replay()
        same = batches.same_finite_bits(found[: sum(q_lens)], under.kernel(**fresh))
        checks.true("bits of a fresh call", same, f"q_lens {q_lens}, kv_lens {kv_lens}")
    checks.equal("elements written around the output", output.written_outside(), 0)


def _stream(under: Subject, checks: Checks) -> None:
    """Inputs that a long kernel before us on the current stream has yet to write are waited for."""
    base = _base(under)
    wanted = under.kernel(**base)
    zeros = {
        name: torch.zeros_like(batches.bits(value)).view(value.dtype)
        for name, value in base.items()
        if isinstance(value, torch.Tensor)
    }
    positional, named = _split({**base, **zeros})
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for name, target in zeros.items():
            batches.bits(target).copy_(batches.bits(base[name]))
        found = OPS.prefill(under.name, *positional, **named)
    checks.true("the call returns while the stream is busy", not stream.query())
    stream.synchronize()
    checks.true("bits are those of the default stream", batches.same_finite_bits(found, wanted))


def _host_time(under: Subject, checks: Checks) -> None:
    arguments = harness.problem(under, "tiny", [2, 3], [5, 3])
    out = under.kernel(**arguments)
    positional, named = _split(arguments)
    op, seconds = OPS.prefill_out, []
    for call in range(_CALLS + 100):
        start = time.perf_counter()
        op(under.name, *positional, **named, out=out)
        seconds.append(time.perf_counter() - start)
        if call % 50 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    checks.at_most("median seconds of a warm call", statistics.median(seconds[100:]), _OVERHEAD_SECONDS)
