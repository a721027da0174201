"""DeepSeek V3 of Hugging Face transformers with a generated kernel in place of its eager attention.

    python examples/transformers_deepseek_v3.py --spec specs/dsv3_fp8_sm90.yaml --device cuda

Random weights, the true head dimensions, all else small. Prints the cosine between the logits of both
attentions, for a batch without padding and for one with padding on either side; exits with 1 where one is
below the bound: 0.9999 for 16-bit specs, 0.998 for fp8.
"""

from __future__ import annotations

import click
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import mla_codegen as mla
from mla_codegen.integrations.transformers import register_attention

BOUNDS = {"e4m3": 0.998, "bf16": 0.9999, "f16": 0.9999}
LENGTHS = {"emulator": (33, 20, 7), "cuda": (700, 300, 129)}
VOCABULARY = 512


def small_model(device: str, seed: int) -> DeepseekV3ForCausalLM:
    """Two layers, the second with experts, and YaRN as in the released model, whose factor enters the scale.

    Weights are large enough for scores to matter, and every token goes to all experts: their choice is
    discrete, so that the rounding of any attention would now and then send a token elsewhere.
    """
    torch.manual_seed(seed)
    config = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=96,
        kv_lora_rank=64,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=8,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=8,
        first_k_dense_replace=1,
        initializer_range=0.04,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    return DeepseekV3ForCausalLM(config).to(device=device, dtype=torch.bfloat16).eval()


def real_tokens(lengths: tuple[int, ...], side: str) -> torch.Tensor:
    """Attention mask of sequences that are padded to the longest, 1 for tokens."""
    width = max(lengths)
    rows = [[1] * length + [0] * (width - length) for length in lengths]
    return torch.tensor([row[::-1] if side == "left" else row for row in rows])


@torch.no_grad()
def logits(
    model: DeepseekV3ForCausalLM, attention: str, tokens: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Float logits [tokens, vocabulary] of all tokens that are no padding."""
    model.set_attn_implementation(attention)
    found = model(input_ids=tokens, attention_mask=mask).logits.float()
    return found.flatten(0, 1) if mask is None else found[mask.bool()]


def cosines(model: DeepseekV3ForCausalLM, attention: str, lengths: tuple[int, ...]) -> dict[str, float]:
    """Cosine between the logits of eager attention and of another, by the kind of batch."""
    shape = (len(lengths), max(lengths))
    tokens = torch.randint(VOCABULARY, shape, device=model.device)
    masks = {
        f"padding on the {side}": real_tokens(lengths, side).to(model.device) for side in ("left", "right")
    }
    found = {}
    for name, mask in {"no padding": None, **masks}.items():
        pair = [logits(model, implementation, tokens, mask) for implementation in ("eager", attention)]
        found[name] = torch.nn.functional.cosine_similarity(*(one.flatten() for one in pair), dim=0).item()
    return found


@click.command()
@click.option("--spec", default="specs/dsv3_bf16_sm90.yaml", show_default=True, help="Spec of the kernel.")
@click.option("--device", type=click.Choice(["emulator", "cuda"]), default="cuda", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of weights and tokens.")
def main(spec: str, device: str, seed: int) -> None:
    """Compares a generated kernel with eager attention inside DeepSeek V3."""
    loaded = mla.load_spec(spec)
    kernel = mla.load(loaded, backend="emulator" if device == "emulator" else "gpu")
    register_attention("mla_codegen", kernel)
    bound = BOUNDS[loaded.dtypes.qkv]
    model = small_model("cpu" if device == "emulator" else device, seed)
    found = cosines(model, "mla_codegen", LENGTHS[device])
    for name, cosine in found.items():
        click.echo(f"{loaded.name}, {name}: cosine of the logits {cosine:.6f}, at least {bound} is needed")
    raise SystemExit(0 if min(found.values()) >= bound else 1)


if __name__ == "__main__":
    main()
