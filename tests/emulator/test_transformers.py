"""DeepSeek V3 of transformers with emulated kernels as its attention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mla_codegen as mla
from mla_codegen.errors import LaunchError
from tests.forms import form
from tests.script import script

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch_ops = pytest.importorskip("mla_codegen.torch_ops")
integration = pytest.importorskip("mla_codegen.integrations.transformers")

SPECS = Path(__file__).parents[2] / "specs"
LENGTHS = (33, 20, 7)


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test registers its own kernels."""
    monkeypatch.setattr(torch_ops, "_kernels", {})
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return script("examples/transformers_deepseek_v3.py")


def registered(name: str = "dsv3_bf16_sm90") -> str:
    return integration.register_attention(name, mla.load(SPECS / f"{name}.yaml", backend="emulator"))


def cosine(one: Any, other: Any) -> float:
    return torch.nn.functional.cosine_similarity(one.float().flatten(), other.float().flatten(), dim=0).item()


@pytest.mark.parametrize(("spec", "bound"), [("dsv3_bf16_sm90", 0.9999), ("dsv3_fp8_sm90", 0.998)])
def test_the_example_keeps_its_bounds(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, spec: str, bound: float
) -> None:
    arguments = ["--spec", str(SPECS / f"{spec}.yaml"), "--device", "emulator"]
    done = CliRunner().invoke(example.main, arguments)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{spec}, no padding", f"{spec}, padding on the left", f"{spec}, padding on the right"
    ]  # fmt: skip
    assert all(line.endswith(f"at least {bound} is needed") for line in lines)
    torch_ops.unregister("mla_codegen")
    monkeypatch.setattr(example, "BOUNDS", {"bf16": 1.1, "e4m3": 1.1})
    assert CliRunner().invoke(example.main, arguments).exit_code == 1


def test_rows_do_not_depend_on_the_padding_of_others(example: ModuleType) -> None:
    """Each sequence of a padded batch gives what it gives alone, wherever the padding is."""
    name, model = registered(), example.small_model("cpu", 0)
    tokens = torch.randint(512, (3, 33), generator=torch.Generator().manual_seed(1))
    alone = [
        example.logits(model, name, tokens[row : row + 1, :length], None)
        for row, length in enumerate(LENGTHS)
    ]
    right = example.logits(model, name, tokens, example.real_tokens(LENGTHS, "right"))
    left_tokens = torch.stack([row.roll(33 - length) for row, length in zip(tokens, LENGTHS, strict=True)])
    left = example.logits(model, name, left_tokens, example.real_tokens(LENGTHS, "left"))
    assert cosine(right, torch.cat(alone)) > 0.99995
    assert cosine(left, torch.cat(alone)) > 0.99995


@pytest.mark.parametrize("static", [False, True], ids=["growing cache", "cache of fixed size"])
@pytest.mark.parametrize("padded", [False, True], ids=["no padding", "padding"])
@torch.no_grad()
def test_a_prompt_in_parts_gives_what_the_whole_gives(
    example: ModuleType, static: bool, padded: bool
) -> None:
    """Chunked prefill: new queries see the keys of the cache, none of which is padding or empty."""
    name, model = registered(), example.small_model("cpu", 0)
    tokens = torch.randint(512, (2, 33), generator=torch.Generator().manual_seed(2))
    mask = example.real_tokens((33, 25), "left") if padded else torch.ones(2, 33, dtype=torch.long)
    kept = None if not padded else mask
    wanted = example.logits(model, "eager", tokens, mask)
    model.set_attn_implementation(name)
    cache = (
        transformers.StaticCache(config=model.config, max_cache_len=50)
        if static
        else transformers.DynamicCache(config=model.config)
    )
    parts = []
    for first, last in ((0, 20), (20, 32), (32, 33)):
        seen = None if kept is None else kept[:, :last]
        found = model(input_ids=tokens[:, first:last], attention_mask=seen, past_key_values=cache)
        parts.append(found.logits.float())
    assert cosine(torch.cat(parts, dim=1)[mask.bool()], wanted) >= 0.9999


@torch.no_grad()
def test_the_whole_model_is_one_compiled_graph(example: ModuleType) -> None:
    from torch._dynamo.testing import CompileCounter

    model = example.small_model("cpu", 0)
    model.set_attn_implementation(registered())
    tokens = torch.randint(512, (2, 33), generator=torch.Generator().manual_seed(3))
    counter = CompileCounter()
    found = torch.compile(model, fullgraph=True, backend=counter)(tokens).logits
    assert torch.equal(found, model(tokens).logits)
    assert counter.frame_count == 1


