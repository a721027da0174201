"""Extreme, peaked, equal and slowly changing logits; scales of all sizes; values that name their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mla_codegen.accuracy import contract_bound
from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import Subject

_Q_LENS = (300, 0, 77, 5)
_KV_LENS = (700, 9, 500, 1)
_LOGIT = 7e4
_FP32_LOGIT_BOUND = 1e-2
"""Logits of 7e4 have steps of 2^-7 in fp32, in base e."""


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        "logits of 7e4 and -7e4": functools.partial(_extreme, under, (1.0, -1.0)),
        "logits of -7e4": functools.partial(_extreme, under, (-1.0, -1.0)),
        "logits of 7e4": functools.partial(_extreme, under, (1.0, 1.0)),
        "a logit of -6e4 among -7e4": functools.partial(_one_above, under),
        "V tagged by column": functools.partial(_tagged_columns, under),
        "V rows one-hot": functools.partial(_one_hot, under),
        "zero-mean V, 16k against 1k keys": functools.partial(_long_sums, under),
        "V with a mean, up to 16k keys": functools.partial(_values_with_mean, under),
        "softmax_scale": functools.partial(_softmax_scale, under),
    }
    shapes: dict[str, harness.Shape] = {
        "peaked": _peaked,
        "equal logits": harness.uniform,
        "slowly rising logits": functools.partial(_sloped, under, False),
        "slowly falling logits": functools.partial(_sloped, under, True),
        "tokens 100 times apart": functools.partial(_outliers, under, -3.3, 3.3),
        "scales 2^-12 to 2^4": functools.partial(_outliers, under, -12.0, 4.0),
    }
    for name, shape in shapes.items():
        cases[name] = functools.partial(_shaped, under, name, shape)
    if under.has_scales:
        cases["q_scale of 0"] = functools.partial(_zero_scale, under, "q_scale")
        cases["k_scale of 0"] = functools.partial(_zero_scale, under, "k_scale")
        cases["q_scale changed alone"] = functools.partial(_perturbed, under, "q_scale")
        cases["k_scale changed alone"] = functools.partial(_perturbed, under, "k_scale")
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _shaped(under: Subject, name: str, shape: harness.Shape, checks: Checks) -> None:
    arguments = harness.problem(under, name, _Q_LENS, _KV_LENS, shape=shape)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, row_bound=_row_bound(name))


def _row_bound(name: str) -> float | None:
    """V of other sizes per token breaks what the bound of a row rests on; then only the whole is judged."""
    return float("inf") if "scales" in name or "apart" in name else None


def _peaked(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
    """One key of each sequence is 8 times as large."""
    places = [start + length // 3 for start, length in zip((0, 700, 709, 1209), _KV_LENS, strict=True)]
    kv[places, :, : kv.shape[-1] // 2] *= 8
    k_rope[places] *= 8


def _sloped(under: Subject, falls: bool, q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
    """On top of N(0, 1) the logits run from 0 to 20 over the keys of the longest sequence, or back."""
    place = torch.arange(kv.shape[0], device=kv.device) / _KV_LENS[0] % 1.0
    logit = 20.0 * (1.0 - place if falls else place)
    q[..., 0] = 16.0
    kv[..., 0] = (logit * _root_depth(under) / 16.0)[:, None].to(torch.bfloat16).float()


def _outliers(
    under: Subject, low: float, high: float, q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor
) -> None:
    """Factors 2^low to 2^high per key and value, and inverse ones per query so that logits stay moderate."""
    random = harness.generator("outliers")

    def factors(tokens: int, top: float) -> torch.Tensor:
        exponent = low + (top - low) * torch.rand(tokens, 1, 1, generator=random, device=q.device)
        return torch.exp2(exponent)

    nope = under.facts.nope
    q[..., :nope] *= factors(q.shape[0], 0.0)
    kv[..., :nope] *= factors(kv.shape[0], high)
    kv[..., nope:] *= factors(kv.shape[0], high)
    for tensor in (q, kv):
        tensor.copy_(tensor.to(torch.bfloat16).float())


def _root_depth(under: Subject) -> float:
    """What a dot product is divided by to be a logit."""
    return float(under.facts.nope + under.facts.rope) ** 0.5


def _only_first(under: Subject, logits: Callable[[torch.Tensor], torch.Tensor]) -> harness.Shape:
    """Only the first element of queries and keys counts: query 1 times key gives exactly one product."""
    side = (_LOGIT * _root_depth(under)) ** 0.5

    def shape(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
        q.zero_()
        k_rope.zero_()
        kv[..., : under.facts.nope] = 0
        q[..., 0] = side
        kv[..., 0] = logits(torch.arange(kv.shape[0], device=kv.device))[:, None] * side
        for tensor in (q, kv):
            tensor.copy_(tensor.to(torch.bfloat16).float())

    return shape


def _extreme(under: Subject, signs: tuple[float, float], checks: Checks) -> None:
    """Keys have the first sign, every third the second: rows are means over the keys on top."""
    first, second = signs
    shape = _only_first(under, lambda key: torch.where(key % 3 == 0, second, first))
    arguments = harness.problem(under, f"extreme {signs}", _Q_LENS, _KV_LENS, shape=shape)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, bound=_FP32_LOGIT_BOUND, row_bound=2 * _FP32_LOGIT_BOUND)


def _one_above(under: Subject, checks: Checks) -> None:
    """Rows that see key 3 of a sequence are its value; no finite logit is taken for a hidden one."""
    shape = _only_first(under, lambda key: torch.where(key == 3, -6 / 7, -1.0))
    arguments = harness.problem(under, "one above", [200], [400], shape=shape)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks, bound=_FP32_LOGIT_BOUND, row_bound=2 * _FP32_LOGIT_BOUND)


def _tagged_columns(under: Subject, checks: Checks) -> None:
    """Every value is the tag of its column, 64 magnitudes with both signs, and so is every output."""
    column = torch.arange(under.facts.v, device=harness.DEVICE)
    magnitude = torch.exp2((column % 64 // 8 - 3).float()) * (1 + column % 8 / 8)
    tags = torch.where(column % 128 < 64, magnitude, -magnitude)

    def shape(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
        q.zero_()
        kv[..., under.facts.nope :] = tags

    arguments = harness.problem(under, "tagged", _Q_LENS[:3], _KV_LENS[:3], shape=shape)
    out = harness.launch(under, arguments, checks)
    deviation = (out.float() / tags - 1).abs()
    place = int(deviation.argmax())
    checks.at_most("relative deviation from the tag", float(deviation.max()), 2e-2, f"flat index {place}")


def _one_hot(under: Subject, checks: Checks) -> None:
    """Value j is 1 in column j % v, so that a column sums the probabilities of its keys."""

    def shape(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
        key = torch.arange(kv.shape[0], device=kv.device)
        kv[..., under.facts.nope :] = torch.nn.functional.one_hot(key % under.facts.v, under.facts.v)[:, None]

    arguments = harness.problem(under, "one-hot", _Q_LENS, _KV_LENS, shape=shape)
    out = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, out, checks)


def _long_sums(under: Subject, checks: Checks) -> None:
    """The error of the last 256 queries must not grow with the keys."""
    errors = {}
    for kv_len in (1024, 16_384):
        arguments = harness.problem(under, f"long sums {kv_len}", [256], [kv_len])
        out = harness.launch(under, arguments, checks)
        errors[kv_len] = harness.judge(
            under, arguments, out, checks, factor=1.5, row_bound=0.12
        ).rel_frobenius
    checks.at_most("error at 16,384 keys over error at 1,024", errors[16_384] / errors[1024], 1.5)


def _values_with_mean(under: Subject, checks: Checks) -> None:
    """Zero-mean values hide an accumulator that is too narrow; V = 1 + 0.25 N(0, 1) shows it."""

    def shape(q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> None:
        values = kv[..., under.facts.nope :]
        values.copy_((1 + 0.25 * values).to(torch.bfloat16).float())

    bound = contract_bound(under.plan.spec, v_has_mean=True).rel_frobenius
    for kv_len in (1024, 4096, 16_384):
        arguments = harness.problem(under, f"mean {kv_len}", [256], [kv_len], shape=shape)
        out = harness.launch(under, arguments, checks)
        harness.judge(under, arguments, out, checks, bound=bound, row_bound=2 * bound)


def _softmax_scale(under: Subject, checks: Checks) -> None:
    base = harness.problem(under, "softmax_scale", _Q_LENS, _KV_LENS)
    for scale in (0.0, 0.01, 0.2, 1 / 192**0.5):
        arguments: Arguments = {**base, "softmax_scale": scale}
        out = harness.launch(under, arguments, checks)
        harness.judge(under, arguments, out, checks)


def _zero_scale(under: Subject, name: str, checks: Checks) -> None:
    """Exactly 0: the logits are 0 and every key still counts."""
    arguments = harness.problem(under, f"zero {name}", _Q_LENS, _KV_LENS)
    changed = arguments[name].clone()
    changed[::2] = 0.0
    some_zero = {**arguments, name: changed}
    out = harness.launch(under, some_zero, checks)
    harness.judge(under, some_zero, out, checks)
    all_zero = {**arguments, name: torch.zeros_like(changed)}
    out = harness.launch(under, all_zero, checks)
    harness.judge(under, all_zero, out, checks, row_bound=harness.UNIFORM_ROW_BOUND)


def _perturbed(under: Subject, name: str, checks: Checks) -> None:
    """The output changes as float64 says it must, and only where it must."""
    base = harness.problem(under, f"perturbed {name}", _Q_LENS, _KV_LENS)
    before = harness.launch(under, base, checks)
    random = harness.generator(f"factors {name}")
    factors = torch.exp2(4 * torch.rand(base[name].shape, generator=random, device=before.device) - 2)
    arguments = {**base, name: base[name] * factors}
    after = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, after, checks)
    change = (after.float() - before.float()).norm() / before.float().norm()
    checks.at_least("relative change of the output", float(change), 0.1)
    token = base[name].shape[0] - 100
    one = base[name].clone()
    one[token] *= 4
    arguments = {**base, name: one}
    after = harness.launch(under, arguments, checks)
    harness.judge(under, arguments, after, checks)
    differs = (batches.bits(after) != batches.bits(before)).flatten(1).any(dim=1).nonzero().flatten().tolist()
    side = "q" if name == "q_scale" else "k"
    sequence = int((base[f"cu_seqlens_{side}"] <= token).sum()) - 1
    first, end = base["cu_seqlens_q"][sequence : sequence + 2].tolist()
    own = f"rows {first} to {end} are its sequence, {differs[:8]} change"
    checks.true(
        "one scale changes its sequence only", differs and first <= min(differs) and max(differs) < end, own
    )
    if name == "q_scale":
        checks.true("the scale of a query changes its row", token in differs)
