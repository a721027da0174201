"""Generated kernels as torch operators: `torch.ops.mla_codegen.prefill`, `prefill_lse` and `prefill_out`.

    key = mla_codegen.torch_ops.register(mla_codegen.load("specs/dsv3_bf16_sm90.yaml"))
    out = torch.ops.mla_codegen.prefill(key, q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q=..., ...)

An operator gets numbers, strings and tensors only, so it names its kernel by a key, under which `register`
has put it. All operators take the arguments of a kernel's own call but `stream` and `check`, with the same
meaning, on CUDA tensors, or on CPU tensors where the kernel is an emulated one:

- `prefill` returns out, of any kernel; the LSE of one that has it is dropped;
- `prefill_lse` returns (out, lse), of kernels that have one: no operator gives an empty tensor for an LSE;
- `prefill_out` writes into `out` and, exactly where the kernel has an LSE, `lse`; it allocates nothing.

They run on torch's current stream, can be captured in CUDA graphs once `kernel.warmup()` was called, and are
opaque to torch.compile: fake implementations give shapes and dtypes, views keep their strides (also 0), and
`max_seqlen_q` may be symbolic. There is no backward pass: inputs that would record gradients are refused.

The operators are defined and implemented through `torch.library`'s plain functions, since the wrapper that
`custom_op` puts around an operator costs 40 microseconds a call, more than a launch may cost altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

try:
    import torch
except ModuleNotFoundError as error:
    message = "torch is not installed, mla_codegen.torch_ops needs it; install mla-codegen[torch]"
    raise ModuleNotFoundError(message, name="torch") from error

from torch import Tensor

from mla_codegen.call.rules import INPUT_NAMES
from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError
from mla_codegen.runtime.kernel import Kernel
from mla_codegen.torch_views import host_view

_INPUTS = (
    "str kernel, Tensor q_nope, Tensor? q_rope, Tensor k_nope, Tensor? k_rope, Tensor v, *, "
    "Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, Tensor? k_rope_scale=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, float? softmax_scale=None"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_DEVICES = ("cpu", "cuda")
_OUTPUT_NAMES = ("out", "lse")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """Axes, each a symbol of the query's or a number, and dtype of an output."""

    axes: tuple[str, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registered:
    """A kernel under a key; `outputs` are out and, where there is one, lse."""

    key: str
    kernel: Any
    is_emulated: bool
    query_axes: tuple[str, ...]
    outputs: tuple[_Output, ...]

    @property
    def has_lse(self) -> bool:
        return len(self.outputs) > 1


_kernels: dict[str, _Registered] = {}


def register(kernel: Any, key: str | None = None) -> str:
    """Makes a kernel that `mla_codegen.load` gave known to the operators; returns its key.

    The default key is the name of the kernel's spec. A kernel stays registered, and alive, until
    `unregister`; to register it once more changes nothing. Nothing is compiled: call `kernel.warmup()`.

    Raises:
        LaunchError: another kernel has this key.
    """
    plan = kernel.plan
    key = plan["name"] if key is None else key
    found = _kernels.get(key)
    if found is not None and found.kernel is not kernel:
        raise LaunchError.single(
            "key-taken",
            f"key {key!r} has another kernel of the spec {found.kernel.plan['name']}, "
            "a key has one kernel that compiled graphs rely on",
            help="pass another key=, or unregister the key first",
        )
    arguments = {argument["name"]: argument for argument in plan["arguments"]}
    _kernels[key] = _Registered(
        key=key,
        kernel=kernel,
        is_emulated=not isinstance(kernel, Kernel),
        query_axes=tuple(arguments["q_nope"]["axes"]),
        outputs=tuple(_output(arguments[name]) for name in ("out", "lse") if name in arguments),
    )
    return key


def unregister(key: str) -> None:
    """Forgets the kernel of a key; graphs that call it fail until the key has a kernel again.

    Raises:
        LaunchError: no kernel has this key.
    """
    _registered(key)
    del _kernels[key]


def _output(argument: Mapping[str, Any]) -> _Output:
    return _Output(axes=tuple(argument["axes"]), dtype=getattr(torch, DTYPES[argument["dtype"]].torch_dtype))


def _registered(key: str) -> _Registered:
    found = _kernels.get(key)
    if found is None:
        known = ", ".join(sorted(_kernels)) or "none"
        raise LaunchError.single(
            "unknown-kernel",
            f"no kernel is registered as {key!r}, registered are: {known}",
            help=f"call mla_codegen.torch_ops.register(kernel, key={key!r}) in this process",
        )
    return found


def _new_outputs(known: _Registered, q_nope: Tensor) -> list[Tensor]:
    """Outputs without values, real or fake; their lengths are those of the queries."""
    if q_nope.dim() != len(known.query_axes):
        raise LaunchError.single(
            "rank",
            f"q_nope has shape {list(q_nope.shape)}, [{', '.join(known.query_axes)}] is needed",
            help="reshape q_nope",
        )
    lengths = dict(zip(known.query_axes, q_nope.shape, strict=True))
    return [
        q_nope.new_empty(
            [int(axis) if axis.isdecimal() else lengths[axis] for axis in output.axes], dtype=output.dtype
        )
        for output in known.outputs
    ]


class _Call(NamedTuple):
    """What a kernel is called with; `inputs` in the order of INPUT_NAMES, `outputs` out and maybe lse."""

    inputs: tuple[Tensor | None, ...]
    max_seqlen_q: int | None
    softmax_scale: float | None
    outputs: Sequence[Tensor]


_Start: TypeAlias = Callable[[_Registered, _Call], None]
"""What an operator does with a complete call: launches it, or only looks at it."""


def _look(known: _Registered, call: _Call) -> None:
    """LaunchError where torch would take the results for constants in a backward pass."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in zip(INPUT_NAMES, call.inputs, strict=True):
        if tensor is not None and tensor.requires_grad:
            raise LaunchError.single(
                "gradient",
                f"{name} requires a gradient, kernel {known.key!r} has no backward pass and takes inputs "
                "without one",
                help="call it under torch.no_grad() or torch.inference_mode(), or pass detached tensors",
            )


def _launch(known: _Registered, call: _Call) -> None:
    """Runs the kernel, an emulated one on views of the tensors."""
    _look(known, call)
    inputs: Sequence[Any] = call.inputs
    outputs: Sequence[Any] = call.outputs
    if known.is_emulated:
        inputs = [host_view(name, one) for name, one in zip(INPUT_NAMES, inputs, strict=True)]
        outputs = [host_view(name, one) for name, one in zip(_OUTPUT_NAMES, outputs, strict=False)]
    (
        q_nope, q_rope, k_nope, k_rope, v,
        q_scale, k_scale, v_scale, k_rope_scale, cu_seqlens_q, cu_seqlens_k,
    ) = inputs  # fmt: skip
    known.kernel(
        q_nope, q_rope, k_nope, k_rope, v,
        q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, k_rope_scale=k_rope_scale,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=call.max_seqlen_q, softmax_scale=call.softmax_scale,
        out=outputs[0], lse=outputs[1] if len(outputs) > 1 else None,
    )  # fmt: skip


def _returning(start: _Start, *, with_lse: bool) -> Callable[..., Tensor | tuple[Tensor, Tensor]]:
    """Implementation of `prefill`, or with the LSE of `prefill_lse`."""

    def prefill(
        kernel: str,
        q_nope: Tensor,
        q_rope: Tensor | None,
        k_nope: Tensor,
        k_rope: Tensor | None,
        v: Tensor,
        *,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        k_rope_scale: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        known = _registered(kernel)
        if with_lse and not known.has_lse:
            raise LaunchError.single(
                "no-lse",
                f"kernel {kernel!r} has no LSE, softmax.lse of its spec is none",
                help="call prefill, or declare softmax.lse as natural or log2",
            )
        call = _Call(
            inputs=(
                q_nope, q_rope, k_nope, k_rope, v,
                q_scale, k_scale, v_scale, k_rope_scale, cu_seqlens_q, cu_seqlens_k,
            ),
            max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale,
            outputs=_new_outputs(known, q_nope),
        )  # fmt: skip
        start(known, call)
        return (call.outputs[0], call.outputs[1]) if with_lse else call.outputs[0]

    return prefill


def _writing(start: _Start) -> Callable[..., None]:
    """Implementation of `prefill_out`."""

    def prefill_out(
        kernel: str,
        q_nope: Tensor,
        q_rope: Tensor | None,
        k_nope: Tensor,
        k_rope: Tensor | None,
        v: Tensor,
        *,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        k_rope_scale: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        out: Tensor,
        lse: Tensor | None = None,
    ) -> None:
        known = _registered(kernel)
        if known.has_lse and lse is None:
            raise LaunchError.single(
                "argument-missing",
                f"lse is missing, kernel {kernel!r} has an LSE and prefill_out allocates nothing",
                help="pass lse=, or call prefill, which drops it",
            )
        call = _Call(
            inputs=(
                q_nope, q_rope, k_nope, k_rope, v,
                q_scale, k_scale, v_scale, k_rope_scale, cu_seqlens_q, cu_seqlens_k,
            ),
            max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale,
            outputs=(out,) if lse is None else (out, lse),
        )  # fmt: skip
        start(known, call)

    return prefill_out


def _define(name: str, signature: str, implementation: Callable[[_Start], Callable[..., Any]]) -> None:
    """The operator `mla_codegen::<name>`: for real tensors it launches, for fake ones it only looks."""
    qualified = f"mla_codegen::{name}"
    torch.library.define(qualified, signature, tags=_TAGS)
    torch.library.impl(qualified, _DEVICES, implementation(_launch))
    torch.library.register_fake(qualified, implementation(_look))


_define("prefill", f"({_INPUTS}) -> Tensor", partial(_returning, with_lse=False))
_define("prefill_lse", f"({_INPUTS}) -> (Tensor, Tensor)", partial(_returning, with_lse=True))
_define("prefill_out", f"({_INPUTS}, Tensor(a!) out, Tensor(b!)? lse=None) -> ()", _writing)
