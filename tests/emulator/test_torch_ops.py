"""torch operators over emulated kernels: values, torch's own checks, torch.compile, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mla_codegen as mla
from mla_codegen.call.rules import INPUT_NAMES
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import LaunchError
from mla_codegen.spec import Spec
from tests.forms import form

torch = pytest.importorskip("torch")
torch_ops = pytest.importorskip("mla_codegen.torch_ops")
host_view = pytest.importorskip("mla_codegen.torch_views").host_view

OPS = torch.ops.mla_codegen
BF16 = {
    "name": "bf16",
    "arch": "sm_90a",
    "dtypes": {"qkv": "bf16"},
    "dims": {"nope": 128, "rope": 64, "v": 128},
}
SPECS = {
    "bf16": Spec.from_mapping({**BF16, "mask": "causal"}),
    "bf16_full_f32": Spec.from_mapping({**BF16, "dtypes": {"qkv": "bf16", "out": "f32"}}),
    "bf16_lse": form("bf16_lse"),
    "bf16_lse_group": form("bf16_lse_group"),
    "f16": form("f16"),
    "fp8_lse": form("fp8_lse"),
    "fp8_all_group": form("fp8_all_group"),
}
Q_LENS, KV_LENS = (5, 0, 2), (9, 4, 3)


@pytest.fixture(autouse=True)
def _own_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test registers and compiles its own kernels."""
    monkeypatch.setattr(torch_ops, "_kernels", {})
    yield
    torch._dynamo.reset()


def emulated(name: str) -> Any:
    return mla.load(SPECS[name], backend="emulator")


def cumulative(lens: tuple[int, ...]) -> Any:
    return torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32)


def problem(
    spec: Spec, q_lens: tuple[int, ...] = Q_LENS, kv_lens: tuple[int, ...] = KV_LENS
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments; codes for e4m3, since torch cannot compare its own e4m3."""
    heads = 2 * spec.heads.group if spec.heads.q == "any" else spec.heads.q
    random = torch.Generator().manual_seed(7)
    named = mla.quantize(
        spec,
        torch.randn(sum(q_lens), heads, 192, generator=random),
        torch.randn(sum(kv_lens), heads // spec.heads.group, 256, generator=random),
        torch.randn(sum(kv_lens), 64, generator=random),
        cu_seqlens_q=cumulative(q_lens),
        cu_seqlens_k=cumulative(kv_lens),
    )
    for name, value in named.items():
        if getattr(value, "dtype", None) == torch.float8_e4m3fn:
            named[name] = value.view(torch.uint8)
    return [named.pop(name) for name in INPUT_NAMES[:5]], named


def outputs(kernel: Any, arguments: tuple[list[Any], dict[str, Any]]) -> list[Any]:
    """Outputs of the kernel's own call on NumPy arrays."""
    positional, named = arguments
    arrays = {name: host_view(name, one) if hasattr(one, "dim") else one for name, one in named.items()}
    found = kernel(*(host_view("tensor", one) for one in positional), **arrays)
    return list(found) if isinstance(found, tuple) else [found]


def same(tensor: Any, array: np.ndarray) -> bool:
    view = host_view("tensor", tensor)
    return view.dtype == array.dtype and view.shape == array.shape and view.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", SPECS)
def test_operators_give_what_the_kernel_gives(name: str) -> None:
    kernel = emulated(name)
    key = torch_ops.register(kernel)
    positional, named = arguments = problem(SPECS[name])
    wanted = outputs(kernel, arguments)
    assert same(OPS.prefill(key, *positional, **named), wanted[0])
    given = [torch.empty(one.shape, dtype=getattr(torch, one.dtype.name)) for one in wanted]
    if kernel.lse_info is None:
        assert OPS.prefill_out(key, *positional, **named, out=given[0]) is None
    else:
        both = OPS.prefill_lse(key, *positional, **named)
        assert [same(*pair) for pair in zip(both, wanted, strict=True)] == [True, True]
        assert OPS.prefill_out(key, *positional, **named, out=given[0], lse=given[1]) is None
    assert [same(*pair) for pair in zip(given, wanted, strict=True)] == [True] * len(given)


@pytest.mark.parametrize("name", SPECS)
def test_torch_accepts_schema_fake_and_dispatch(name: str) -> None:
    key = torch_ops.register(emulated(name))
    positional, named = problem(SPECS[name])
    has_lse = SPECS[name].softmax.lse != "none"
    given = {"out": torch.zeros_like(OPS.prefill(key, *positional, **named))}
    torch.library.opcheck(OPS.prefill.default, (key, *positional), named)
    if has_lse:
        torch.library.opcheck(OPS.prefill_lse.default, (key, *positional), named)
        given["lse"] = torch.zeros_like(OPS.prefill_lse(key, *positional, **named)[1])
    torch.library.opcheck(OPS.prefill_out.default, (key, *positional), {**named, **given})


def test_views_are_taken_as_they_lie() -> None:
    """Slices of one query and one kv_b_proj output, k_rope as one head of an expanded view, a strided out."""
    kernel = emulated("bf16")
    key = torch_ops.register(kernel)
    (q_nope, q_rope, k_nope, k_rope, v), named = problem(SPECS["bf16"])
    wanted = OPS.prefill(key, q_nope, q_rope, k_nope, k_rope, v, **named)
    q, kv = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, v], -1)
    shared = k_rope[:, None].expand(-1, 2, -1)
    wide = torch.zeros(sum(Q_LENS), 2, 160, dtype=torch.bfloat16)
    OPS.prefill_out(
        key, q[..., :128], q[..., 128:], kv[..., :128], shared, kv[..., 128:], **named, out=wide[..., :128]
    )
    assert torch.equal(wide[..., :128], wanted)
    assert not wide[..., 128:].any()


