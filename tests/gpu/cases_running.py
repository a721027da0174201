"""Array libraries, streams, CUDA graphs, run-time checks, quantisation on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import torch

import mla_codegen as mla
from mla_codegen.errors import LaunchError
from mla_codegen.problems import DATA_KINDS, random_inputs
from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases, spec_path
from tests.gpu.harness import GuardedOutput, Subject

_Q_LENS = (130, 0, 7, 300)
_KV_LENS = (200, 5, 97, 301)
_SLEEP_CYCLES = 100_000_000
"""Keeps a stream busy for more than 40 ms at the clock of any Hopper GPU."""


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        "CuPy and torch": functools.partial(_libraries, under),
        "CUDA graph with other lengths": functools.partial(_graph, under),
        "check=True": functools.partial(_checked, under),
    }
    for name, stream in {
        "torch's current stream": _current_torch_stream,
        "a torch stream object": _torch_stream_object,
        "an integer handle": _integer_handle,
        "CuPy's stream object": _cupy_stream_object,
    }.items():
        cases[name] = functools.partial(_on_stream, under, stream)
    cases["CuPy's current stream"] = functools.partial(_current_cupy_stream, under)
    for data in DATA_KINDS:
        cases[f"quantize {data} data on the device"] = functools.partial(_quantize, under, data)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _base(under: Subject) -> Arguments:
    return harness.problem(under, "running", _Q_LENS, _KV_LENS, heads=3)


def as_cupy(value: Any) -> Any:
    """A CuPy array of the same codes as a torch tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    host = batches.bits(value).cpu().numpy()
    if value.dtype in (torch.float32, torch.int32):
        return cupy.asarray(host.view(np.float32 if value.dtype == torch.float32 else np.int32))
    return cupy.asarray(host.view({1: np.uint8, 2: np.uint16}[host.itemsize]))


def _libraries(under: Subject, checks: Checks) -> None:
    base = _base(under)
    wanted = harness.launch(under, base, checks)
    arrays = {name: as_cupy(value) for name, value in base.items()}
    out = under.kernel(**arrays)
    checks.true("CuPy arrays give a CuPy array", isinstance(out, cupy.ndarray))
    checks.equal("shape", tuple(out.shape), tuple(wanted.shape))
    host = batches.bits(wanted).cpu().numpy().tobytes()
    checks.true("CuPy arrays give the bits of torch tensors", out.get().tobytes() == host)
    given = cupy.zeros(out.shape, dtype=np.uint16 if out.itemsize == 2 else np.float32)
    returned = under.kernel(**arrays, out=given)
    checks.true("out= is what is returned", returned is given)
    checks.true("out= as codes has the same bits", given.get().tobytes() == host)
    codes = {
        name: batches.bits(value) if name.endswith("_nope") or name == "v" else value
        for name, value in base.items()
    }
    if under.facts.qkv_dtype == "e4m3":
        checks.true("uint8 codes in torch", batches.same_bits(under.kernel(**codes), wanted))


def _on_stream(
    under: Subject,
    launch: Callable[[Subject, Arguments, torch.Tensor, torch.cuda.Stream], None],
    checks: Checks,
) -> None:
    """Inputs that a long kernel before us on the stream has yet to write are waited for."""
    base = _base(under)
    wanted = under.kernel(**base)
    tensors = {name: value for name, value in base.items() if isinstance(value, torch.Tensor)}
    inputs = {
        name: torch.zeros_like(batches.bits(value)).view(value.dtype) for name, value in tensors.items()
    }
    output = GuardedOutput(under, base)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for name, target in inputs.items():
            batches.bits(target).copy_(batches.bits(tensors[name]))
    launch(under, {**base, **inputs}, output.view, stream)
    checks.true("the call returns while the stream is busy", not stream.query())
    stream.synchronize()
    checks.true("bits are those of the default stream", batches.same_finite_bits(output.view, wanted))
    checks.equal("elements written around the output", output.written_outside(), 0)


def _current_torch_stream(
    under: Subject, arguments: Arguments, out: torch.Tensor, stream: torch.cuda.Stream
) -> None:
    with torch.cuda.stream(stream):
        under.kernel(**arguments, out=out)


def _torch_stream_object(
    under: Subject, arguments: Arguments, out: torch.Tensor, stream: torch.cuda.Stream
) -> None:
    under.kernel(**arguments, out=out, stream=stream)


def _integer_handle(
    under: Subject, arguments: Arguments, out: torch.Tensor, stream: torch.cuda.Stream
) -> None:
    under.kernel(**arguments, out=out, stream=stream.cuda_stream)


def _cupy_stream_object(
    under: Subject, arguments: Arguments, out: torch.Tensor, stream: torch.cuda.Stream
) -> None:
    under.kernel(**arguments, out=out, stream=cupy.cuda.ExternalStream(stream.cuda_stream))


