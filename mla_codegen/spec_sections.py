"""The sections of a spec as frozen models that mirror the YAML keys, with the limits of each single field.

Rules that tie fields together are in spec_rules; what the planner cannot do yet is not refused here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MultipleOf
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.types import AllowInfNan, Strict

NAME_MAX_CHARS = 200

Arch = Literal["sm_90a", "sm_100a", "sm_100f", "sm_103a"]
Auto = Literal["auto"]
InputDtype = Literal["e4m3", "bf16", "f16"]
ScaleLayout = Literal["none", "tensor", "head", "token", "token_head"]

SpecVersion = Annotated[int, Strict(), Ge(1), Le(1)]
KernelName = Annotated[
    str, StringConstraints(strict=True, pattern="^[a-z][a-z0-9_]*$"), MaxLen(NAME_MAX_CHARS)
]
Depth = Annotated[int, Strict(), MultipleOf(16), Ge(16), Le(256)]
RopeDepth = Annotated[int, Strict(), MultipleOf(16), Ge(0), Le(256)]
HeadCount = Annotated[int, Strict(), Ge(1), Le(65536)]
BlockRows = Annotated[int, Strict(), MultipleOf(16), Ge(16), Le(512)]
StageCount = Annotated[int, Strict(), Ge(1), Le(32)]
BlockCount = Annotated[int, Strict(), Ge(1), Le(65536)]
PageTokens = Annotated[int, Strict(), Ge(1), Le(65536)]
TokenCount = Annotated[int, Strict(), Ge(1), Le(2**30)]
WindowReach = Annotated[int, Strict(), Ge(-1), Le(2**30)]
ConsumerCount = Annotated[int, Strict(), Ge(1), Le(8)]
WarpCount = Annotated[int, Strict(), Ge(0), Le(16)]
Switch = Annotated[bool, Strict()]
PositiveNumber = Annotated[float, Strict(), AllowInfNan(False), Gt(0)]


def _only_bool(value: object) -> object:
    """Literal[True] alone would let 1 pass."""
    if not isinstance(value, bool):
        raise ValueError("not true")
    return value


class Section(BaseModel):
    """Base of all spec models: immutable, no unknown keys, defaults checked like given values."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Dtypes(Section):
    """Element types of tensors and operands."""

    qkv: InputDtype = Field(description="type of q_nope, k_nope and v", examples=["e4m3"])
    p: Literal["auto", "e4m3", "bf16", "f16"] = Field(
        default="auto",
        description="type P is rounded to for P·V; auto: as qkv where the accuracy contract holds, else bf16",
    )
    rope_gmem: InputDtype = Field(
        default="bf16",
        description="type of q_rope and k_rope in global memory; default: bf16 when qkv is e4m3, else as qkv",
    )
    rope_mma: InputDtype = Field(
        default="bf16",
        description=(
            "type the rope product consumes; default: as rope_gmem, from which it differs only e4m3 -> bf16"
        ),
    )
    scale: Literal["f32"] | None = Field(
        default=None,
        description="type of all scales; default: f32 when a tensor has scales, null when none has",
    )
    out: Literal["bf16", "f16", "f32"] = Field(default="bf16", description="type of the output; default bf16")


class Dims(Section):
    """Head dimensions in elements."""

    nope: Depth = Field(description="width of q_nope and k_nope per head, in elements", examples=[128])
    rope: RopeDepth = Field(
        description="width of q_rope and k_rope, in elements; 0: there is no rope part", examples=[64]
    )
    v: Depth = Field(description="width of v and of the output per head, in elements", examples=[128])


class Heads(Section):
    """Head counts."""

    q: Literal["any"] | HeadCount = Field(
        default="any",
        description=(
            "query heads, a multiple of group; any (default): an argument at run time, not compiled in"
        ),
    )
    group: HeadCount = Field(
        default=1,
        description="query heads per KV head of k_nope and v; default 1; k_rope always has one head",
    )


class Scales(Section):
    """Layouts of the scales by which stored values are multiplied."""

    q: ScaleLayout = Field(default="none", description="scales of q_nope; default none")
    k: ScaleLayout = Field(default="none", description="scales of k_nope; default none")
    v: ScaleLayout = Field(default="none", description="scales of v; default none")
    rope: Literal["prescaled", "raw"] | None = Field(
        default=None,
        examples=["prescaled"],
        description=(
            "what the caller stored for rope: prescaled: q_rope and k_rope divided by the scales of q and"
            " k; raw: the true values; required when q or k has scales and dims.rope > 0, and read as null"
            " when it cannot matter"
        ),
    )
    rope_k: Literal["none", "token"] = Field(
        default="none",
        description="scales of an e4m3 k_rope that is converted to bf16 inside the kernel; default none",
    )


class WindowMask(Section):
    """Sliding window around the bottom-right diagonal."""

    window: tuple[WindowReach, WindowReach] = Field(
        description="keys left and right of the query's own position that it sees, inclusive; -1: unlimited",
    )


class ChunkMask(Section):
    """Causal mask inside aligned chunks."""

    chunk: TokenCount = Field(
        description="a query sees the keys before it in its own chunk of this many tokens"
    )