def test_softmax_scale_and_capacity_arrive() -> None:
    kernel = emulated("bf16")
    key = torch_ops.register(kernel)
    positional, named = problem(SPECS["bf16"])
    changed = {**named, "softmax_scale": 0.5, "max_seqlen_q": 100}
    assert same(OPS.prefill(key, *positional, **changed), outputs(kernel, (positional, changed))[0])
    unwritten = torch.ones(sum(Q_LENS), 2, 128, dtype=torch.bfloat16)
    OPS.prefill_out(key, *positional, **{**named, "max_seqlen_q": 0}, out=unwritten)
    assert bool((unwritten == 1).all())
    default = OPS.prefill(key, *positional, **named)
    assert not torch.equal(default, OPS.prefill(key, *positional, **named, softmax_scale=0.5))
    assert torch.equal(default, OPS.prefill(key, *positional, **named, softmax_scale=192**-0.5))


def test_compiled_functions_give_the_same_bits() -> None:
    """Inductor with work of its own around the operators, one that writes in place among them."""
    key = torch_ops.register(emulated("bf16_lse"))
    positional, named = problem(SPECS["bf16_lse"])

    def layer(q: Any, rest: list[Any]) -> tuple[Any, Any]:
        q = q * 2
        out, lse = OPS.prefill_lse(key, q[..., :128], q[..., 128:], *rest, **named)
        again = torch.zeros_like(out)
        OPS.prefill_out(key, q[..., :128], q[..., 128:], *rest, **named, out=again, lse=lse.clone())
        return out + again, lse - 1

    q = torch.cat(positional[:2], -1)
    wanted = layer(q, positional[2:])
    found = torch.compile(layer, fullgraph=True)(q, positional[2:])
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_compiled_functions_hand_over_views_as_views() -> None:
    """Strides arrive as they are in eager mode."""
    kernel = emulated("bf16")
    seen: list[tuple[Any, ...]] = []

    class Recorder:
        plan = kernel.plan

        def __call__(self, *arrays: np.ndarray, **named: Any) -> Any:
            seen.append(tuple(array.strides for array in arrays))
            return kernel(*arrays, **named)

    key = torch_ops.register(Recorder(), "recorder")
    (q_nope, q_rope, k_nope, k_rope, v), named = problem(SPECS["bf16"])

    def layer(q: Any, kv: Any, k_rope: Any) -> Any:
        q, kv, shared = q + 1, kv + 1, (k_rope + 1)[:, None].expand(-1, 2, -1)
        return OPS.prefill(key, q[..., :128], q[..., 128:], kv[..., :128], shared, kv[..., 128:], **named)

    arguments = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, v], -1), k_rope
    wanted = layer(*arguments)
    found = torch.compile(layer, fullgraph=True)(*arguments)
    assert torch.equal(found, wanted)
    assert torch.Tag.needs_exact_strides in OPS.prefill.default.tags
    assert seen == [((768, 384, 2), (768, 384, 2), (1024, 512, 2), (128, 0, 2), (1024, 512, 2))] * 2


def test_other_lengths_are_compiled_for_once() -> None:
    """The first other length makes a graph for all lengths; max_seqlen_q changes with them."""
    from torch._dynamo.testing import CompileCounter

    kernel = emulated("bf16")
    key = torch_ops.register(kernel)
    counter = CompileCounter()

    def attention(positional: list[Any], named: dict[str, Any]) -> Any:
        return OPS.prefill(key, *positional, **named)

    compiled = torch.compile(attention, fullgraph=True, backend=counter)
    for q_lens, kv_lens in (((5, 2), (9, 3)), ((6, 3), (11, 7)), ((7, 2), (13, 9)), ((9, 4), (17, 6))):
        positional, named = arguments = problem(SPECS["bf16"], q_lens, kv_lens)
        assert same(compiled(positional, named), outputs(kernel, arguments)[0])
    assert counter.frame_count == 2


