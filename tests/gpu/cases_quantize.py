"""Generated quantisers on the GPU: the bits of NumPy, in every library, stream and graph."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import torch

import mla_codegen as mla
from mla_codegen.loading import load_quantizer
from mla_codegen.spec import Spec
from mla_codegen.tensors import tensor_facts
from tests.gpu import harness
from tests.gpu.checks import Case, Checks, run_cases, spec_path

_FORMS = ("none", "tensor", "head", "token", "token_head")
_LENS = (130, 0, 7, 300)
_SLEEP_CYCLES = 100_000_000
_BEHIND = 21
"""Tokens behind the last sequence."""

Arrays = dict[str, Any]


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec; with it every form of scales."""
    shipped = mla.load_spec(spec_path(spec))
    cases: dict[str, Case] = {}
    for dtype, heads in itertools.product(("bfloat16", "float16"), (1, 16, 128, 160)):
        problem = functools.partial(_bits, shipped, dtype=dtype, heads=heads)
        cases[f"{dtype}, {heads} heads"] = problem
    for name, changes in _other_forms().items():
        cases[name] = functools.partial(_bits, _changed(shipped, changes), dtype="bfloat16", heads=16)
    cases |= {
        "strided inputs": functools.partial(_strided, shipped),
        "a busy stream": functools.partial(_busy_stream, shipped),
        "CUDA graph": functools.partial(_graph, shipped),
        "out=": functools.partial(_out, shipped),
        "more than 2^31 elements": functools.partial(_large, shipped),
        "other arrays": functools.partial(_other_arrays, shipped),
    }
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _other_forms() -> dict[str, dict[str, dict[str, Any]]]:
    forms: dict[str, dict[str, dict[str, Any]]] = {}
    for form in _FORMS:
        k_form = "token" if form in ("head", "token_head") else form
        scales = {"q": form, "k": k_form, "v": form, "rope": "prescaled"}
        forms[f"prescaled {form}"] = {"scales": scales}
        forms[f"raw {form}"] = {"scales": {**scales, "k": form, "rope": "raw"}, "heads": {"group": 4}}
        dense = {"q": "dense", "kv": "dense"}
        forms[f"dense {form}"] = {"scales": scales, "layout": dense}
        forms[f"dense transposed {form}"] = {"scales": scales, "layout": {**dense, "v": "transposed"}}
        forms[f"transposed {form}"] = {"scales": scales, "layout": {"v": "transposed"}}
    for rope in ("f16", "e4m3"):
        forms[f"rope {rope}"] = {"dtypes": {"qkv": "e4m3", "rope_gmem": rope, "rope_mma": rope}}
    return forms


def _changed(spec: Spec, changes: Mapping[str, Mapping[str, Any]]) -> Spec:
    mapping: dict[str, Any] = dict(spec.to_mapping())
    for section, fields in changes.items():
        mapping[section] = {**mapping[section], **fields}
    if not ({mapping["scales"]["q"], mapping["scales"]["k"]} - {"none"}):
        mapping["scales"] = {**mapping["scales"], "rope": None}
    if not ({mapping["scales"][name] for name in ("q", "k", "v")} - {"none"}):
        mapping["dtypes"] = {**mapping["dtypes"], "scale": None}
    return Spec.from_mapping(mapping)


