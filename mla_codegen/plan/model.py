"""The plan: every number, name and choice of one generated file, as frozen data.

A plan is made by :func:`mla_codegen.plan.make_plan`, printed by the templates and read back from
``plan.json`` by the runtime and the emulator. Nothing here computes: whatever is derived has been derived by
the builder. Sizes carry their unit in the name (``_bytes``, ``_threads``, ``_registers``); bytes are 8 bits,
offsets count from the start of ``MLASmemStorage``.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLAN_SCHEMA = 1
_OPTIONAL = ("source_digest",)
"""Keys that a plan.json may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one ``auto`` of the spec became (or what the user said), and the rule behind it."""

    field: str
    value: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One ``constexpr`` line: C++ type, name, literal text, and what it means with its unit or derivation."""

    ctype: str
    name: str
    literal: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantGroup:
    title: str
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmemField:
    """A member of ``MLASmemStorage``: ``element name[count]`` at a fixed offset."""

    name: str
    element: str
    count: int
    offset_bytes: int
    size_bytes: int
    align_bytes: int
    content: str
    live: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedConstant:
    """A constant of the seed's struct: name, value in bytes or elements, and the formula in words.

    ``field`` is the member that has just as many bytes, where there is one.
    """

    name: str
    value: int
    comment: str
    field: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smem:
    """The map of ``MLASmemStorage``.

    ``used_bytes`` ends at the last field, ``sizeof_bytes`` is rounded up to the alignment.
    ``sized_constants`` are those constants that are the size of a field.
    """

    fields: tuple[SmemField, ...]
    constants: tuple[SeedConstant, ...]
    sized_constants: tuple[SeedConstant, ...]
    last_field: str
    used_bytes: int
    sizeof_bytes: int
    align_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mbarrier:
    """``stages`` transaction barriers of one kind, at consecutive indices of ``mbar_base``.

    ``parameter`` and ``stage`` are the C++ parameter of its accessor and what indexes it (``u32 stage`` and
    ``stage``, or nothing and ``0``); ``stages_constant`` and ``arrivals_constant`` name the numbers in the
    generated source.
    """

    name: str
    stages: int
    first_index: int
    arrivals: int
    tx_bytes: int
    arrives: str
    waits: str
    comment: str
    parameter: str
    stage: str
    stages_constant: str
    arrivals_constant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBarrier:
    """A hardware barrier (``bar.sync`` id 1 to 15) for ``threads`` threads."""

    name: str
    id: int
    threads: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What some consecutive warps do for their whole life; ``registers`` per thread after setmaxnreg."""

    name: str
    first_warp: int
    num_warps: int
    end_constant: str
    registers: int
    does: str
    waits_on: str
    signals: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaFamily:
    """A wgmma wrapper, templated on N."""

    function: str
    a_parameters: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaAtom:
    """One wgmma instruction shape, with its operand lists as ready text for the inline PTX."""

    function: str
    n: int
    accumulators: int
    a_parameters: str
    instruction: str
    operands: tuple[str, ...]
    predicate_operand: str
    constraints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaNames:
    """The wrapper that each product of the kernel uses.

    ``nope_accumulates`` and ``rope_accumulates`` are the expressions, of ``chunk`` and ``step``, that are 0
    where S is overwritten.
    """

    qk_nope: str
    qk_rope: str
    pv: str
    nope_accumulates: str
    rope_accumulates: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PRounding:
    """How the kernel rounds P, for an emulation to judge it by.

    P is 2^(z - reference + lift) rounded to ``dtype``. With ``lazy`` False the reference is the row maximum,
    or the type is of 16 bits: the relative rounding of these does not depend on the reference.
    Else it is the maximum over the row's masked blocks of ``block_n`` keys (those from the block of the last
    key that the first of ``group_rows`` rows sees), and moves up, for all ``warp_rows`` rows of a warp, at a
    block in which the P of one thread (columns 8 i + 2 t and + 1 for t = 0 to 3) sum to more than
    ``sum_limit``; after each such exact step the lift of a row, back at ``lift_log2``, is lowered by powers
    of two until that sum is at most ``sum_goal``. Blocks come from the last to the first; rows beyond the
    sequence take no part.
    """

    dtype: str
    lift_log2: float
    lazy: bool
    block_n: int
    group_rows: int
    warp_rows: int
    sum_limit: float
    sum_goal: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VTransposedChunk:
    """A piece of the transposed V tile: each row (one V column) holds ``width_bytes`` one-byte tokens.

    ``prefix`` starts the names of its constants; ``name`` is its descriptor in ``issue_pv``, ``map`` the
    tensor map that copies it where V is stored that way.
    """

    name: str
    prefix: str
    map: str
    first_token: int
    width_bytes: int
    offset_bytes: int
    swizzle_mode: int
    first_step: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VLoad:
    """Names of the ring that V is loaded into: barriers, tile accessor, stage constant; and the bulk copy."""

    full: str
    empty: str
    tile: str
    stages: str
    copy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNames:
    """The expression for the head of K_nope and V that a CTA has, and what its first tokens are.

    ``scale_arrivals`` are the barriers on which the load warp arrives a second time.
    """

    kv_head: str
    q_begin: str
    k_begin: str
    scale_arrivals: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleNames:
    """The expression for the first scale of a CTA, by tensor."""

    q: str
    k: str
    v: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What scores are multiplied by on their way to the exponent, in words.

    ``softmax`` in softmax itself; ``scores`` before an unscaled rope is added, and ``scaled_p`` where the
    scales of V join them, empty where there is no such step.
    """

    softmax: str
    scores: str
    scaled_p: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleArray:
    """Scales of which a CTA has a part: ``function`` says where, ``offsets`` elements further on."""

    name: str
    function: str
    offsets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A tensor map and the box that one issue copies; dimensions innermost first.

    ``axes`` says what each dimension is, ``depth``, ``tokens``, ``heads`` or ``batch``, and ``dims`` which
    axis of the argument its extent and stride are taken from, counted without the one head of ``k_rope``; -1
    is none, a dimension of extent 1 whose only coordinate is 0. The innermost axis is contiguous.
    ``issues`` boxes of ``issue_bytes`` fill one tile.
    """

    name: str
    argument: str
    dtype: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    issue_bytes: int
    issues: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A tensor of the kernel call: yaml dtype; ``axes`` are names shared between arguments, or fixed extents.

    ``kind`` is ``tensor``, ``scale``, ``lengths`` or ``output``.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    kind: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamField:
    """A member of the kernel's by-value ``Params`` struct, in C layout.

    ``axis`` is for what belongs to an axis of an argument, counted without the one head of ``k_rope``; None
    where it has no such axis, which makes the value 0. Strides, ``<argument>_token_stride``, ``_head_stride``
    and ``_batch_stride``, are in elements. Steps, ``<argument>_head_step`` and ``_batch_step``, are what an
    index is multiplied by to get a coordinate of the tensor map: 0 where all indices are the same place,
    since there is one or the stride is 0, else 1. Other members are addresses of arguments, sizes of the call
    (``batch``, ``heads``, ``q_len``, ``kv_len``), ``query_tiles`` and ``scale_log2``.
    """

    ctype: str
    name: str
    comment: str
    axis: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the kernel is launched: grid.x = query tiles x runs of heads, grid.y and z count the sequences.

    A CTA goes through `run_heads` heads of one query tile, one after the other; where that is None, a call
    takes what suits its tiles on `sms` multiprocessors, at most `longest_run`. Results do not depend on it.
    """

    threads: int
    smem_bytes: int
    block_m: int
    block_n: int
    grid_y_limit: int
    run_heads: int | None
    longest_run: int
    sms: int
    launch_registers: int
    reported_barriers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """Which template prints each part of the kernel that has alternatives."""

    visible_keys: str
    copy_tile: str
    load_v: str
    helper_warp: str
    issue_qk: str
    issue_pv: str
    scale_scores: str | None
    pack_p: str
    softmax_step: str
    kv_step: str
    unmasked_blocks: str
    store_output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Yes-or-no questions that templates may ask around whole statements."""

    has_rope: bool
    raw_rope: bool
    scales_raw_rows: bool
    q_dense: bool
    kv_dense: bool
    counts_sequences: bool
    carries_scales: bool
    scales_rows: bool
    scales_columns: bool
    scales_scores: bool
    scales_keys: bool
    folds_k_scale: bool
    scales_output: bool
    scales_p: bool
    groups_heads: bool
    transposes_v: bool
    clears_v_tail: bool
    rereads_factors: bool
    rereads_tile: bool
    renews_q: bool
    mixed_qk: bool
    lazy_softmax: bool
    lowers_lift: bool
    flushes_output: bool
    f32_output: bool
    whole_output_groups: bool
    half_output_group: bool
    writes_lse: bool
    causal: bool
    debug: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kernel of the file: its own namespace, shared-memory struct and entry.

    The ``*_table`` and ``schedule`` lines are the plan comment of the generated source.
    """

    name: str
    namespace: str
    entry: str
    features: Features
    partials: Partials
    constants: tuple[ConstantGroup, ...]
    smem: Smem
    mbarriers: tuple[Mbarrier, ...]
    num_mbars: int
    named_barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    mma: MmaNames
    v_load: VLoad
    heads: HeadNames
    scales: ScaleNames
    placed_scales: tuple[ScaleArray, ...]
    factors: Factors
    p_rounding: PRounding
    p_conversion: str
    out_conversion: str
    v_transposed_chunks: tuple[VTransposedChunk, ...]
    tensor_maps: tuple[TensorMap, ...]
    params: tuple[ParamField, ...]
    launch: Launch
    smem_table: tuple[str, ...]
    role_table: tuple[str, ...]
    barrier_table: tuple[str, ...]
    schedule: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A tile or buffer inside a field: ``count`` of them, ``stride_bytes`` apart, from ``offset_bytes`` on.

    ``offset_bytes`` counts from the start of the struct. ``alias_of`` names the field whose bytes it takes
    over, empty where it has its own; ``live`` says from when to when, and so why an alias is safe.
    """

    name: str
    field: str
    offset_bytes: int
    size_bytes: int
    count: int
    stride_bytes: int
    swizzle_bytes: int
    content: str
    live: str
    alias_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TmemRegion:
    """Columns ``first_col`` to ``first_col + cols - 1`` of all 128 lanes; a lane is a query row.

    ``alias_of`` is the region whose first columns this one overlays, empty where it overlays none; ``live``
    says why that is safe.
    """

    name: str
    first_col: int
    cols: int
    dtype: str
    content: str
    live: str
    alias_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TmemMap:
    """``used_cols`` end at the last region, ``alloc_cols`` are asked for: a power of two."""

    regions: tuple[TmemRegion, ...]
    used_cols: int
    alloc_cols: int
    limit_cols: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One chain of tcgen05.mma into one accumulator: ``steps`` instructions of ``m`` x ``n`` x ``k``.

    ``a`` and ``b`` name regions of shared memory or, for P, of tensor memory. ``clears`` says that the first
    step overwrites the accumulator, where the chain is the first one of its block. ``instruction_descriptor``
    has the 32 bits of the instruction's last operand.
    """

    name: str
    kind: str
    m: int
    n: int
    k: int
    steps: int
    a: str
    b: str
    b_mn_major: bool
    clears: bool
    instruction_descriptor: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNames:
    """How the source calls a region: ``<name>_tile(index)``, from two constants."""

    name: str
    field: str
    offset_constant: str
    stride_constant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierNames:
    """How the source calls mbarriers: ``function(parameter)`` is ``index`` after the one called ``first``."""

    function: str
    parameter: str
    first: str
    index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTexts:
    """A text for each role of a Blackwell kernel."""

    load: str
    tail: str
    mma: str
    correction: str
    softmax: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Mma:
    """Stems of the wrappers that the products use; ``rope`` is empty where there is none."""

    nope: str
    rope: str
    pv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Names:
    """Words that role functions of a Blackwell kernel are made of.

    Tiles and barriers of K_nope and V, which are the same where the two share a ring; the cursor of V, the
    buffer of a K_rope and the slot of the first V; conversions of P and of the output; columns of O that a
    thread handles at a time; what is in the factors of softmax and of the output; the polynomial's error.
    """

    k_nope_tile: str
    v_tile: str
    v_cursor: str
    rope_cursor: str
    rope_scales: str
    first_v_slot: str
    helper: str
    k_full: str
    k_empty: str
    v_full: str
    v_empty: str
    p_conversion: str
    out_conversion: str
    o_group_cols: str
    softmax_factor: str
    row_factor: str
    row_offset: str
    output_factor: str
    exp2_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Partials:
    """Which template prints each part of a body that has alternatives."""

    sides: str
    load_q_rope: str
    load_k_rope: str
    helper_warps: str
    copy_tile: str
    load_order: str
    mma_order: str
    correction_order: str
    softmax_order: str
    exponentiate: str
    store_p: str
    fetch_output: str
    stage_output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Features:
    """Yes-or-no questions that templates of a Blackwell kernel may ask around whole statements."""

    has_rope: bool
    one_ring: bool
    rope_ring: bool
    converts_rope: bool
    scales_rope: bool
    shares_factors: bool
    q_dense: bool
    kv_dense: bool
    counts_sequences: bool
    groups_heads: bool
    carries_scales: bool
    scales_rows: bool
    scales_columns: bool
    folds_k_scale: bool
    scales_p: bool
    scales_output: bool
    scales_keys: bool
    releases_early: bool
    writes_lse: bool
    causal: bool
    debug: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Body:
    """One way through a Blackwell kernel, 2Q or 1Q, in a namespace of its own inside of the variant's.

    The ``*_table`` and ``schedule`` lines are its part of the plan comment.
    """

    name: str
    title: str
    features: Sm100Features
    partials: Sm100Partials
    names: Sm100Names
    heads: HeadNames
    scales: ScaleNames
    mma: Sm100Mma
    waits: RoleTexts
    signals: RoleTexts
    constants: tuple[ConstantGroup, ...]
    smem: Smem
    seed_sizeof_bytes: int
    smem_regions: tuple[Region, ...]
    regions: tuple[RegionNames, ...]
    tmem: TmemMap
    mbarriers: tuple[Mbarrier, ...]
    barrier_accessors: tuple[BarrierNames, ...]
    num_mbars: int
    named_barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    products: tuple[Product, ...]
    smem_table: tuple[str, ...]
    region_table: tuple[str, ...]
    tmem_table: tuple[str, ...]
    role_table: tuple[str, ...]
    barrier_table: tuple[str, ...]
    schedule: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100EntryPartials:
    """The same as Sm100Partials for what all bodies share."""

    visible_keys: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Variant:
    """One kernel of the file of a Blackwell target: an entry, and the bodies that a CTA of it may run.

    What a body has of its own is read off the first one, which runs long sequences.
    """

    name: str
    namespace: str
    entry: str
    features: Sm100Features
    partials: Sm100EntryPartials
    constants: tuple[ConstantGroup, ...]
    heads: HeadNames
    placed_scales: tuple[ScaleArray, ...]
    p_rounding: PRounding
    tensor_maps: tuple[TensorMap, ...]
    params: tuple[ParamField, ...]
    launch: Launch
    bodies: tuple[Sm100Body, ...]

    @property
    def smem(self) -> Smem:
        return self.bodies[0].smem

    @property
    def mbarriers(self) -> tuple[Mbarrier, ...]:
        return self.bodies[0].mbarriers

    @property
    def named_barriers(self) -> tuple[NamedBarrier, ...]:
        return self.bodies[0].named_barriers

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.bodies[0].roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of one generated file."""

    plan_schema: int
    name: str
    arch: str
    template: str
    spec_digest: str
    spec: Mapping[str, Any]
    validated: tuple[str, ...]
    formula: tuple[str, ...]
    choices: tuple[Choice, ...]
    arch_guard: str
    arch_guard_message: str
    device_primitives: tuple[str, ...]
    common_primitives: tuple[str, ...]
    mma_families: tuple[MmaFamily, ...]
    mma_atoms: tuple[MmaAtom, ...]
    arguments: tuple[Argument, ...]
    variants: tuple[Variant | Sm100Variant, ...]
    source_digest: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", _read_only(self.spec))

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON-able data, keys in declared order."""
        return _plain(self)

    def to_json(self) -> str:
        """The text of ``plan.json``: two-space indent, ASCII, final newline; equal plans give equal bytes."""
        return json.dumps(self.to_mapping(), indent=2, ensure_ascii=True) + "\n"

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of :meth:`to_mapping`; ValueError names a schema this version does not read."""
        schema = data.get("plan_schema")
        if schema != PLAN_SCHEMA:
            raise ValueError(
                f"plan.json has plan_schema {schema!r}, this version reads {PLAN_SCHEMA}; "
                "build the spec again"
            )
        return _build(cls, data)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls.from_mapping(json.loads(text))


def _read_only(value: Any) -> Any:
    """Mappings and lists, at every depth, as what nobody can change."""
    if isinstance(value, Mapping):
        return types.MappingProxyType({key: _read_only(item) for key, item in value.items()})
    return tuple(_read_only(item) for item in value) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _build(annotation: Any, value: Any) -> Any:
    """Rebuilds a dataclass tree from plain data by the annotations of its fields."""
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        names = {field.name for field in dataclasses.fields(annotation)}
        unknown = sorted(set(value) - names)
        if unknown:
            raise ValueError(
                f"plan.json has unknown key {unknown[0]!r} in {annotation.__name__}; build the spec again"
            )
        missing = sorted(name for name in names - set(value) if name not in _OPTIONAL)
        if missing:
            raise ValueError(
                f"plan.json has no key {missing[0]!r} in {annotation.__name__}; build the spec again"
            )
        return annotation(**{name: _build(hints[name], value[name]) for name in names if name in value})
    if typing.get_origin(annotation) is tuple:
        item = typing.get_args(annotation)[0]
        return tuple(_build(item, entry) for entry in value)
    if typing.get_origin(annotation) is types.UnionType and value is not None:
        return _build(_alternative(typing.get_args(annotation), value), value)
    return value


def _alternative(annotations: tuple[Any, ...], value: Any) -> Any:
    """The dataclass of a union that has just these keys; the first one where none has."""
    for annotation in annotations:
        if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
            names = {field.name for field in dataclasses.fields(annotation)}
            if names == set(value):
                return annotation
    return annotations[0]
