"""Turns what the models refuse into diagnostics in words of our own, each with its dotted field."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping

from annotated_types import Ge, Gt, Le, MultipleOf
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from mla_codegen.errors import Diagnostic
from mla_codegen.spec_rules import Lookup, UnknownValue

MAX_SHOWN_CHARS = 60
MAX_SHOWN_BITS = 180

_EXAMPLES: dict[str, str] = {
    "WindowMask": "{window: [left, right]}",
    "ChunkMask": "{chunk: tokens}",
    "PrefixLmMask": "{prefix_lm: true}",
    "Paged": "{paged: tokens}",
}


def section_of(annotation: object) -> type[BaseModel] | None:
    """The model of a field that is a section, None for every other field."""
    # Python 3.10 takes tuple[int, int] for a type, which issubclass refuses.
    is_class = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return annotation if is_class and issubclass(annotation, BaseModel) else None


def scalar_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields that hold one scalar, those inside `{paged: ...}` and the like included."""
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is not None:
            yield from scalar_fields(section, f"{prefix}{name}.")
            continue
        if typing.get_origin(info.annotation) is not tuple:
            yield f"{prefix}{name}"
        for member in _members(info.annotation):
            nested = section_of(member)
            if nested is not None:
                yield from scalar_fields(nested, f"{prefix}{name}.")