def _inputs(spec: Spec, dtype: str, heads: int) -> Arrays:
    """NumPy inputs of sizes from 2^-12 to 2^12, with zeros of either sign, zero rows and large rope."""
    facts, rng = tensor_facts(spec), np.random.default_rng(heads)

    def normal(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape) * np.exp2(
            rng.uniform(-12, 12, (shape[0], *[1] * (len(shape) - 1)))
        )
        values[rng.random(shape) < 0.02] = -0.0
        return values

    tokens = sum(_LENS) + _BEHIND
    arrays = {
        "q": normal(tokens, heads, facts.nope + facts.rope),
        "kv": normal(tokens, heads // facts.group, facts.nope + facts.v),
        "k_rope": normal(tokens, facts.rope),
    }
    arrays["q"][5, :, : facts.nope] = 0
    arrays["kv"][9] = 0
    arrays["q"][7, 0, facts.nope :] *= 16
    arrays["k_rope"][11] *= 16
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    for name, ragged in (("q", facts.q_ragged), ("kv", facts.kv_ragged), ("k_rope", facts.kv_ragged)):
        array = np.clip(arrays[name], -6e4, 6e4).astype(kind)
        arrays[name] = array if ragged else np.stack([array[:200], array[200:400]])
    return arrays


def _lengths(spec: Spec) -> dict[str, np.ndarray]:
    facts = tensor_facts(spec)
    cumulative = np.cumsum([0, *_LENS]).astype(np.int32)
    sides = {"cu_seqlens_q": facts.q_ragged, "cu_seqlens_k": facts.kv_ragged}
    return {name: cumulative for name, ragged in sides.items() if ragged}


def _to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def _to_cupy(array: np.ndarray) -> Any:
    return cupy.asarray(array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array)


def _codes(array: Any) -> bytes:
    if isinstance(array, torch.Tensor):
        return array.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return array.get().tobytes() if isinstance(array, cupy.ndarray) else array.tobytes()


def _takes(spec: Spec, arrays: Arrays, checks: Checks) -> None:
    """The generated kernels are what runs."""
    quantizer = load_quantizer(spec, tensor_facts(spec))
    refused = None if quantizer is None else quantizer.refuses({n: arrays[n] for n in ("q", "kv", "k_rope")})
    checks.true("a quantiser takes the arrays", quantizer is not None and refused is None, str(refused))


def _compare(found: Mapping[str, Any], expected: Mapping[str, Any], checks: Checks) -> None:
    differing = [
        name
        for name, wanted in expected.items()
        if isinstance(wanted, np.ndarray) and _codes(found[name]) != wanted.tobytes()
    ]
    checks.equal("results whose bits are not NumPy's", differing, [])


def _bits(spec: Spec, checks: Checks, *, dtype: str, heads: int) -> None:
    arrays, lengths = _inputs(spec, dtype, heads), _lengths(spec)
    expected = mla.quantize(spec, **arrays, **lengths)
    for convert in (_to_torch, _to_cupy):
        given = {name: convert(array) for name, array in arrays.items()}
        _takes(spec, given, checks)
        first = mla.quantize(spec, **given, **{name: convert(array) for name, array in lengths.items()})
        _compare(first, expected, checks)
        checks.equal("names", sorted(first), sorted(expected))


def _strided(spec: Spec, checks: Checks) -> None:
    arrays, lengths = _inputs(spec, "bfloat16", 16), _lengths(spec)
    expected = mla.quantize(spec, **arrays, **lengths)
    views = {}
    for name, array in arrays.items():
        tensor = _to_torch(array)
        padded = torch.full((2 * tensor.shape[0], *tensor.shape[1:-1], tensor.shape[-1] + 24), torch.nan)
        padded = padded.to(tensor.dtype).cuda()
        views[name] = padded[1::2, ..., 8 : 8 + tensor.shape[-1]]
        views[name].copy_(tensor)
    _takes(spec, views, checks)
    _compare(mla.quantize(spec, **views, **lengths), expected, checks)


def _busy_stream(spec: Spec, checks: Checks) -> None:
    """Behind a long kernel a call returns at once, and reads what the stream brings meanwhile."""
    arrays, lengths = _inputs(spec, "bfloat16", 16), _lengths(spec)
    expected = mla.quantize(spec, **arrays, **lengths)
    sources = {name: _to_torch(array) for name, array in arrays.items()}
    on_device = {name: _to_torch(array) for name, array in lengths.items()}
    given = {name: torch.zeros_like(tensor) for name, tensor in sources.items()}
    longest = max(_LENS)
    mla.quantize(spec, **given, **on_device, max_seqlen_q=longest)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for name, tensor in given.items():
            tensor.copy_(sources[name])
        torch.cuda.set_sync_debug_mode("error")
        try:
            start = time.perf_counter()
            packed = mla.quantize(spec, **given, **on_device, max_seqlen_q=longest)
            checks.at_most("seconds until the call returns", time.perf_counter() - start, 0.01)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        checks.true("the stream is still busy then", not stream.query())
    stream.synchronize()
    _compare(packed, expected, checks)


def _graph(spec: Spec, checks: Checks) -> None:
    """A graph that is replayed reads the inputs of that time."""
    tensor_form = _changed(spec, {"scales": {"q": "tensor", "k": "tensor", "v": "head"}})
    for one in (spec, tensor_form):
        arrays, lengths = _inputs(one, "bfloat16", 16), _lengths(one)
        expected = mla.quantize(one, **arrays, **lengths)
        given = {name: torch.zeros_like(_to_torch(array)) for name, array in arrays.items()}
        on_device = {name: _to_torch(array) for name, array in lengths.items()}
        packed = mla.quantize(one, **given, **on_device, max_seqlen_q=max(_LENS))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mla.quantize(one, **given, **on_device, max_seqlen_q=max(_LENS), out=packed)
        for name, tensor in given.items():
            tensor.copy_(_to_torch(arrays[name]))
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        _compare(packed, expected, checks)


def _out(spec: Spec, checks: Checks) -> None:
    arrays, lengths = _inputs(spec, "bfloat16", 16), _lengths(spec)
    given = {name: _to_torch(array) for name, array in arrays.items()}
    on_device = {name: _to_torch(array) for name, array in lengths.items()}
    packed = mla.quantize(spec, **given, **on_device, max_seqlen_q=7)
    kept = {name: _codes(value) for name, value in packed.items() if isinstance(value, torch.Tensor)}
    for name in kept.keys() - on_device.keys():
        packed[name].view(torch.uint8).fill_(0x55)
    torch.cuda.synchronize()
    before = int(torch.cuda.memory_stats()["allocation.all.allocated"])
    again = mla.quantize(spec, **given, **on_device, max_seqlen_q=7, out=packed)
    after = int(torch.cuda.memory_stats()["allocation.all.allocated"])
    checks.equal("allocations", after - before, 0)
    checks.true(
        "the arrays of out are returned", all(again[name] is packed[name] for name in ("q_nope", "v"))
    )
    checks.equal("results with other bits", [n for n, codes in kept.items() if _codes(again[n]) != codes], [])


def _large(spec: Spec, checks: Checks) -> None:
    """The last tokens of tensors whose offsets need 64 bits have the bits that they have alone."""
    facts = tensor_facts(spec)
    heads, last = 128, 3
    tokens = 2**31 // (heads * (facts.nope + min(facts.rope, facts.v))) + 100
    q = torch.zeros(tokens, heads, facts.nope + facts.rope, dtype=torch.bfloat16, device="cuda")
    kv = torch.zeros(tokens, heads // facts.group, facts.nope + facts.v, dtype=torch.bfloat16, device="cuda")
    k_rope = torch.zeros(tokens, facts.rope, dtype=torch.bfloat16, device="cuda")
    for tensor in (q, kv, k_rope):
        tensor[-last:] = torch.randn_like(tensor[-last:])
    results = []
    for start in (0, tokens - last):
        length = tokens - start
        cu = torch.tensor([0, length], dtype=torch.int32, device="cuda")
        named = {"cu_seqlens_q": cu} | ({"cu_seqlens_k": cu} if facts.kv_ragged else {})
        results.append(
            mla.quantize(spec, q[start:], kv[start:], k_rope[start:], **named, max_seqlen_q=length)
        )
    names = ["q_nope", "q_rope", "k_nope", "k_rope", "q_scale", "k_scale"]
    names += [] if facts.v_transposed else ["v"]
    whole, part = results
    differing = [name for name in names if _codes(whole[name][-last:]) != _codes(part[name])]
    checks.equal("results of the last tokens that differ", differing, [])


def _other_arrays(spec: Spec, checks: Checks) -> None:
    """float32 and rows at odd addresses go through the operations of the library, with the same bits."""
    arrays, lengths = _inputs(spec, "bfloat16", 4), _lengths(spec)
    expected = mla.quantize(spec, **arrays, **lengths)
    wide = {name: _to_torch(array).float() for name, array in arrays.items()}
    _compare(mla.quantize(spec, **wide, **lengths), expected, checks)
    odd = {}
    for name, array in arrays.items():
        tensor = _to_torch(array)
        odd[name] = torch.cat([tensor[..., :1], tensor], dim=-1)[..., 1:]
    quantizer = load_quantizer(spec, tensor_facts(spec))
    checks.true("they are refused", quantizer is not None and quantizer.refuses(odd) is not None)
    _compare(mla.quantize(spec, **odd, **lengths), expected, checks)
