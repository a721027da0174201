"""What a user may say about a kernel: the Spec, its defaults and its JSON Schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from mla_codegen import digest
from mla_codegen.errors import Diagnostic, SpecError
from mla_codegen.spec_faults import covers, lookup, model_faults, scalar_fields
from mla_codegen.spec_rules import broken_rules, complete
from mla_codegen.spec_sections import (
    Accumulation,
    Arch,
    ChunkMask,
    Dims,
    Dtypes,
    Heads,
    KernelName,
    Layout,
    Paged,
    Pipeline,
    PrefixLmMask,
    Scales,
    Schedule,
    Section,
    Smem,
    Softmax,
    SpecVersion,
    Tile,
    WindowMask,
)

__all__ = [
    "SPEC_VERSION",
    "ChunkMask",
    "Origin",
    "Paged",
    "PrefixLmMask",
    "Spec",
    "WindowMask",
    "check_mapping",
    "json_schema",
]

SPEC_VERSION = 1
"""The spec_version that this package reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a spec was read from: the path as given, and line and column (from 1) of each dotted field."""

    path: str | None = None
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """The diagnostic with the position of its field or of the nearest enclosing field that is known."""
        name = diagnostic.field or ""
        while name and name not in self.positions:
            name = name.rpartition(".")[0]
        line, col = self.positions.get(name, (None, None))
        return dataclasses.replace(diagnostic, path=self.path, line=line, col=col)


class Spec(Section):
    """One kernel, complete: every default is filled in.

    Equality, hash and digest look at the fields only, not at the origin.
    """

    spec_version: SpecVersion = Field(
        default=SPEC_VERSION, description="version of the spec format; default: the newest"
    )
    name: KernelName = Field(
        description="name of the kernel: stem of the spec's file and folder under generated/",
        examples=["dsv3_fp8_sm90"],
    )
    arch: Arch = Field(description="target; sm_100f runs on the whole sm_100 family", examples=["sm_90a"])
    dtypes: Dtypes = Field(description="element types", examples=["{qkv: e4m3}"])
    dims: Dims = Field(description="head dimensions in elements", examples=["{nope: 128, rope: 64, v: 128}"])
    heads: Heads = Field(default=Heads(), description="head counts")
    scales: Scales = Field(
        default=Scales(), description="layouts of the scales that stored values are multiplied by"
    )
    mask: Literal["full", "causal"] | WindowMask | ChunkMask | PrefixLmMask = Field(
        default="causal",
        description=(
            "keys that a query sees; causal (default) is bottom-right aligned: query i sees key j where"
            " j <= i + kv_len - q_len"
        ),
    )
    layout: Layout = Field(default=Layout(), description="how sequences lie in memory")
    tile: Tile = Field(default=Tile(), description="rows that one CTA works on at a time")
    pipeline: Pipeline = Field(default=Pipeline(), description="ring buffers in shared memory")
    accumulation: Accumulation = Field(default=Accumulation(), description="accumulation of the output")
    softmax: Softmax = Field(default=Softmax(), description="softmax and log-sum-exp")
    smem: Smem = Field(default=Smem(), description="shared-memory layout")
    schedule: Schedule = Field(default=Schedule(), description="roles and the order of work")

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Where the spec was read from; empty for a spec made in Python."""
        return self._origin

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        return complete(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check_rules(self) -> Spec:
        broken = broken_rules(lookup(Spec, self.to_mapping(), ()))
        if broken:
            raise PydanticCustomError(
                "spec_rules", "{text}", {"text": "; ".join(fault.message for fault in broken)}
            )
        return self

    def __eq__(self, other: object) -> bool:
        return self.to_mapping() == other.to_mapping() if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())

    @classmethod
    def from_mapping(cls, data: Mapping[str, object], *, origin: Origin | None = None) -> Spec:
        """The spec that a mapping with the YAML keys describes; SpecError with every fault at once."""
        spec, faults = check_mapping(data)
        origin = origin or Origin()
        if spec is None:
            raise SpecError(origin.locate(fault) for fault in faults)
        return spec.with_origin(origin)

    def with_origin(self, origin: Origin) -> Spec:
        """An equal spec that was read from `origin`."""
        copy = self.model_copy()
        copy._origin = dataclasses.replace(origin, positions=dict(origin.positions))
        return copy

    def to_mapping(self) -> dict[str, object]:
        """All fields as plain JSON values in declared order; `from_mapping` gives an equal spec."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the complete spec as 64 hex digits; comments and order in the file take no part."""
        return digest.sha256(self.to_mapping())

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """The diagnostic with path, line and column of its field, as far as the origin knows them."""
        return self._origin.locate(diagnostic)


def check_mapping(
    data: Mapping[str, object], *, broken: tuple[str, ...] = ()
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """The spec, or None and every fault found.

    `broken` are dotted fields that were already reported and are missing from `data`: nothing more is said
    about them, and with any of them there is no spec.
    """
    completed = complete(data)
    spec: Spec | None = None
    faults: tuple[Diagnostic, ...] = ()
    try:
        spec = Spec.model_validate(completed)
    except ValidationError as error:
        faults = model_faults(Spec, error, completed)
    faulty = (*broken, *(fault.field or "" for fault in faults if fault.code != "unknown-key"))
    faults = tuple(fault for fault in faults if not any(covers(name, fault.field or "") for name in broken))
    faults += broken_rules(lookup(Spec, completed, faulty))
    return (None if faults or broken else spec), faults


def json_schema() -> dict[str, object]:
    """The JSON Schema of a spec file, `matrix` included; for `mla-codegen schema` and editors."""
    schema = Spec.model_json_schema()
    matrix = {
        "type": "object",
        "description": "dotted field -> values; every product of the values is a kernel of its own",
        "propertyNames": {
            "enum": [name for name in scalar_fields(Spec) if name not in ("spec_version", "name")]
        },
        "additionalProperties": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": ["string", "number", "boolean", "null"]},
        },
        "default": {},
    }
    schema["properties"] = {**schema["properties"], "matrix": matrix}
    for name in ("rope_gmem", "rope_mma", "scale"):
        del schema["$defs"]["Dtypes"]["properties"][name]["default"]
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "mla-codegen spec"}