def _current_cupy_stream(under: Subject, checks: Checks) -> None:
    """CuPy arrays on CuPy's current stream, behind a long kernel and copies on it."""
    base = _base(under)
    wanted = batches.bits(under.kernel(**base)).cpu().numpy().tobytes()
    sources = {name: as_cupy(value) for name, value in base.items()}
    inputs = {
        name: cupy.zeros_like(value) if hasattr(value, "get") else value for name, value in sources.items()
    }
    out = under.kernel(**sources)
    out.view(np.uint8)[...] = 0xFF
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(_SLEEP_CYCLES)
    with stream:
        for name, source in sources.items():
            if hasattr(source, "get"):
                inputs[name][...] = source
        under.kernel(**inputs, out=out)
        checks.true("the call returns while the stream is busy", not stream.done)
    stream.synchronize()
    checks.true("bits are those of the default stream", out.get().tobytes() == wanted)


def _graph(under: Subject, checks: Checks) -> None:
    """Captured once, replayed with other lengths and other contents below the capacities."""
    capacity_q, capacity_k = [400, 300, 200, 100], [500, 500, 400, 300]
    held = harness.problem(under, "graph", capacity_q, capacity_k)
    output = GuardedOutput(under, held)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        under.kernel(**held, out=output.view)
    replays = (
        (capacity_q, capacity_k),
        ([1, 0, 400, 77], [3, 9, 500, 200]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([400, 0, 0, 5], [0, 300, 0, 700]),
        ([129, 385, 1, 64], [129, 385, 1, 64]),
    )
    for number, (q_lens, kv_lens) in enumerate(replays):
        where = f"replay {number}, q_lens {q_lens}, kv_lens {kv_lens}"
        fresh = harness.problem(under, f"graph {number}", q_lens, kv_lens)
        for name, value in fresh.items():
            if isinstance(value, torch.Tensor):
                batches.bits(held[name])[: value.shape[0]].copy_(batches.bits(value))
        wanted = under.kernel(**fresh)
        output.poison()
        graph.replay()
        rows = sum(q_lens)
        checks.true("bits of a fresh call", batches.same_finite_bits(output.view[:rows], wanted), where)
        beyond = output.view.shape[0] - rows
        untouched = beyond * output.view[0].numel()
        checks.equal("elements beyond the last sequence still poisoned", output.unwritten(), untouched, where)


def _checked(under: Subject, checks: Checks) -> None:
    """check=True passes what is right and names what is wrong."""
    base = _base(under)
    out = under.kernel(**base, check=True)
    checks.true("right data passes", batches.same_bits(out, under.kernel(**base)))
    falling, beyond = base["cu_seqlens_k"].clone(), base["cu_seqlens_q"].clone()
    falling[2] = falling[1] - 3
    beyond[-1] += 1
    wrong: list[tuple[Arguments, tuple[str, ...]]] = [
        ({"cu_seqlens_k": falling}, ("cu_seqlens_k", "falls", "sequence 1")),
        ({"cu_seqlens_q": beyond}, ("cu_seqlens_q", str(sum(_Q_LENS) + 1))),
        ({"max_seqlen_q": 299}, ("max_seqlen_q", "299", "300 queries")),
    ]
    if under.has_scales:
        for name, value in (("k_scale", float("nan")), ("q_scale", -1.0), ("q_scale", float("inf"))):
            scale = base[name].clone()
            scale[5] = value
            wrong.append(({name: scale}, (name, str(value), "[5]")))
    for changed, words in wrong:
        try:
            under.kernel(**{**base, **changed}, check=True)
        except LaunchError as error:
            missing = [word for word in words if word not in str(error)]
            checks.equal("words that the error lacks", missing, [], str(error))
        else:
            checks.true("a LaunchError is raised", False, str(words))


def _quantize(under: Subject, data: str, checks: Checks) -> None:
    """torch and CuPy on the GPU give the bits of NumPy."""
    spec = mla.load_spec(spec_path(under.name))
    inputs = random_inputs(spec, heads=3, q_lens=_Q_LENS, kv_lens=_KV_LENS, data=data, seed=5)
    wanted = mla.quantize(spec, **inputs)
    tokens = ("q", "kv", "k_rope")
    for library, place, back in (
        ("torch", lambda array: torch.as_tensor(array, device="cuda"), _torch_bytes),
        ("CuPy", cupy.asarray, lambda array: array.get().tobytes()),
    ):
        placed = {**inputs, **{name: place(inputs[name]) for name in tokens}}
        found = mla.quantize(spec, **placed)
        checks.equal("names", sorted(found), sorted(wanted), library)
        differing = [
            name
            for name, value in wanted.items()
            if isinstance(value, np.ndarray) and back(found[name]) != value.tobytes()
        ]
        checks.equal("arguments whose bits differ from NumPy's", differing, [], library)


def _torch_bytes(tensor: torch.Tensor) -> bytes:
    return batches.bits(tensor).cpu().numpy().tobytes()
