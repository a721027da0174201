"""The sizes of a call, from the arrays that decide them, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mla_codegen.call.faults import fault
from mla_codegen.call.forms import ArrayForm
from mla_codegen.call.rules import ArgumentRule, CallRules, batch_sources
from mla_codegen.errors import Diagnostic
from mla_codegen.tensors import dense_v_width, ragged_v_width

_SOURCES = {"total_q": "q_nope", "q_len": "q_nope", "total_k": "k_nope", "kv_len": "k_nope"}
"""The argument that decides a number of tokens."""


def size_faults(rules: CallRules, forms: Mapping[str, ArrayForm]) -> Iterator[Diagnostic]:
    """Heads that the spec does not have or that are no whole groups, or arguments of different batches."""
    heads = _extent(rules.rule("q_nope"), forms["q_nope"], "heads")
    if rules.heads is not None and heads != rules.heads:
        message = f"q_nope has {heads} heads, heads.q {rules.heads} of the spec is needed"
        yield fault("heads", message, "pass all heads, or build a spec with heads.q: any")
    elif heads % rules.group or heads == 0:
        yield fault(
            "heads",
            f"q_nope has {heads} heads, a multiple of heads.group {rules.group} above 0 is needed",
            "pass all heads of a group",
        )
    names = batch_sources({rule.name: rule.axes for rule in rules.arguments})
    empty = [name for name in names if rules.rule(name).axes[0] == "batch + 1" and forms[name].is_empty]
    for name in empty:
        yield fault(
            "cu-seqlens", f"{name} has 0 elements, batch + 1 are needed", "pass [0] for an empty batch"
        )
    first, *others = names
    for name in others if not empty else ():
        if _batch(rules, forms, name) != _batch(rules, forms, first):
            yield fault(
                "batch",
                f"{_batch_text(rules, forms, name)}, {_batch_text(rules, forms, first)}, one batch is needed",
                f"pass as many sequences in {name} as in {first}",
            )


def call_sizes(rules: CallRules, forms: Mapping[str, ArrayForm]) -> dict[str, int]:
    """The value of each symbol in the axes of arguments that have no `size_faults`."""
    heads = _extent(rules.rule("q_nope"), forms["q_nope"], "heads")
    batch = _batch(rules, forms, rules.batch_source)
    sizes = {"batch": batch, "batch + 1": batch + 1, "heads": heads, "kv_heads": heads // rules.group}
    for symbol, name in _SOURCES.items():
        if symbol in rules.rule(name).axes:
            sizes[symbol] = _extent(rules.rule(name), forms[name], symbol)
    if "v_columns" in rules.rule("v").axes:
        ragged = "total_k" in sizes
        sizes["v_columns"] = (
            ragged_v_width(batch, sizes["total_k"]) if ragged else dense_v_width(sizes["kv_len"])
        )
    return sizes


def origins(rules: CallRules, rule: ArgumentRule) -> str:
    """Where the sizes of an argument come from, as a sentence; empty where they are its own."""
    by_source: dict[str, list[str]] = {}
    for axis in rule.axes:
        symbol = "batch" if axis == "batch + 1" else axis
        source = _origin(rules, symbol)
        if source is not None and source != f"that of {rule.name}":
            by_source.setdefault(source, []).append(symbol)
    return ", ".join(_origin_text(symbols, source) for source, symbols in by_source.items())


def _origin_text(symbols: list[str], source: str) -> str:
    *others, last = symbols
    if not others:
        return f"{last} is {source}"
    return f"{', '.join(others)} and {last} are {source.replace('that of', 'those of')}"


def _origin(rules: CallRules, symbol: str) -> str | None:
    ragged_v = "total_k" in rules.rule("k_nope").axes
    known = {
        **{tokens: f"that of {name}" for tokens, name in _SOURCES.items()},
        "batch": f"that of {rules.batch_source}",
        "heads": "that of q_nope",
        "kv_heads": "heads of q_nope / heads.group",
        "v_columns": "16 * (total_k // 16 + batch)" if ragged_v else "16 * ceil(kv_len / 16)",
    }
    return known.get(symbol)


def _batch(rules: CallRules, forms: Mapping[str, ArrayForm], name: str) -> int:
    return forms[name].shape[0] - (rules.rule(name).axes[0] == "batch + 1")


def _batch_text(rules: CallRules, forms: Mapping[str, ArrayForm], name: str) -> str:
    return f"{name} of shape {list(forms[name].shape)} has a batch of {_batch(rules, forms, name)}"


def _extent(rule: ArgumentRule, form: ArrayForm, symbol: str) -> int:
    return form.shape[rule.axes.index(symbol)]
