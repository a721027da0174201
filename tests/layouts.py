"""Plans and arrays of every layout of a call: ragged or dense queries and keys, V by rows or transposed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mla_codegen.plan.model import Argument, ParamField, Plan, TensorMap, Variant

GROUP = 2
_CODES = {"e4m3": "u1", "bf16": "u2", "f32": "f4", "i32": "i4"}
_SCALE_AXES = {"tensor": (), "head": ("head",), "token": ("token",), "token_head": ("token", "head")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What `layout`, `dims.rope`, `scales` and `softmax` of a spec say; scales as `q`, `k`, `v` -> form."""

    q: str = "ragged"
    kv: str = "ragged"
    v: str = "rows"
    rope: int = 64
    scales: Mapping[str, str] = field(default_factory=lambda: {"q": "token_head", "k": "token", "v": "head"})
    lse: str = "head_token"

    @property
    def name(self) -> str:
        return f"q_{self.q}-kv_{self.kv}-v_{self.v}-rope_{self.rope}"

    def sizes(self, *, q_len: int = 35, kv_len: int = 45, batch: int = 2, heads: int = 8) -> dict[str, int]:
        """Extents of the symbols, for sequences of equal lengths."""
        columns = 16 * (batch * kv_len // 16 + batch) if self.kv == "ragged" else (kv_len + 15) // 16 * 16
        return {
            "batch": batch, "batch + 1": batch + 1, "heads": heads, "kv_heads": heads // GROUP,
            "total_q": batch * q_len, "total_k": batch * kv_len, "q_len": q_len, "kv_len": kv_len,
            "v_columns": columns,
        }  # fmt: skip


LAYOUTS = [
    Layout(q=q, kv=kv, v=v, rope=rope)
    for q, kv, v, rope in itertools.product(
        ("ragged", "dense"), ("ragged", "dense"), ("rows", "transposed"), (64, 0)
    )
]
DENSE = Layout(q="dense", kv="dense")


def plan_with(plan: Plan, layout: Layout) -> Plan:
    """The plan as one of another layout: its arguments, Params and tensor maps, and what its spec says."""
    arguments = tuple(_arguments(layout))
    variant = dataclasses.replace(
        plan.variants[0],
        params=tuple(_params(layout, arguments)),
        tensor_maps=tuple(_maps(plan.variants[0], arguments)),
    )
    spec = {
        **plan.spec,
        "dims": {**plan.spec["dims"], "rope": layout.rope},
        "heads": {"q": "any", "group": GROUP},
        "softmax": {**plan.spec["softmax"], "lse": "natural", "lse_layout": layout.lse},
    }
    return dataclasses.replace(plan, spec=spec, arguments=arguments, variants=(variant,))


def arrays_of(plan: Plan, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """A contiguous array for each argument; scales are 1, and lengths those of equal sequences."""
    arrays = {}
    for item in plan.arguments:
        shape = tuple(sizes[axis] if axis in sizes else int(axis) for axis in item.axes)
        raw = np.zeros(int(np.prod(shape)) * np.dtype(_CODES[item.dtype]).itemsize + 512, np.uint8)
        start = -raw.ctypes.data % 256
        array = raw[start : start + raw.size - 512].view(_CODES[item.dtype]).reshape(shape)
        if item.kind == "scale":
            array[...] = 1
        arrays[item.name] = array
    for name, tokens in (("cu_seqlens_q", "q_len"), ("cu_seqlens_k", "kv_len")):
        if name in arrays:
            arrays[name][:] = np.arange(sizes["batch + 1"]) * sizes[tokens]
    return arrays


def _tokens(layout: Layout, side: str) -> tuple[str, ...]:
    if side == "q":
        return ("total_q",) if layout.q == "ragged" else ("batch", "q_len")
    return ("total_k",) if layout.kv == "ragged" else ("batch", "kv_len")


def _arguments(layout: Layout) -> Iterator[Argument]:
    q, k = _tokens(layout, "q"), _tokens(layout, "k")
    rope = str(layout.rope)
    v_axes = (*k, "kv_heads", "128")
    if layout.v == "transposed":
        v_axes = (*k[:-1], "kv_heads", "128", "v_columns")
    rows = [
        ("q_nope", "e4m3", (*q, "heads", "128"), "tensor"),
        ("q_rope", "bf16", (*q, "heads", rope), "tensor"),
        ("k_nope", "e4m3", (*k, "kv_heads", "128"), "tensor"),
        ("k_rope", "bf16", (*k, "1", rope), "tensor"),
        ("v", "e4m3", v_axes, "tensor"),
    ]
    rows = [row for row in rows if layout.rope or not row[0].endswith("_rope")]
    for side, form in layout.scales.items():
        axes = {"token": q if side == "q" else k, "head": ("heads" if side == "q" else "kv_heads",)}
        symbols = tuple(symbol for kind in _SCALE_AXES[form] for symbol in axes[kind])
        rows.append((f"{side}_scale", "f32", symbols or ("1",), "scale"))
    if layout.q == "ragged":
        rows.append(("cu_seqlens_q", "i32", ("batch + 1",), "lengths"))
    if layout.kv == "ragged":
        rows.append(("cu_seqlens_k", "i32", ("batch + 1",), "lengths"))
    rows.append(("out", "bf16", (*q, "heads", "128"), "output"))
    lse = (*q[:-1], "heads", q[-1]) if layout.lse == "head_token" else (*q, "heads")
    rows.append(("lse", "f32", lse, "output"))
    for name, dtype, axes, kind in rows:
        yield Argument(name=name, dtype=dtype, axes=axes, kind=kind, comment="")


def axis_of(argument: Argument, kind: str) -> int | None:
    """The axis of tokens, heads or the batch, counted without the one head of k_rope."""
    symbols = {"token": ("total_q", "total_k", "q_len", "kv_len"), "head": ("heads", "kv_heads")}
    axes = [axis for axis in argument.axes if axis != "1"]
    found = [index for index, axis in enumerate(axes) if axis in symbols.get(kind, (kind,))]
    return found[0] if found else None


def _params(layout: Layout, arguments: tuple[Argument, ...]) -> Iterator[ParamField]:
    def member(ctype: str, name: str, axis: int | None = None) -> ParamField:
        return ParamField(ctype=ctype, name=name, comment="", axis=axis)

    for item in arguments:
        if item.kind == "tensor":
            for kind in ("head", "batch"):
                yield member("u32", f"{item.name}_{kind}_step", axis_of(item, kind))
            continue
        yield member("u8*", item.name)
        if item.kind != "lengths":
            for kind in ("token", "head", "batch"):
                yield member("i64", f"{item.name}_{kind}_stride", axis_of(item, kind))
    if layout.q == "dense":
        yield member("i32", "q_len")
    if layout.kv == "dense":
        yield member("i32", "kv_len")
    for name in ("batch", "heads", "query_tiles"):
        yield member("i32", name)
    yield member("float", "scale_log2")


def _maps(variant: Variant, arguments: tuple[Argument, ...]) -> Iterator[TensorMap]:
    """The variant's maps over the new arguments, with a dimension for the batch, which ragged ones lack."""
    by_name = {item.name: item for item in arguments}
    for item in variant.tensor_maps:
        argument = by_name.get(item.argument)
        if argument is None:
            continue
        axes = [axis for axis in argument.axes if axis != "1"]
        depth, tokens = axes.index(argument.axes[-1]), axis_of(argument, "token")
        order, dims = ["depth", "tokens"], [depth, tokens]
        if "v_columns" in axes:
            order, dims = ["tokens", "depth"], [len(axes) - 1, len(axes) - 2]
        outer = [axis_of(argument, kind) for kind in ("head", "batch")]
        dims += [-1 if axis is None else axis for axis in outer]
        yield dataclasses.replace(item, axes=(*order, "heads", "batch"), dims=tuple(dims), box=(*item.box, 1))
