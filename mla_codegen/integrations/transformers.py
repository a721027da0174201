"""Generated kernels as attention functions of Hugging Face transformers, for models with MLA as DeepSeek V3.

    register_attention("mla", mla_codegen.load("specs/dsv3_bf16_sm90.yaml"))
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="mla")

A model hands over queries and keys [batch, heads, tokens, nope + rope], rotated, with the one key of the rope
part repeated for every head, values [batch, heads, tokens, v] and its softmax scale (with the factor that
YaRN asks for). The kernel gets views of them where it can: queries and keys of more than one sequence are
copied, since transformers keeps heads outside of tokens, and tensors are quantised where the spec says so.

Padding, left or right, is taken out before the call, and rows of padding come back as zeros; that copies, and
waits for the device, as looking at an attention_mask does. A batch without one costs neither a wait nor, for
one sequence, a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from mla_codegen import torch_ops
from mla_codegen.dtypes import DTYPES
from mla_codegen.errors import LaunchError
from mla_codegen.quantize import quantize
from mla_codegen.tensors import TensorFacts, tensor_facts

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "sliding_window": (None,),
    "softcap": (None,),
    "s_aux": (None,),
    "position_bias": (None,),
    "cu_seq_lens_q": (None,),
    "is_causal": (None, True),
}
"""What transformers may ask of an attention function: the values that ask for nothing."""


def register_attention(name: str, kernel: Any) -> str:
    """Makes `attn_implementation=name` run a kernel of `mla_codegen.load`, in every model; returns the name.

    The kernel is also registered with `torch_ops` under this name. Models on CUDA take kernels of the GPU,
    models on the CPU emulated ones. There is no backward pass: run models under `torch.no_grad()`.

    Raises:
        LaunchError: the spec is not for causal attention on ragged batches, or the name has another kernel.
    """
    facts = tensor_facts(kernel.spec)
    if not (facts.causal and facts.q_ragged and facts.kv_ragged):
        mask = "causal" if facts.causal else "full"
        q, kv = ("ragged" if ragged else "dense" for ragged in (facts.q_ragged, facts.kv_ragged))
        raise LaunchError.single(
            "spec",
            f"spec {kernel.plan['name']} has mask {mask}, layout.q {q} and layout.kv {kv}, a causal mask and "
            "ragged layouts are needed",
            help="load a spec such as dsv3_bf16_sm90",
        )
    key = torch_ops.register(kernel, name)
    AttentionInterface.register(name, _Attention(key=key, facts=facts, spec=kernel.spec))
    AttentionMaskInterface.register(name, _real_tokens)
    return name


def _real_tokens(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **_: object,
) -> Tensor | None:
    """Which tokens are real, bool [batch, tokens], the queries' last; None where all keys are.

    transformers calls it once for all layers, `attention_mask` [batch, tokens] being the caller's; a cache of
    fixed size has more keys than there are tokens.
    """
    if mask_function is not causal_mask_function or kv_offset:
        raise LaunchError.single(
            "mask",
            "the model asks for a mask that is not causal over whole sequences, such as one of packed "
            "sequences or of a sliding window; padding is all that may be added to a causal mask",
            help="pass each sequence as a row of the batch with an attention_mask; torch.compile, which "
            "cannot tell whether sequences are packed, needs use_cache=True",
        )
    tokens = int(q_offset) + q_length
    if attention_mask is None and tokens == kv_length:
        return None
    if attention_mask is None:
        device = q_offset.device if isinstance(q_offset, Tensor) else None
        return torch.ones(batch_size, tokens, dtype=torch.bool, device=device)
    if attention_mask.shape[1] < tokens:
        raise LaunchError.single(
            "mask",
            f"attention_mask has {attention_mask.shape[1]} tokens, the batch has {tokens}",
            help="pass a mask over all tokens, those in the cache included",
        )
    real = attention_mask[:, :tokens]
    return None if tokens == kv_length and bool(real.all()) else real


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """The attention function of one kernel, which `torch_ops` knows by its key."""

    key: str
    facts: TensorFacts
    spec: Any

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: object,
    ) -> tuple[Tensor, None]:
        """Output [batch, tokens, heads, v] in the dtype of the queries, and no weights."""
        self._check(module, query, attention_mask, dropout, options)
        batch, _, length, _ = query.shape
        queries, keys, values = (one.transpose(1, 2) for one in (query, key, value))
        if attention_mask is None:
            tokens = [one.flatten(0, 1) for one in (queries, keys, values)]
            lengths = [_uniform(batch, one) for one in (queries, keys)]
            return self._attend(tokens, lengths, length, scaling).unflatten(0, (batch, length)), None
        keys, values = (one[:, : attention_mask.shape[1]] for one in (keys, values))
        real_queries = attention_mask[:, -length:]
        tokens = [queries[real_queries], keys[attention_mask], values[attention_mask]]
        lengths = [_ragged(one) for one in (real_queries, attention_mask)]
        out = self._attend(tokens, lengths, length, scaling)
        padded = out.new_zeros(batch, length, *out.shape[1:])
        padded[real_queries] = out
        return padded, None

    def _attend(
        self, tokens: list[Tensor], lengths: list[Tensor], max_seqlen_q: int, scaling: float | None
    ) -> Tensor:
        """Output [tokens, heads, v] for queries, keys and values [tokens, heads, ...] of all sequences."""
        q, k, v = tokens
        nope, k_rope = self.facts.nope, k[:, 0, self.facts.nope :]
        named: dict[str, Any] = {"cu_seqlens_q": lengths[0], "cu_seqlens_k": lengths[1]}
        if self._takes(q.dtype):
            named |= {"q_nope": q[..., :nope], "q_rope": q[..., nope:], "k_nope": k[..., :nope]}
            named |= {"k_rope": k_rope, "v": v, "max_seqlen_q": max_seqlen_q}
        else:
            kv = torch.cat([k[..., :nope], v], dim=-1)
            named = quantize(self.spec, q, kv, k_rope, max_seqlen_q=max_seqlen_q, **named)
        out: Tensor = torch.ops.mla_codegen.prefill(self.key, **named, softmax_scale=scaling)
        return out.to(q.dtype)

    def _takes(self, dtype: torch.dtype) -> bool:
        """Whether the kernel takes tensors of this dtype as they are."""
        needed = {self.facts.qkv_dtype, self.facts.rope_dtype}
        return {getattr(torch, DTYPES[name].torch_dtype) for name in needed} == {dtype}

    def _check(
        self,
        module: torch.nn.Module,
        query: Tensor,
        attention_mask: Tensor | None,
        dropout: float,
        options: dict[str, object],
    ) -> None:
        """LaunchError where the model is no MLA of these dimensions, or wants more than attention."""
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        found = [getattr(module, name, None) for name in names]
        needed = [self.facts.nope, self.facts.rope, self.facts.v]
        if found != needed:
            raise LaunchError.single(
                "model",
                f"{type(module).__name__} has {', '.join(names)} {found}, kernel {self.key!r} needs {needed}",
                help="use it with models with multi-head latent attention of the spec's dims",
            )
        if attention_mask is not None and (attention_mask.ndim != 2 or attention_mask.dtype != torch.bool):
            raise LaunchError.single(
                "mask",
                f"attention_mask is {attention_mask.dtype} {list(attention_mask.shape)}, one over [batch, "
                "tokens] is needed",
                help="pass the model a mask of two axes, 0 or False for padding",
            )
        wrong = {name: options[name] for name, fine in _NEUTRAL.items() if options.get(name) not in fine}
        if dropout:
            wrong["dropout"] = dropout
        if wrong:
            asked = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
            raise LaunchError.single(
                "model",
                f"the model asks for {asked}, kernel {self.key!r} has causal attention alone",
                help="use another attn_implementation, for dropout model.eval()",
            )


def _uniform(batch: int, tokens: Tensor) -> Tensor:
    """cu_seqlens of sequences as long as [batch, tokens, ...] is, int32 [batch + 1]."""
    return torch.arange(batch + 1, dtype=torch.int32, device=tokens.device) * tokens.shape[1]


def _ragged(real: Tensor) -> Tensor:
    """cu_seqlens of the real tokens of bool [batch, tokens], int32 [batch + 1]."""
    ends = real.sum(dim=1).cumsum(0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0))
