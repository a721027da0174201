"""The tables of docs/blackwell.md, made from the configurations themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from mla_codegen.arch import ARCHS
from mla_codegen.plan.sm100.body import Body, plan_kernel
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import BLOCKSCALE, PER_TOKEN_SCALE, Operands, generic
from mla_codegen.plan.sm100.seed_storage import seed_storage, unified_mbars
from mla_codegen.plan.sm100.selection import select_mla_prefill_config

_LIMITS = ARCHS["sm_100a"]
_MARKS = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_TYPES = (
    ("e4m3, bf16 rope, scales", PER_TOKEN_SCALE),
    ("bf16", generic("bf16")),
    ("bf16, e4m3 rope", BLOCKSCALE),
    ("e4m3", generic("e4m3")),
)
_DEPTHS = ((128, 64, 128), (64, 64, 64), (128, 64, 64), (128, 64, 192), (192, 64, 192), (192, 64, 256))
_SEED_STAGES = range(2, 8)


def with_tables(page: str) -> str:
    """The page with every table between its marks as the code gives it now; text outside stays.

    A mark is ``<!-- table: NAME -->``, and the table ends at ``<!-- end of table -->``; an unknown name is a
    KeyError.
    """
    return _MARKS.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", page)


def choices_table() -> str:
    """What the selection makes of each shape, in 2Q and in 1Q."""
    rows = []
    for name, operands in _TYPES:
        for nope, rope, v in _DEPTHS:
            chosen = select_mla_prefill_config(
                operands=operands,
                limits=_LIMITS,
                num_q_heads=128,
                group=1,
                depth=nope + rope,
                v_depth=v,
                rope_depth=rope,
            )
            shape = (name, f"{nope}/{rope}/{v}")
            if chosen.faults:
                rows.append((*shape, "none", *["-"] * 11))
                continue
            kernel = plan_kernel(chosen.config)
            rows += [
                (*shape, chosen.rule, *_choice(body), _number(kernel.launch.smem_bytes))
                for body in kernel.bodies
            ]
    heads = ("types", "nope/rope/v", "rule", "body", "keys", "ring", "stages", "rope bufs", "scale bufs")
    sizes = ("TMEM", "seed's mbarriers", "seed's bytes", "mbarriers", "launch bytes")
    return _table((*heads, *sizes), rows)


def _choice(body: Body) -> tuple[object, ...]:
    ring = body.ring
    return (
        f"{body.config.num_q}Q",
        body.config.block_n,
        ring.kind.value,
        ring.stages,
        ring.rope_buffers or "-",
        ring.k_scale_buffers or "-",
        body.tmem.used_cols,
        body.config.num_mbars,
        _number(body.config.smem_used_bytes),
        body.num_mbars,
    )


def seed_sizes_table() -> str:
    """Size of the seed's struct by stages, with the seed's own barriers and alignment."""
    rows = []
    for stages in _SEED_STAGES:
        row: list[object] = [stages]
        for num_q in (2, 1):
            fa4 = _deepseek(num_q).fa4
            bars = unified_mbars(fa4, stages)
            storage = seed_storage(fa4, stages=stages, num_mbars=bars)
            fits = storage.smem.sizeof_bytes <= storage.smem.limit_bytes
            row += [bars, _number(storage.seed_sizeof_bytes), "yes" if fits else "no"]
        rows.append(tuple(row))
    return _table(("stages", "2Q mbarriers", "2Q bytes", "fits", "1Q mbarriers", "1Q bytes", "fits"), rows)


def fields_table(layout: str) -> str:
    """Fields of ``MLASmemStorage`` for DeepSeek, a column pair for each body."""
    bodies = plan_kernel(_deepseek(2), layout=layout).bodies
    names = [field.name for field in bodies[0].storage.smem.fields]
    rows = []
    for index, name in enumerate(names):
        cells: list[object] = [f"`{name}`"]
        for body in bodies:
            field = body.storage.smem.fields[index]
            cells += [_number(field.offset_bytes), _number(field.size_bytes)]
        rows.append((*cells, bodies[0].storage.smem.fields[index].live))
    for what in ("used", "sizeof"):
        cells = [what]
        for body in bodies:
            cells += ["", _number(getattr(body.storage.smem, f"{what}_bytes"))]
        rows.append((*cells, ""))
    heads = [head for body in bodies for head in (f"{body.config.num_q}Q offset", "bytes")]
    return _table(("field", *heads, "live"), rows)


def constants_table() -> str:
    """The seed's ten constants in both layouts."""
    kernels = [*plan_kernel(_deepseek(2)).bodies, *plan_kernel(_deepseek(2), layout="seed").bodies]
    columns = [{c.name: c.value for c in body.storage.smem.constants} for body in kernels]
    rows = [(f"`{name}`", *(_number(column[name]) for column in columns)) for name in columns[0]]
    return _table(("constant", "auto, 2Q", "auto, 1Q", "seed, 2Q"), rows)


