"""DeepSeek V3 of transformers with a generated kernel as its attention."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from mla_codegen.integrations.transformers import register_attention
from tests.gpu import harness
from tests.gpu.checks import Case, Checks, run_cases
from tests.gpu.harness import Subject
from tests.script import script

_LENGTHS = ((1, 64, 129, 300), (700, 300, 129), (1500,))


def run(spec: str) -> dict[str, list[dict[str, Any]]]:
    """All cases of a spec."""
    under = harness.subject(spec)
    register_attention(under.name, under.kernel)
    example = script("examples/transformers_deepseek_v3.py")
    cases: dict[str, Case] = {
        f"logits, lengths {lengths}": functools.partial(_logits, under, example, lengths)
        for lengths in _LENGTHS
    }
    cases["one compiled graph"] = functools.partial(_compiled, under, example)
    return run_cases(cases, device_is_alive=harness.device_is_alive)


def _logits(under: Subject, example: ModuleType, lengths: tuple[int, ...], checks: Checks) -> None:
    model, bound = example.small_model("cuda", 1), example.BOUNDS[under.facts.qkv_dtype]
    for name, cosine in example.cosines(model, under.name, lengths).items():
        checks.at_least("cosine of the logits", cosine, bound, name)


@torch.no_grad()
def _compiled(under: Subject, example: ModuleType, checks: Checks) -> None:
    """The whole model is traced around the operator, quantisation included; no part falls back to Python."""
    from torch._dynamo.testing import CompileCounter

    model = example.small_model("cuda", 1)
    model.set_attn_implementation(under.name)
    tokens = torch.randint(example.VOCABULARY, (2, 200), device="cuda")
    counter = CompileCounter()
    found = torch.compile(model, fullgraph=True, backend=counter)(tokens).logits
    pair = [logits.float().flatten() for logits in (found, model(tokens).logits)]
    cosine = torch.nn.functional.cosine_similarity(*pair, dim=0).item()
    checks.at_least("cosine with the logits of eager mode", cosine, 0.9999)
    checks.equal("graphs", counter.frame_count, 1)
