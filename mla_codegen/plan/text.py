"""The plan comment: tables and the schedule as lines of ASCII, at most ``MAX_COLUMNS`` wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen.plan.model import Mbarrier, NamedBarrier, Role, Smem
from mla_codegen.plan.tiles import Tiles

if TYPE_CHECKING:
    from mla_codegen.spec import Spec

MAX_COLUMNS = 105
"""Of a line behind its comment mark."""


def smem_table(smem: Smem) -> tuple[str, ...]:
    """Offset, bytes, field, content."""
    rows = [("offset", "bytes", "field", "what, and while it is live")]
    for field in smem.fields:
        rows.append((str(field.offset_bytes), str(field.size_bytes), field.name, f"live {field.live}"))
    rows.append((str(smem.used_bytes), "", "end", f"sizeof {smem.sizeof_bytes}"))
    return columns(rows)


def role_table(roles: tuple[Role, ...]) -> tuple[str, ...]:
    """Warps, registers, duty and barriers of each role."""
    lines = columns(
        [("role", "warps", "threads", "registers", "does")]
        + [
            (
                role.name,
                _warps(role),
                str(32 * role.num_warps),
                str(role.registers),
                role.does,
            )
            for role in roles
        ]
    )
    waits = columns(
        [("role", "waits on", "signals"), *((role.name, role.waits_on, role.signals) for role in roles)]
    )
    if max(len(line) for line in waits) > MAX_COLUMNS:
        waits = (
            *columns([("role", "waits on"), *((role.name, role.waits_on) for role in roles)]),
            *columns([("role", "signals"), *((role.name, role.signals) for role in roles)]),
        )
    return (*lines, *waits)


def barrier_table(mbarriers: tuple[Mbarrier, ...], named: tuple[NamedBarrier, ...]) -> tuple[str, ...]:
    """mbarriers, then named barriers."""
    rows = [("barrier", "stages", "arrivals", "bytes", "signalled by", "waited on by")]
    for barrier in mbarriers:
        rows.append(
            (
                barrier.name,
                str(barrier.stages),
                str(barrier.arrivals),
                str(barrier.tx_bytes) if barrier.tx_bytes else "-",
                barrier.arrives,
                barrier.waits,
            )
        )
    return (*columns(rows), *(f"{item.name} (bar {item.id}): {item.comment}" for item in named))


def formula(spec: Spec, *, lift_log2: float, scales_p: bool) -> tuple[str, ...]:
    """What the kernel computes; P is lifted by up to 2^lift_log2, and may have the scales of V in it."""
    mask = "j <= i + kv_len - q_len, else hidden" if spec.mask == "causal" else "every key is visible"
    p_type = spec.dtypes.qkv
    lift = f" after multiplication by up to 2^{lift_log2:g}" if p_type == "e4m3" else ""
    if scales_p:
        lift = f", with v_scale in it,{lift}"
    index = {"none": "", "tensor": "", "head": "[h]", "token": "[j]", "token_head": "[j,h]"}
    v_scale = "" if spec.scales.v == "none" else f" * v_scale{index[spec.scales.v]}"
    return (
        _score(spec),
        f"z[i,j] = softmax_scale * s[i,j];  {mask}",
        f"o[i,:] = sum_j softmax(z[i,:])[j] * v[j,:]{v_scale};  a row that sees no key is 0",
        f"P, the numerators of softmax, is rounded to {p_type}{lift}",
    )


def _score(spec: Spec) -> str:
    nope, rope = "q_nope[i].k_nope[j]", "q_rope[i].k_rope[j]"
    factors = "".join(f" * {name}" for name in _scale_names(spec))
    if not spec.dims.rope:
        return f"s[i,j] = {nope}{factors}"
    if spec.scales.rope == "raw":
        return f"s[i,j] = {nope}{factors} + {rope}"
    return f"s[i,j] = ({nope} + {rope}){factors}" if factors else f"s[i,j] = {nope} + {rope}"


def _scale_names(spec: Spec) -> list[str]:
    """Scales of a score, with what they depend on."""
    index = {"tensor": "", "head": "[h]", "token": "[{0}]", "token_head": "[{0},h]"}
    forms = (("q_scale", spec.scales.q, "i"), ("k_scale", spec.scales.k, "j"))
    return [name + index[form].format(token) for name, form, token in forms if form != "none"]


def first_token(kind: str, *, dense: bool) -> str:
    """What the first token of a CTA is counted from."""
    if dense:
        return "0: the sequence is a coordinate of its own"
    return f"first token of the sequence in the {kind} tensors"


def schedule(tiles: Tiles) -> tuple[str, ...]:
    """A column per role, rows in time."""
    rows = _turns_schedule(tiles) if tiles.fp8 else _ping_pong_schedule()
    lines = list(columns(rows))
    if tiles.flush_blocks:
        when = f"Every {tiles.flush_blocks} blocks" if tiles.lazy_softmax else "In every unmasked block"
        lines.append(f"{when} the consumers flush O to its master in shared memory.")
    if tiles.raw_rope:
        lines.append("Qn, Kn are Q_nope, K_nope; Qr, Kr are Q_rope, K_rope, which have no scales.")
    if tiles.scales_p:
        lines.append("P has the scales of V in it, which lie beside those of K.")
    lines += ["", *_turns(tiles)]
    return tuple(lines)


def _turns_schedule(tiles: Tiles) -> list[tuple[str, ...]]:
    consumer = "consumer (the bracketed in its turn)"
    product, scale = "Q*K", "scale; " if tiles.scales_columns else ""
    if tiles.raw_rope:
        product, scale = "Qn*Kn", "scale; S += Qr*Kr; "
    first = f"{scale}release K(n); mask, softmax(n) -> P(n)"
    softmax = f"{scale}release K(n-1); mask, softmax(n-1)"
    if tiles.scales_p:
        first = f"{scale}mask, softmax(n) -> P(n); release K(n)"
        softmax = f"{scale}mask, softmax(n-1); release K(n-1)"
    rows = [
        ("load", "transpose" if tiles.transposes_v else "tail", consumer),
        ("Q, K(n)", "", f"wait Q, K(n): S = {product}(n)"),
        ("K(n-1)", "", first),
        ("V(n)", "V(n)", "wait V(n), K(n-1), turn"),
        ("K(n-2)", "", f"[O += P(n)*V(n), S = {product}(n-1); wait]; pass the turn on"),
        ("V(n-1)", "V(n-1)", f"release V(n); {softmax}"),
        ("...", "...", "..."),
        ("", "V(0)", "O += P(0)*V(0); O / row sum -> out"),
    ]
    if tiles.transposes_v:
        return [(load, f"{v} -> transposed" if "V(" in v else v, does) for load, v, does in rows]
    only = {"V(n)": "clear V(n) beyond the end", "tail": "tail"}
    return [(load, only.get(v, ""), does) for load, v, does in rows]


def _ping_pong_schedule() -> list[tuple[str, ...]]:
    return [
        ("load", "tail", "consumer (the bracketed in its turn)"),
        ("Q, K(n)", "", "wait Q, K(n): S = Q*K(n); release K(n); mask, softmax(n) -> P(n)"),
        ("K(n-1)", "", "wait K(n-1), turn [issue S = Q*K(n-1)"),
        ("V(n)", "clear V(n) beyond the end", "wait V(n): issue O += P(n)*V(n)]; pass the turn on"),
        ("K(n-2)", "", "wait S; release K(n-1); mask, softmax(n-1) beside P(n)*V(n)"),
        ("V(n-1)", "", "wait O; release V(n); O rescaled, P(n-1) packed"),
        ("...", "", "..."),
        ("", "", "O += P(0)*V(0); O / row sum -> out"),
    ]


def _turns(tiles: Tiles) -> list[str]:
    """Who has the tensor core: each warpgroup's softmax runs beside the other's products."""
    lines = []
    for consumer in range(tiles.consumers):
        lead = "        " * consumer
        products = "[PV QK]" if tiles.fp8 else "[QK PV]"
        body = products + "-softmax-" + "--" * (4 * (tiles.consumers - 2))
        lines.append(f"consumer {consumer}: {lead}{body}{products}-softmax-..."[:100])
    return lines


def _warps(role: Role) -> str:
    last = role.first_warp + role.num_warps - 1
    return str(last) if role.num_warps == 1 else f"{role.first_warp}-{last}"


def columns(rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Left-aligned columns, two blanks apart, without trailing blanks."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return tuple(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