def test_fake_outputs_have_symbolic_lengths() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    key = torch_ops.register(emulated("bf16_lse_group"))
    positional, named = problem(SPECS["bf16_lse_group"])
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fakes = [mode.from_tensor(one, static_shapes=False) for one in positional]
        lengths = {name: mode.from_tensor(named[name]) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        out, lse = OPS.prefill_lse(key, *fakes, **lengths, max_seqlen_q=5)
    assert isinstance(out.shape[0], torch.SymInt)
    assert isinstance(lse.shape[1], torch.SymInt)
    assert (out.shape[0], lse.shape[0]) == (fakes[0].shape[0], fakes[0].shape[0])
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


def test_the_schema_has_every_argument_of_a_kernel() -> None:
    for op, extra in ((OPS.prefill, ()), (OPS.prefill_lse, ()), (OPS.prefill_out, ("out", "lse"))):
        names = tuple(argument.name for argument in op.default._schema.arguments)
        assert names == ("kernel", *INPUT_NAMES, "max_seqlen_q", "softmax_scale", *extra)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_host_views_share_memory(dtype: Any) -> None:
    tensor = torch.zeros(6, 4, dtype=getattr(torch, dtype.torch_dtype))[::2]
    view = host_view("v", tensor)
    assert view.dtype == numpy_dtype(dtype)
    assert view.strides == tuple(step * dtype.bytes for step in tensor.stride())
    view[2, 3] = 1.5
    assert tensor[2, 3].item() == 1.5


def failing(call: Any, *words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "help: " in str(caught.value)


def test_keys() -> None:
    kernel = emulated("bf16")
    positional, named = problem(SPECS["bf16"])
    failing(lambda: OPS.prefill("gone", *positional, **named), "'gone'", "registered are: none", "register(")
    failing(lambda: torch_ops.unregister("gone"), "'gone'")
    assert torch_ops.register(kernel) == torch_ops.register(kernel) == "bf16"
    assert torch_ops.register(kernel, "other") == "other"
    failing(lambda: OPS.prefill("gone", *positional, **named), "bf16, other")
    failing(lambda: torch_ops.register(emulated("f16"), "bf16"), "'bf16'", "unregister")
    torch_ops.unregister("bf16")
    failing(lambda: OPS.prefill("bf16", *positional, **named), "'bf16'")


def test_wrong_calls_are_refused_before_anything_runs() -> None:
    key, with_lse = torch_ops.register(emulated("bf16")), torch_ops.register(emulated("bf16_lse"))
    positional, named = problem(SPECS["bf16"])
    q_nope, *rest = positional
    out = torch.zeros_like(q_nope)
    failing(lambda: OPS.prefill_lse(key, *positional, **named), "'bf16'", "softmax.lse", "none")
    failing(lambda: OPS.prefill_out(with_lse, *positional, **named, out=out), "lse is missing", "'bf16_lse'")
    failing(lambda: OPS.prefill_out(key, *positional, **named, out=out, lse=out[0]), "lse is passed")
    failing(lambda: OPS.prefill(key, q_nope[0], *rest, **named), "[2, 128]", "[total_q, heads, 128]")
    failing(lambda: OPS.prefill(key, q_nope.half(), *rest, **named), "q_nope has dtype float16", "bf16")
    failing(lambda: OPS.prefill(key, q_nope.to(torch.complex64), *rest, **named), "q_nope", "complex64")
    failing(lambda: OPS.prefill(key, q_nope[:-1], *rest, **named), "q_rope has shape")
    failing(lambda: OPS.prefill_out(key, *positional, **named, out=out[:1]), "out has shape [1, 2, 128]")
    assert not out.any()


def test_gradients_are_refused_and_not_lost() -> None:
    key = torch_ops.register(emulated("bf16"))
    (q_nope, *rest), named = problem(SPECS["bf16"])
    wanted = OPS.prefill(key, q_nope, *rest, **named)
    rest[-1].requires_grad_()
    call = lambda: OPS.prefill(key, q_nope, *rest, **named)  # noqa: E731
    failing(call, "v requires a gradient", "no_grad")
    with torch.no_grad():
        assert torch.equal(call(), wanted)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="v requires a gradient"):
        compiled()


def test_a_gpu_kernel_refuses_cpu_tensors() -> None:
    key = torch_ops.register(mla.load(SPECS["bf16"]), "gpu")
    positional, named = problem(SPECS["bf16"])
    failing(lambda: OPS.prefill(key, *positional, **named), "q_nope is a torch tensor on cpu", "emulator")