def shown(value: object) -> str:
    """A value as a user would write it in YAML, on one line, cut where it is long."""
    if isinstance(value, str):
        plain = (
            value.replace("_", "").replace("-", "").isalnum() and value.isascii() and not value[0].isdigit()
        )
        text = value if plain else f"the text {json.dumps(value)}"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{bare(key)}: {bare(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(bare(item) for item in value) + "]"
    elif isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS:
        text = f"a number of {value.bit_length()} bits"
    elif value is None or isinstance(value, (bool, int, float)):
        text = json.dumps(value)
    else:
        text = f"a Python {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def bare(value: object) -> str:
    """`shown`, for places where a text needs no introduction."""
    return shown(value).removeprefix("the text ")


def did_you_mean(word: object, choices: tuple[str, ...]) -> str | None:
    """The choice that a misspelt word is closest to, if any is close."""
    close = difflib.get_close_matches(str(word)[:MAX_SHOWN_CHARS], choices, n=1, cutoff=0.6)
    return close[0] if close else None


def joined(parts: tuple[str, ...]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def unknown_key(model: type[BaseModel], field: str, siblings: tuple[str, ...]) -> Diagnostic:
    """The diagnostic of a key that no model has; `siblings` are the keys that its mapping takes."""
    parent, _, key = field.rpartition(".")
    guess = did_you_mean(key, siblings)
    elsewhere = [name for name in scalar_fields(model) if name.rpartition(".")[2] == key]
    if not elsewhere and guess is not None:
        way_out = f"did you mean {guess}?"
    elif elsewhere:
        way_out = f"{key} is a key of {elsewhere[0].rpartition('.')[0] or 'the top level'}"
    else:
        way_out = "remove the key"
    where = f"in {parent}" if parent else "at the top level"
    message = f"unknown key {bare(key)}, allowed {where}: {joined(siblings)}"
    return Diagnostic(code="unknown-key", field=field, message=message, help=way_out)


def model_faults(
    model: type[BaseModel], error: ValidationError, data: Mapping[str, object]
) -> tuple[Diagnostic, ...]:
    """One diagnostic per field at fault, in the order of the error, however many complaints there are."""
    found: dict[str, Diagnostic] = {}
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"] == "spec_rules":
            continue
        path, info, owner = _leaf(model, detail["loc"])
        if info is None:
            siblings = (*owner.model_fields, "matrix") if owner is model else tuple(owner.model_fields)
            fault = unknown_key(model, path, siblings)
        elif detail["type"] == "missing":
            fault = _missing(path, info)
        else:
            fault = bad_value(path, info, _value_at(data, path))
        found.setdefault(path, fault)
    return tuple(found.values())


def bad_value(path: str, info: FieldInfo, value: object) -> Diagnostic:
    """The diagnostic of a value that the field at `path` does not take."""
    allowed = describe(info.annotation, tuple(info.metadata))
    words = tuple(part for part in allowed if part.isidentifier())
    guess = did_you_mean(value, words) if isinstance(value, str) else None
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    legal = nearest(info.annotation, tuple(info.metadata), whole)
    key = path.rpartition(".")[2]
    if guess is not None:
        way_out = f"did you mean {guess}?"
    elif isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit():
        way_out = "write the number without quotes"
    elif legal:
        way_out = f"set {key}: {joined(legal)}"
    elif section_of(info.annotation) is not None:
        way_out = f"write its keys below {path}"
    elif path == "name":
        way_out = "rename the kernel and its file"
    elif info.examples or info.is_required():
        way_out = f"set {key}: {_example(info, allowed)} for instance"
    else:
        way_out = f"leave {path} out for the default {shown(info.get_default(call_default_factory=True))}"
    message = f"{path} is {shown(value)}, allowed: {joined(allowed)}"
    return Diagnostic(code="bad-value", field=path, message=message, help=way_out)


def allowed_at(model: type[BaseModel], field: str) -> tuple[str, ...]:
    """The values that a dotted field takes, for people; empty for an unknown field."""
    _, info, _ = _leaf(model, tuple(field.split(".")))
    return () if info is None else describe(info.annotation, tuple(info.metadata))


def lookup(model: type[BaseModel], data: Mapping[str, object], faulty: tuple[str, ...]) -> Lookup:
    """Reads sound values of dotted fields from `data` or the models' defaults."""

    def get(field: str) -> object:
        if any(covers(fault, field) for fault in faulty):
            raise UnknownValue(field)
        owner, value = model, data
        for name in field.split("."):
            info = owner.model_fields[name]
            section = section_of(info.annotation)
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif info.is_required():
                raise UnknownValue(field)
            else:
                value = {} if section is not None else info.get_default(call_default_factory=True)
            owner = section or owner
        return value

    return get


def covers(one: str, other: str) -> bool:
    """Whether one dotted field is the other, holds it or lies in it."""
    return one == other or not one or not other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def describe(annotation: object, metadata: tuple[object, ...] = ()) -> tuple[str, ...]:
    """The values that a type allows, as parts of a list for people."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return describe(inner, (*metadata, *more))
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(bare(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for member in typing.get_args(annotation) for part in describe(member))
    if typing.get_origin(annotation) is tuple:
        return ("[left, right]",)
    section = section_of(annotation)
    if section is not None:
        return (
            _EXAMPLES.get(section.__name__) or f"a mapping with the keys {', '.join(section.model_fields)}",
        )
    if annotation is bool:
        return ("true", "false")
    if annotation is str:
        return ("a letter of a to z, then up to 199 of a to z, 0 to 9 and _",)
    return ("null",) if annotation is type(None) else (_number(metadata),)


def nearest(annotation: object, metadata: tuple[object, ...], value: object) -> tuple[str, ...]:
    """The whole numbers that a type allows next to one that it refuses; empty for other values and types."""
    if isinstance(value, bool) or not isinstance(value, int):
        return ()
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *more = typing.get_args(annotation)
        metadata = (*metadata, *more)
    for member in _members(annotation):
        found = nearest(member, (), value)
        if found:
            return found
    bounds = {type(item): item for item in metadata}
    step, low, high = bounds.get(MultipleOf), bounds.get(Ge), bounds.get(Le)
    if annotation is not int or not isinstance(low, Ge) or not isinstance(high, Le):
        return ()
    unit = int(step.multiple_of) if isinstance(step, MultipleOf) else 1
    clamped = max(int(low.ge), min(int(high.le), value))
    below = max(int(low.ge), clamped - clamped % unit)
    return tuple(dict.fromkeys((str(below), str(below if clamped == below else below + unit))))


def _number(metadata: tuple[object, ...]) -> str:
    """Limits of a number in words."""
    bounds = {type(item): item for item in metadata}
    step, low, high, above = bounds.get(MultipleOf), bounds.get(Ge), bounds.get(Le), bounds.get(Gt)
    if isinstance(low, Ge) and isinstance(high, Le):
        if low.ge == high.le:
            return str(low.ge)
        kind = f"a multiple of {step.multiple_of}" if isinstance(step, MultipleOf) else "a whole number"
        return f"{kind} from {low.ge} to {high.le}"
    return f"a number above {above.gt}" if isinstance(above, Gt) else "a number"


def _members(annotation: object) -> tuple[object, ...]:
    return (
        typing.get_args(annotation)
        if typing.get_origin(annotation) in (typing.Union, types.UnionType)
        else ()
    )


def _example(info: FieldInfo, allowed: tuple[str, ...]) -> str:
    if info.examples:
        return str(info.examples[0])
    return next(
        (part for part in allowed if part.isidentifier() and part not in ("auto", "null")), allowed[-1]
    )


def _missing(path: str, info: FieldInfo) -> Diagnostic:
    allowed = describe(info.annotation, tuple(info.metadata))
    message = f"{path} is missing, allowed: {joined(allowed)}"
    example = _example(info, allowed)
    return Diagnostic(
        code="missing-field", field=path, message=message, help=f"add {path}, {example} for instance"
    )


def _leaf(
    model: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[str, FieldInfo | None, type[BaseModel]]:
    """Path, field (None if unknown) and owning model of an error's location, without tags of unions."""
    owner, path = model, []
    for name in loc:
        path.append(str(name))
        info = owner.model_fields.get(str(name))
        section = None if info is None else section_of(info.annotation)
        if section is None:
            return ".".join(path), info, owner
        owner = section
    return ".".join(path), info, owner


def _value_at(data: Mapping[str, object], path: str) -> object:
    value: object = data
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
