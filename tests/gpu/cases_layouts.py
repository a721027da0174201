"""Views of all kinds give the bits of contiguous copies; what no bulk copy can take is refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mla_codegen.errors import LaunchError
from tests.gpu import batches, harness
from tests.gpu.batches import Arguments
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import GuardedOutput, Subject

_Q_LENS = (130, 0, 7, 300)
_KV_LENS = (200, 5, 97, 301)
_HEADS = 3
_TENSORS = ("q_nope", "q_rope", "k_nope", "k_rope", "v")


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    cases: dict[str, Case] = {
        "q and kv as slices of one tensor each": functools.partial(_slices, under),
        "k_rope [tokens, 1, rope] and with stride 0": functools.partial(_rope_axes, under),
        "all at once": functools.partial(_all_at_once, under),
        "softmax arguments beside views": functools.partial(_non_default_scale, under),
    }
    for name in _TENSORS:
        cases[f"{name} with padded rows"] = functools.partial(_viewed, under, name, _padded)
        cases[f"{name} every second token"] = functools.partial(_viewed, under, name, _every_second)
        if name != "k_rope":
            cases[f"{name} head first"] = functools.partial(_viewed, under, name, _head_first)
            cases[f"{name} with head stride 0"] = functools.partial(_shared_head, under, name)
        cases[f"{name} with token stride 0"] = functools.partial(_shared_token, under, name)
        cases[f"{name} one element off"] = functools.partial(_misaligned, under, name)
    if under.has_scales:
        for name in ("q_scale", "k_scale"):
            cases[f"{name} off by 4 to 12 bytes"] = functools.partial(_shifted_scale, under, name)
            cases[f"{name} every third element"] = functools.partial(_strided_scale, under, name)
    for name in ("padded", "head first", "every second token"):
        cases[f"out {name}"] = functools.partial(_strided_output, under, name)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _base(under: Subject) -> Arguments:
    return harness.problem(under, "layouts", _Q_LENS, _KV_LENS, heads=_HEADS)


@functools.cache
def _wanted(under: Subject) -> torch.Tensor:
    return under.kernel(**_base(under))


def _compare(under: Subject, arguments: Arguments, checks: Checks) -> None:
    out = harness.launch(under, arguments, checks)
    checks.true("bits are those of contiguous copies", batches.same_finite_bits(out, _wanted(under)))


def _nan(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """NaN of the dtype of `like`."""
    codes = batches.bits(like)
    filled = torch.full(shape, batches.NAN_CODES[codes.element_size()], dtype=codes.dtype, device=like.device)
    return filled.view(like.dtype)


def _placed(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`target` with the contents of `source`."""
    batches.bits(target).copy_(batches.bits(source))
    return target


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor with 16 bytes of NaN before and 32 behind each."""
    unit = 16 // tensor.element_size()
    depth = tensor.shape[-1]
    wide = _nan((*tensor.shape[:-1], depth + 3 * unit), tensor)
    return _placed(wide[..., unit : unit + depth], tensor)


def _every_second(tensor: torch.Tensor) -> torch.Tensor:
    return _placed(_nan((2 * tensor.shape[0], *tensor.shape[1:]), tensor)[1::2], tensor)


def _head_first(tensor: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, depth] of a tensor that lies as [heads, tokens + 5, depth]."""
    tokens, heads, depth = tensor.shape
    return _placed(_nan((heads, tokens + 5, depth), tensor)[:, 2 : 2 + tokens].transpose(0, 1), tensor)


def _viewed(under: Subject, name: str, view: Callable[[torch.Tensor], torch.Tensor], checks: Checks) -> None:
    base = _base(under)
    _compare(under, {**base, name: view(base[name])}, checks)


def _slices(under: Subject, checks: Checks) -> None:
    """As they come from projections; parts of other dtypes lie in a joint tensor of their own dtype."""
    arguments = _base(under)
    for left, right in (("q_nope", "q_rope"), ("k_nope", "v")):
        parts = arguments[left], arguments[right]
        depths = [part.shape[-1] for part in parts]
        one, other = (_nan((*part.shape[:-1], sum(depths)), part) for part in parts)
        if parts[0].dtype == parts[1].dtype:
            other = one
        arguments[left] = _placed(one[..., : depths[0]], parts[0])
        arguments[right] = _placed(other[..., depths[0] :], parts[1])
    _compare(under, arguments, checks)


def _rope_axes(under: Subject, checks: Checks) -> None:
    base = _base(under)
    with_axis = base["k_rope"][:, None, :]
    _compare(under, {**base, "k_rope": with_axis}, checks)
    _compare(under, {**base, "k_rope": with_axis.expand(-1, _HEADS, -1)}, checks)


