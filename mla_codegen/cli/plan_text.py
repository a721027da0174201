"""A plan as tables for people."""

from __future__ import annotations

import click

from mla_codegen.cli.output import print_table
from mla_codegen.plan.model import Plan, Variant


def print_plan(plan: Plan) -> None:
    """Choices, then for each variant shared memory, barriers, roles and tensor maps."""
    click.echo(f"{plan.name} for {plan.arch}, spec digest {plan.spec_digest}")
    validated = ", ".join(plan.validated) or "nothing yet"
    click.echo(f"validated by: {validated}\n")
    print_table("choices", ("field", "value", "rule"), [(c.field, c.value, c.rule) for c in plan.choices])
    for variant in plan.variants:
        _print_variant(variant)


def _print_variant(variant: Variant) -> None:
    launch = variant.launch
    click.echo(
        f"variant {variant.name}: {launch.block_m} query rows x {launch.block_n} keys, {launch.threads} "
        f"threads, {launch.smem_bytes} B of shared memory ({variant.smem.limit_bytes} B offered)\n"
    )
    _print_smem(variant)
    _print_barriers(variant)
    print_table(
        "roles",
        ("role", "warps", "registers", "does", "waits on", "signals"),
        [
            (r.name, _range(r.first_warp, r.num_warps), r.registers, r.does, r.waits_on, r.signals)
            for r in variant.roles
        ],
    )
    print_table(
        "tensor maps",
        ("map", "argument", "dtype", "axes", "box", "swizzle", "bytes", "issues"),
        [
            (
                m.name,
                m.argument,
                m.dtype,
                _joined(m.axes),
                _joined(m.box),
                m.swizzle_bytes,
                m.issue_bytes,
                m.issues,
            )
            for m in variant.tensor_maps
        ],
    )


def _print_smem(variant: Variant) -> None:
    print_table(
        "shared memory",
        ("offset", "bytes", "field", "alignment", "holds", "live"),
        [
            (
                f.offset_bytes,
                f.size_bytes,
                f"{f.element} {f.name}[{f.count}]",
                f.align_bytes,
                f.content,
                f.live,
            )
            for f in variant.smem.fields
        ],
    )


def _print_barriers(variant: Variant) -> None:
    print_table(
        "mbarriers",
        ("barrier", "stages", "arrivals", "tx bytes", "arrives", "waits"),
        [(b.name, b.stages, b.arrivals, b.tx_bytes, b.arrives, b.waits) for b in variant.mbarriers],
    )
    print_table(
        "named barriers",
        ("id", "name", "threads", "for"),
        [(b.id, b.name, b.threads, b.comment) for b in variant.named_barriers],
    )


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _joined(values: tuple[object, ...]) -> str:
    return " x ".join(str(value) for value in values)
