"""The plan of a quantiser: the generated kernels that make a kernel's arguments of true q, kv and k_rope.

A row is one head of one token of q or kv. The rows of a CTA are all heads of whole tokens, each shared by
some consecutive lanes that take its 16-byte units in turn. Frozen data, as `plan.model`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.plan.model import ConstantGroup, MmaAtom, MmaFamily, ParamField, Smem
from mla_codegen.tensors import TensorFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of each row that becomes a tensor of its own: names of its constants, and how it is stored.

    `store` is the function that stores it, empty where it is only looked at; `divisor` what it divides by,
    empty where that is nothing; `after` what follows it in a list of parameters.
    """

    name: str
    units: str
    offset: str
    row_bytes: str
    store: str
    divisor: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStep:
    """How the rows of a part come to a scale.

    The largest elements of `segment` decide and, where it is not empty, of `rope`. `partial` prints how a row
    gets its scale, and `token_partial`, where there is one, how a warp makes that of a token, with the
    largest elements in the slots of these names. `largest` and `rope_largest` are the members of Params with
    what the first kernel found.
    """

    name: str
    divisor: str
    form: str
    segment: str
    rope: str
    partial: str
    token_partial: str
    slot: str
    rope_slot: str
    largest: str
    rope_largest: str
    is_prescaled: bool
    is_per_head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Largest elements that a part looks for: the member of Params that gets them, `tensor` or `head`."""

    name: str
    segment: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A role: CTAs that read rows of q or of kv.

    `lanes` share a row, of which each has `thread_units / steps` units, and have a part of `steps` rows.
    `prefix` starts the names of the constants, `row` is the function that finds a row, `total`, `heads` and
    `per_cta` are members of Params, as is `ctas`, the number of CTAs. `body` prints the role, `k_rope` what
    it does with k_rope at its end, None where that is nothing; `carries_k_rope` says that the warps which
    make the scales of tokens store it.
    """

    function: str
    does: str
    body: str
    prefix: str
    row: str
    total: str
    heads: str
    per_cta: str
    ctas: str
    lanes: int
    steps: int
    thread_units: int
    rows_per_cta: int
    segments: tuple[Segment, ...]
    scales: tuple[ScaleStep, ...]
    token_scales: tuple[ScaleStep, ...]
    targets: tuple[Target, ...]
    stores: bool
    k_rope: str | None
    carries_k_rope: bool
    raises_k_rope: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerKernel:
    """One launch: its function, its entry without the name of the input dtype, its roles in grid order."""

    function: str
    entry: str
    does: str
    roles: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A dtype that q, kv and k_rope may have: the struct of the source, and the function that unpacks two."""

    dtype: str
    struct: str
    unpack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerFeatures:
    """Yes-or-no questions that templates may ask around whole statements."""

    has_rope: bool
    has_scales: bool
    rope_prescaled: bool
    rope_e4m3: bool
    divides_halves: bool
    stores_halves: bool
    divides_e4m3: bool
    stores_plain_e4m3: bool
    divides_k_rope: bool
    q_dense: bool
    kv_dense: bool
    kv_ragged: bool
    uses_smem: bool
    has_token_scales: bool
    looks_at_rows: bool
    transposes_v: bool
    v_scaled: bool
    v_given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerPlan:
    """All of one generated quantiser; `kernels` are launched in this order.

    `mma_families` and `mma_atoms` are empty: the partial of the primitives asks for them. `given_scales` are
    those that the first kernel found the largest elements for. `tokens_of` and `v_scale` print which tokens
    columns of the transposed V have, and the scale of one. A CTA that looks for largest elements reads
    `largest_tokens` times as many tokens as one that stores.
    """

    name: str
    namespace: str
    arch: str
    template: str
    spec_digest: str
    facts: TensorFacts
    does: tuple[str, ...]
    role_table: tuple[str, ...]
    smem_table: tuple[str, ...]
    arch_guard: str
    arch_guard_message: str
    device_primitives: tuple[str, ...]
    common_primitives: tuple[str, ...]
    mma_families: tuple[MmaFamily, ...]
    mma_atoms: tuple[MmaAtom, ...]
    features: QuantizerFeatures
    inputs: tuple[Input, ...]
    constants: tuple[ConstantGroup, ...]
    smem: Smem | None
    params: tuple[ParamField, ...]
    parts: tuple[Part, ...]
    kernels: tuple[QuantizerKernel, ...]
    helpers: tuple[str, ...]
    given_scales: tuple[ScaleStep, ...]
    tokens_of: str
    v_scale: str | None
    rope_store: str
    rope_conversion: str
    threads: int
    smem_bytes: int
    largest_tokens: int

    def entries(self) -> tuple[str, ...]:
        """All entries of the source, one of each kernel and input dtype."""
        return tuple(f"{kernel.entry}_{one.dtype}" for kernel in self.kernels for one in self.inputs)