def test_the_readme_s_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulator, with fewer tokens and heads."""
    monkeypatch.chdir(SPECS.parent)
    blocks = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    blocks = [block for block in blocks if "torch_ops" in block or "register_attention" in block]
    assert len(blocks) == 2
    load = mla.load
    monkeypatch.setattr(mla, "load", lambda spec: load(spec, backend="emulator"))
    for block in blocks:
        for found, instead in (("1777", "17"), ("1000", "10"), (", 16, ", ", 2, "), ('"cuda"', '"cpu"')):
            block = block.replace(found, instead)
        names: dict[str, Any] = {}
        exec(block, names)
        assert "out" not in names or names["out"].shape == (17, 2, 128)


MLA = SimpleNamespace(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def states(batch: int = 1, length: int = 9) -> list[Any]:
    """Queries, keys and values as the model lays them: [batch, 2, length, 192, 192 and 128]."""
    random = torch.Generator().manual_seed(4)
    q, k, kv = (
        torch.randn(batch, *shape, generator=random)
        for shape in ((2, length, 192), (2, length, 192), (length, 2, 256))
    )
    k[..., 128:] = k[:, :1, :, 128:]
    return [one.to(torch.bfloat16) for one in (q, k)] + [kv.to(torch.bfloat16)[..., 128:].transpose(1, 2)]


def function(name: str) -> Any:
    return transformers.AttentionInterface()[name]


def test_one_sequence_is_taken_without_a_copy() -> None:
    kernel = mla.load(SPECS / "dsv3_bf16_sm90.yaml", backend="emulator")
    seen: list[int] = []

    class Recorder:
        plan, spec = kernel.plan, kernel.spec

        def __call__(self, *arrays: np.ndarray, **named: Any) -> Any:
            seen.extend(array.ctypes.data for array in arrays)
            return kernel(*arrays, **named)

    name = integration.register_attention("recorder", Recorder())
    query, key, value = states()
    function(name)(MLA, query, key, value, None)
    q, k, v = (one.data_ptr() for one in (query, key, value))
    assert seen == [q, q + 256, k, k + 256, v]


def test_softmax_scale_is_the_model_s() -> None:
    attention = function(registered())
    query, key, value = states()
    found = attention(MLA, query, key, value, None, scaling=0.3)[0]
    scores = (query.float() @ key.float().transpose(2, 3)) * 0.3
    scores = scores.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), float("-inf"))
    assert cosine(found, (scores.softmax(-1) @ value.float()).transpose(1, 2)) > 0.9999


def test_padding_gives_zeros() -> None:
    attention = function(registered())
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0, :4] = real[1, 7:] = False
    query, key, value = states(batch=2)
    key[~real[:, None].expand(-1, 2, -1)] = float("nan")
    found, weights = attention(MLA, query, key, value, real)
    assert weights is None
    assert found.shape == (2, 9, 2, 128)
    assert found[real].isfinite().all()
    assert found[real].any(dim=-1).all()
    assert not found[~real].any()


def failing(call: Any, *words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "help: " in str(caught.value)


@torch.no_grad()
def test_what_is_not_causal_attention_is_refused(example: ModuleType) -> None:
    name, model = registered(), example.small_model("cpu", 0)
    model.set_attn_implementation(name)
    tokens = torch.zeros(1, 6, dtype=torch.long)
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    failing(lambda: model(tokens, position_ids=packed, use_cache=False), "packed", "attention_mask")
    whole = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    failing(lambda: model(tokens, attention_mask=whole), "[1, 1, 6, 6]", "[batch, tokens]")
    attention = function(name)
    failing(lambda: attention(MLA, *states(), None, dropout=0.1), "dropout=0.1", "model.eval()")
    for option in ({"sliding_window": 8}, {"softcap": 30.0}, {"is_causal": False}, {"s_aux": tokens}):
        failing(lambda option=option: attention(MLA, *states(), None, **option), next(iter(option)))
    other = SimpleNamespace(qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256)
    failing(lambda: attention(other, *states(), None), "[192, 64, 256]", "[128, 64, 128]")
    failing(lambda: attention(SimpleNamespace(), *states(), None), "[None, None, None]")


def test_a_training_model_is_refused(example: ModuleType) -> None:
    model = example.small_model("cpu", 0)
    model.set_attn_implementation(registered())
    failing(lambda: model(torch.zeros(1, 6, dtype=torch.long)), "requires a gradient", "no_grad")


def test_a_spec_without_causal_mask_is_refused() -> None:
    kernel = mla.load(form("f16_full_f32"), backend="emulator")
    failing(lambda: integration.register_attention("full", kernel), "mask full", "causal")