def _all_at_once(under: Subject, checks: Checks) -> None:
    base = _base(under)
    views = {"q_nope": _padded, "q_rope": _head_first, "k_nope": _every_second, "v": _head_first}
    changed = {name: view(base[name]) for name, view in views.items()}
    _compare(under, {**base, **changed, "k_rope": _padded(base["k_rope"])}, checks)


def _non_default_scale(under: Subject, checks: Checks) -> None:
    """The cached launch of one softmax_scale is not used for another."""
    base = _base(under)
    outs = [under.kernel(**base, softmax_scale=scale) for scale in (0.3, 0.01, 0.3)]
    checks.true("another softmax_scale gives other bits", not batches.same_bits(outs[0], outs[1]))
    checks.true("the same softmax_scale gives the same bits", batches.same_bits(outs[0], outs[2]))


def _shared_head(under: Subject, name: str, checks: Checks) -> None:
    base = _base(under)
    shared = base[name][:, :1].expand(-1, _HEADS, -1)
    wanted = under.kernel(**{**base, name: batches.picked_heads(base[name], [0] * _HEADS)})
    out = harness.launch(under, {**base, name: shared}, checks)
    checks.true("bits are those of a contiguous copy", batches.same_finite_bits(out, wanted))


def _shared_token(under: Subject, name: str, checks: Checks) -> None:
    """All tokens in the same place, as `expand` makes them."""
    base = _base(under)
    first = base[name][:1]
    wanted = under.kernel(**{**base, name: batches.repeated(first, base[name].shape[0])})
    out = harness.launch(under, {**base, name: first.expand(base[name].shape)}, checks)
    checks.true("bits are those of a contiguous copy", batches.same_finite_bits(out, wanted))


def _misaligned(under: Subject, name: str, checks: Checks) -> None:
    """No bulk copy starts there: a ValueError that names tensor and address, and no launch."""
    base = _base(under)
    tensor = base[name]
    flat = _nan((tensor.numel() + 16,), tensor)
    shifted = _placed(flat[1 : 1 + tensor.numel()].view(tensor.shape), tensor)
    try:
        under.kernel(**{**base, name: shifted})
    except LaunchError as error:
        text = str(error)
        checks.true(
            "the error names tensor and address", name in text and f"{shifted.data_ptr():#x}" in text, text
        )
    else:
        checks.true("a LaunchError is raised", False)


def _shifted_scale(under: Subject, name: str, checks: Checks) -> None:
    base = _base(under)
    for shift in (1, 2, 3):
        flat = _nan((base[name].numel() + 8,), base[name])
        scale = _placed(flat[shift : shift + base[name].numel()], base[name])
        _compare(under, {**base, name: scale}, checks)


def _strided_scale(under: Subject, name: str, checks: Checks) -> None:
    base = _base(under)
    strided = _placed(_nan((3 * base[name].numel(),), base[name])[1::3], base[name])
    _compare(under, {**base, name: strided}, checks)
    strided[3] = float("inf")
    try:
        under.kernel(**{**base, name: strided}, check=True)
    except LaunchError as error:
        checks.true("check=True reads a strided scale", f"{name} is inf at [3]" in str(error), str(error))
    else:
        checks.true("check=True refuses an infinite scale", False)


def _strided_output(under: Subject, name: str, checks: Checks) -> None:
    """Gaps of the output keep what they hold."""
    base = _base(under)
    tokens, depth = base["q_nope"].shape[0], under.facts.v
    elements, layout = {
        "padded": (
            tokens * _HEADS * (depth + 24),
            lambda flat: flat.view(tokens, _HEADS, depth + 24)[..., 8 : 8 + depth],
        ),
        "head first": (
            (tokens + 3) * _HEADS * depth,
            lambda flat: flat.view(_HEADS, tokens + 3, depth)[:, 1 : 1 + tokens].transpose(0, 1),
        ),
        "every second token": (
            2 * tokens * _HEADS * depth,
            lambda flat: flat.view(2 * tokens, _HEADS, depth)[::2],
        ),
    }[name]
    output = GuardedOutput(under, base, elements=elements, layout=layout)
    under.kernel(**base, out=output.view)
    checks.true(
        "bits are those of a contiguous output", batches.same_finite_bits(output.view, _wanted(under))
    )
    checks.equal("elements written in gaps and around the output", output.written_outside(), 0)
    checks.equal("elements of the output not written", output.unwritten(), 0)