def regions_table() -> str:
    """What lies inside of the fields of the auto layout."""
    rows = [
        (
            f"{body.config.num_q}Q",
            f"`{region.name}`",
            region.field,
            _number(region.offset_bytes),
            f"{region.count} x {_number(region.size_bytes)}",
            _number(region.stride_bytes),
            f"{region.swizzle_bytes}B" if region.swizzle_bytes else "none",
            f"over {region.alias_of}, {region.live}" if region.alias_of else region.live,
        )
        for body in plan_kernel(_deepseek(2)).bodies
        for region in body.storage.regions
    ]
    return _table(("body", "region", "field", "offset", "bytes", "stride", "swizzle", "live"), rows)


def barriers_table() -> str:
    """mbarriers of both bodies of DeepSeek."""
    rows = [
        (
            f"{body.config.num_q}Q",
            f"`{barrier.name}`",
            barrier.seed_name or "ours",
            barrier.stages,
            _arrivals(barrier.arrivals),
            ", ".join(map(_number, barrier.tx_bytes)) or "-",
            ", ".join(barrier.arrives),
            ", ".join(barrier.waits),
            barrier.comment,
        )
        for body in plan_kernel(_deepseek(2)).bodies
        for barrier in body.mbarriers
    ]
    heads = ("body", "mbarrier", "seed", "stages", "arrivals", "bytes a phase", "arrives", "waits", "meaning")
    return _table(heads, rows)


def tmem_table() -> str:
    """Tensor-memory columns of the 1Q body of DeepSeek, which has every region that 2Q has."""
    rows = [
        (
            f"`{region.name}`",
            f"{region.first_col} to {region.first_col + region.cols - 1}",
            region.dtype,
            region.alias_of or "-",
            region.live,
        )
        for region in plan_kernel(_deepseek(2)).bodies[1].tmem.regions
    ]
    return _table(("region", "columns", "type", "over", "live"), rows)


def roles_table() -> str:
    """Roles with 512 threads and, where there is a single O and no scales, with 384."""
    rows = []
    for config in (_deepseek(2), _wide()):
        threads = config.num_threads
        for role in plan_kernel(config).bodies[0].roles:
            last = role.first_warp + role.num_warps - 1
            warps = f"{role.first_warp} to {last}" if last > role.first_warp else role.first_warp
            rows.append((threads, role.name, warps, role.registers, role.does))
    return _table(("threads", "role", "warps", "registers", "does"), rows)


def products_table() -> str:
    """Chains of tcgen05.mma of the 2Q body for each set of types."""
    rows = []
    for name, operands in _TYPES:
        body = plan_kernel(_config(operands, (128, 64, 128))).bodies[0]
        rows += [
            (
                name,
                product.name,
                product.kind,
                f"{product.m} x {product.n} x {product.k}",
                product.steps,
                f"0x{product.instruction_descriptor:08x}",
                product.comment,
            )
            for product in body.products
        ]
    return _table(("types", "product", "kind", "M x N x K", "steps", "descriptor", "what"), rows)


def _config(operands: Operands, depths: tuple[int, int, int], num_q: int = 2) -> MLAConfig:
    nope, rope, v = depths
    return MLAConfig(
        operands=operands,
        limits=_LIMITS,
        num_q_heads=128,
        group=1,
        depth=nope + rope,
        rope_depth=rope,
        v_depth=v,
        num_q=num_q,
    )


def _deepseek(num_q: int) -> MLAConfig:
    return _config(PER_TOKEN_SCALE, (128, 64, 128), num_q)


def _wide() -> MLAConfig:
    return select_mla_prefill_config(
        operands=generic("bf16"), limits=_LIMITS, num_q_heads=128, group=1, depth=256, v_depth=256
    ).config


def _arrivals(arrivals: tuple[int, ...]) -> str:
    return str(arrivals[0]) if len(set(arrivals)) == 1 else ", ".join(map(str, arrivals))


def _number(value: int) -> str:
    return f"{value:,}"


def _table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [tuple(heads), *map(tuple, rows)]
    texts = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + " --- |" * len(lines[0]), *texts[1:], ""])


TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "choices": choices_table,
        "seed-sizes": seed_sizes_table,
        "seed-fields": lambda: fields_table("seed"),
        "auto-fields": lambda: fields_table("auto"),
        "constants": constants_table,
        "regions": regions_table,
        "barriers": barriers_table,
        "tmem": tmem_table,
        "roles": roles_table,
        "products": products_table,
    }
)
"""Every table by the name that its mark has."""