class PrefixLmMask(Section):
    """Causal mask with a prefix that every query of the sequence sees."""

    prefix_lm: Annotated[Literal[True], BeforeValidator(_only_bool)] = Field(
        description="prefix lengths per sequence come with each call as prefix_lens",
    )


class Paged(Section):
    """Keys and values in pages that a page table lists."""

    paged: PageTokens = Field(description="page size in tokens")


class Layout(Section):
    """How sequences lie in memory."""

    q: Literal["ragged", "dense"] = Field(
        default="ragged",
        description="queries and output; ragged (default): packed, with cu_seqlens; dense: a batch dimension",
    )
    kv: Literal["ragged", "dense"] | Paged = Field(
        default="ragged",
        description="k_nope, k_rope and v: ragged (default), dense, or {paged: tokens per page}",
    )
    rope: Paged | None = Field(
        default=None,
        description="{paged: tokens per page} where k_rope's pages differ from kv; default null: as kv",
    )
    v: Literal["rows", "transposed"] = Field(
        default="rows",
        description="v as rows of tokens (default), or transposed as mla.quantize makes it (e4m3 on sm_90a)",
    )


class Tile(Section):
    """Rows that one CTA works on at a time."""

    block_m: Auto | BlockRows = Field(default="auto", description="query rows per CTA; default auto")
    block_n: Auto | BlockRows = Field(default="auto", description="key-value rows per step; default auto")


class Pipeline(Section):
    """Ring buffers in shared memory, in stages."""

    kv_stages: Auto | StageCount = Field(
        default="auto", description="stages of the K (or K and V) ring; default auto"
    )
    qk_stages: StageCount = Field(
        default=1,
        description="parts in which the depth of Q·K arrives; default 1, as in the seed",
    )
    pv_stages: Auto | StageCount = Field(
        default="auto", description="sub-steps in which P is handed to P·V; default auto"
    )
    v_stages: Auto | StageCount = Field(
        default="auto",
        description=(
            "sm_90a: stages of the V ring that P·V reads, transposed where it has to be; default auto"
        ),
    )
    v_raw_stages: Auto | StageCount = Field(
        default="auto",
        description="sm_90a: stages of the ring of V before it is transposed; default auto",
    )
    kv_ring: Literal["auto", "separate", "shared", "unified"] = Field(
        default="auto",
        description=(
            "separate: a ring each for K and V; shared: K_nope and V alternate in one ring, rope apart;"
            " unified: one ring whose stages hold K_nope or V, and rope; default auto"
        ),
    )


class Accumulation(Section):
    """Accumulation of O."""

    flush_blocks: Auto | BlockCount = Field(
        default="auto",
        description=(
            "sm_90a with e4m3: KV blocks after which O is added to a bf16 master in shared memory, what that "
            "rounds off carried on in fp32, for the first time after the masked blocks; auto (default) keeps "
            "the accuracy contract"
        ),
    )


class Softmax(Section):
    """Softmax and log-sum-exp."""

    lse: Literal["none", "natural", "log2"] = Field(
        default="none",
        description="base of the log-sum-exp output; none (default): no such output",
    )
    lse_layout: Literal["head_token", "token_head"] = Field(
        default="head_token",
        description="order of the log-sum-exp dimensions; default head_token",
    )
    variant: Literal["auto", "online", "lazy"] = Field(
        default="auto",
        description=(
            "online: the reference point is the row maximum of every block; lazy: it moves only when P"
            " would leave its range; both exact up to rounding; auto (default): lazy where its registers fit,"
            " else online"
        ),
    )
    sink: Switch = Field(default=False, description="a sink logit per head joins the row sum; default false")
    softcap: PositiveNumber | None = Field(
        default=None,
        description="logits become softcap * tanh(logit / softcap); default null: no cap",
    )


class Smem(Section):
    """Shared memory."""

    layout: Literal["auto", "seed"] = Field(
        default="auto",
        description="seed: MLASmemStorage field for field as the seed has it (sm_100a); default auto",
    )


class Schedule(Section):
    """Roles and the order of work."""

    consumers: Auto | ConsumerCount = Field(
        default="auto",
        description="warpgroups that compute softmax; default auto",
    )
    order: Literal["auto", "turns", "ping_pong", "free"] = Field(
        default="auto",
        description=(
            "how consumer warpgroups share the tensor core: turns: one issues P·V and Q·K, waits and"
            " passes on; ping_pong: one passes on once it has issued; free: no order; default auto"
        ),
    )
    transpose_warps: Auto | WarpCount = Field(
        default="auto",
        description="sm_90a with e4m3 rows of v: warps that transpose V; default auto",
    )
    persistent: Auto | Switch = Field(
        default="auto",
        description=(
            "true: a CTA goes through four heads, the next one's copies started early; false: one head;"
            " auto (default): up to four, as suits the tiles of a call; results do not depend on it"
        ),
    )
    longest_first: Auto | Switch = Field(
        default="auto",
        description="true: tiles with the most keys start first; default auto",
    )
