"""The options that describe a random problem, shared by `run` and `emulate`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mla_codegen.judge import Problem
from mla_codegen.problems import DATA_KINDS

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Lengths(click.ParamType):
    """One length or several with commas between: `131,0,7`."""

    name = "lengths"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(
                f"{value!r} must be lengths of 0 or more with commas between, such as 131,0,7", param, ctx
            )
        return tuple(int(part) for part in parts)


def problem_options(*, schedules: int, schedules_help: str) -> Callable[[FunctionT], FunctionT]:
    """Adds the options of a problem, which the command gets as `problem`, and schedules and as_json."""
    options = (
        click.option(
            "--batch", type=click.IntRange(min=1), help="Sequences [default: as many as lengths are given]"
        ),
        click.option(
            "--heads",
            type=click.IntRange(min=1),
            help="Query heads [default: the spec's, else max(2, group)]",
        ),
        click.option(
            "--q-len", type=Lengths(), default="128", show_default=True, help="Query lengths, one or a list."
        ),
        click.option(
            "--kv-len", type=Lengths(), default="256", show_default=True, help="Key lengths, one or a list."
        ),
        click.option(
            "--data", type=click.Choice(DATA_KINDS), default="normal", show_default=True, help="Kind of data."
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the data."
        ),
        click.option(
            "--schedules",
            type=click.IntRange(min=1),
            default=schedules,
            show_default=True,
            help=schedules_help,
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    )

    def decorate(command: FunctionT) -> FunctionT:
        @functools.wraps(command)
        def with_problem(
            *,
            batch: int | None,
            heads: int | None,
            q_len: tuple[int, ...],
            kv_len: tuple[int, ...],
            data: str,
            seed: int,
            **others: Any,
        ) -> Any:
            problem = Problem(q_lens=q_len, kv_lens=kv_len, batch=batch, heads=heads, data=data, seed=seed)
            return command(problem=problem, **others)

        wrapped: Any = with_problem
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate
