"""Spec -> QuantizerPlan: which rows which CTAs read, how scales come about, and all numbers of the source."""

from __future__ import annotations

from mla_codegen import digest
from mla_codegen.arch import ARCHS
from mla_codegen.plan import quantizer_text as text
from mla_codegen.plan.model import Smem, SmemField
from mla_codegen.plan.quantizer_constants import (
    COLUMN_UNITS,
    ROW_LANES,
    UNIT_ELEMS,
    plan_constants,
    row_units,
)
from mla_codegen.plan.quantizer_model import (
    Input,
    Part,
    QuantizerFeatures,
    QuantizerKernel,
    QuantizerPlan,
    ScaleStep,
    Segment,
    Target,
)
from mla_codegen.plan.quantizer_params import plan_params
from mla_codegen.tensors import V_GROUP_TOKENS, SpecLike, TensorFacts, spec_mapping, tensor_facts

_TEMPLATE = "quantize.cu.j2"
_FEW_THREADS, _MANY_THREADS = 256, 512
"""Of a CTA."""
_FEW_UNITS = 8
"""Units of 16 bytes, 32 registers, that leave a thread of 64 registers enough."""
_TOKENS_OF_LANE = 4
"""Tokens of V whose units a lane has when it turns them: those of four positions."""
_CTA_ROWS = 128
"""Rows that a CTA keeps in registers at most: those of one token of 128 heads."""
_LANE_UNITS = 16
"""Units of 16 bytes that a thread keeps in registers, where one row has not more."""
_MOST_LANE_UNITS = 24
"""Units of one row beyond which registers would spill."""
_LARGEST_TOKENS = 4
_SMEM_ALIGN_BYTES = 128
_INPUTS = (
    Input(dtype="bf16", struct="Bf16Input", unpack="unpack_bf16x2"),
    Input(dtype="f16", struct="F16Input", unpack="unpack_f16x2"),
)


def quantizes(facts: TensorFacts) -> bool:
    """Whether there is a generated quantiser: for e4m3 without a scale of k_rope alone, where a row fits."""
    is_e4m3 = facts.qkv_dtype == "e4m3" and facts.k_rope_scale == "none"
    return is_e4m3 and _row_units(facts, _q_names(facts)) <= _MOST_LANE_UNITS


def _q_names(facts: TensorFacts) -> tuple[str, ...]:
    return ("q_nope", "q_rope") if facts.rope else ("q_nope",)


def _row_units(facts: TensorFacts, names: tuple[str, ...]) -> int:
    """Units of 16 bytes that a lane has of one row of these segments."""
    _, steps, thread_units = _row_shape(facts, names, _FEW_THREADS)
    return thread_units // steps


def _threads(facts: TensorFacts) -> int:
    """Many where rows come in whole lines and a thread of so many has few units: 64 registers do then."""
    tensors = [_q_names(facts), *([("k_nope",), ("v",)] if facts.v_transposed else [("k_nope", "v")])]
    shapes = [_row_shape(facts, names, _MANY_THREADS) for names in tensors]
    units = [thread_units for _, _, thread_units in shapes]
    if facts.v_transposed:
        units.append(_TOKENS_OF_LANE * -(-facts.v // (UNIT_ELEMS * COLUMN_UNITS)))
    fits = all(lanes == ROW_LANES for lanes, _, _ in shapes) and max(units) <= _FEW_UNITS
    return _MANY_THREADS if fits else _FEW_THREADS


def plan_quantizer(spec: SpecLike, *, threads: int | None = None) -> QuantizerPlan | None:
    """The plan of a spec's quantiser; the same spec gives the same plan everywhere.

    None where it has none, and for a mapping that is no whole spec: it lacks a name or a target. `threads`
    of a CTA are 256 or 512, by default as many as leave two CTAs of an SM room in the registers.
    """
    facts, mapping = tensor_facts(spec), spec_mapping(spec)
    if not quantizes(facts) or not {"name", "arch"} <= set(mapping):
        return None
    name, arch = str(mapping["name"]), str(mapping["arch"])
    threads = threads or _threads(facts)
    parts = _parts(facts, threads)
    kernels = _kernels(name, parts)
    smem = _smem(facts, parts, threads)
    features = _features(facts, parts, smem)
    return QuantizerPlan(
        name=name,
        namespace=f"mla::{name}_quantize",
        arch=arch,
        template=_TEMPLATE,
        spec_digest=digest.short(mapping),
        facts=facts,
        does=text.formula(facts),
        role_table=text.role_table(kernels),
        smem_table=() if smem is None else text.smem_table(smem),
        arch_guard=" || ".join(f"defined({macro})" for macro in ARCHS[arch].feature_macros),
        arch_guard_message=f"this source is for {arch}: compile it with -arch={arch}",
        device_primitives=_device_primitives(facts, features, parts),
        common_primitives=("primitives/common/field_at.cuh",) if smem is not None else (),
        mma_families=(),
        mma_atoms=(),
        features=features,
        inputs=_INPUTS,
        constants=plan_constants(facts, parts, _LARGEST_TOKENS, threads),
        smem=smem,
        params=plan_params(facts, parts),
        parts=parts,
        kernels=kernels,
        helpers=_helpers(features, parts),
        given_scales=_given_scales(facts),
        tokens_of=f"_quantize_tokens_of_{'ragged' if facts.kv_ragged else 'dense'}.cu.j2",
        v_scale=_v_scale(facts),
        rope_store="store_e4m3" if facts.rope_dtype == "e4m3" else "store_halves",
        rope_conversion={"f16": "cvt_satfinite_f16x2"}.get(facts.rope_dtype, "cvt_bf16x2"),
        threads=threads,
        smem_bytes=0 if smem is None else smem.sizeof_bytes,
        largest_tokens=_LARGEST_TOKENS,
    )


def _parts(facts: TensorFacts, threads: int) -> tuple[Part, ...]:
    """All roles, those of the first kernel in front: it is there where scales need more than a CTA's rows."""
    forms = (("q", facts.q_scale), ("k", facts.k_scale), ("v", facts.v_scale))
    parts = [
        _largest_part(facts, threads, tensor, form) for tensor, form in forms if form in ("tensor", "head")
    ]
    if facts.v_transposed:
        if facts.v_scale in ("token", "token_head"):
            parts.append(_rows_part(facts, threads, "scale_v", "ScaleV", ("v",), stores=False))
        kv = (_rows_part(facts, threads, "quantize_k", "K", ("k_nope",)), _transposing_part(facts, threads))
    elif _row_units(facts, ("k_nope", "v")) <= _LANE_UNITS:
        kv = (_rows_part(facts, threads, "quantize_kv", "Kv", ("k_nope", "v")),)
    else:
        kv = (
            _rows_part(facts, threads, "quantize_k", "K", ("k_nope",)),
            _rows_part(facts, threads, "quantize_v", "V", ("v",)),
        )
    return (*parts, _rows_part(facts, threads, "quantize_q", "Q", _q_names(facts)), *kv)


def _largest_part(facts: TensorFacts, threads: int, tensor: str, form: str) -> Part:
    """CTAs that look for the largest elements of a tensor per head or of all."""
    segment = "v" if tensor == "v" else f"{tensor}_nope"
    names, targets = [segment], [Target(name=f"{tensor}_largest", segment=segment, form=form)]
    if tensor == "q" and _is_prescaled(facts, "q"):
        names.append("q_rope")
        targets.append(Target(name="q_rope_largest", segment="q_rope", form=form))
    return _part(
        facts,
        threads,
        f"largest_{tensor}",
        f"Largest{tensor.upper()}",
        tuple(names),
        body="_quantize_largest.cu.j2",
        targets=tuple(targets),
    )


def _rows_part(
    facts: TensorFacts,
    threads: int,
    function: str,
    prefix: str,
    names: tuple[str, ...],
    *,
    stores: bool = True,
) -> Part:
    """CTAs that read rows and store them, or their scales alone."""
    by_token = any(_form(facts, name) == "token" for name in names)
    body = "_quantize_rows_by_token.cu.j2" if by_token else "_quantize_rows.cu.j2"
    return _part(facts, threads, function, prefix, names, body=body, stores=stores, scaled=True)


def _transposing_part(facts: TensorFacts, threads: int) -> Part:
    return _part(
        facts, threads, "transpose_v", "TransposeV", ("v",), body="_quantize_transpose_v.cu.j2", stores=True
    )


def _part(
    facts: TensorFacts,
    threads: int,
    function: str,
    prefix: str,
    names: tuple[str, ...],
    *,
    body: str,
    targets: tuple[Target, ...] = (),
    stores: bool = False,
    scaled: bool = False,
) -> Part:
    lanes, steps, thread_units = _row_shape(facts, names, threads)
    scales = tuple(_scale(facts, name) for name in names if scaled and _form(facts, name) != "none")
    token_scales = tuple(scale for scale in scales if scale.form == "token")
    has_k = facts.rope > 0 and "k_nope" in names
    carries_k_rope = any(scale.name == "k_scale" and scale.is_prescaled for scale in token_scales)
    raises_k_rope = has_k and bool(targets) and _is_prescaled(facts, "k")
    k_rope = "_quantize_k_rope.cu.j2" if has_k and stores and not carries_k_rope else None
    side = "q" if names[0].startswith("q") else "kv"
    return Part(
        function=function,
        does=text.DOES[function],
        body=body,
        prefix=f"k{prefix}",
        row=f"{side}_row",
        total="q_tokens" if side == "q" else "k_tokens",
        heads="heads" if side == "q" else "kv_heads",
        per_cta=f"{function}_tokens",
        ctas=f"{function}_ctas",
        lanes=lanes,
        steps=steps,
        thread_units=thread_units,
        rows_per_cta=threads // lanes * steps,
        segments=tuple(_segment(facts, prefix, name, stores=stores, last=names[-1]) for name in names),
        scales=scales,
        token_scales=token_scales,
        targets=targets,
        stores=stores,
        k_rope="_quantize_largest_k_rope.cu.j2" if raises_k_rope else k_rope,
        carries_k_rope=carries_k_rope,
        raises_k_rope=raises_k_rope,
    )


def _row_shape(facts: TensorFacts, names: tuple[str, ...], threads: int) -> tuple[int, int, int]:
    """Lanes that share a row of these segments, rows that a thread has a part of, and units in them all."""
    units = row_units(facts, names).values()
    lanes = min(ROW_LANES, *(count & -count for count in units))
    row = sum(units) // lanes
    steps = max(1, min(_CTA_ROWS * lanes // threads, _LANE_UNITS // row))
    return lanes, steps, steps * row


def _form(facts: TensorFacts, name: str) -> str:
    return {"q_nope": facts.q_scale, "k_nope": facts.k_scale, "v": facts.v_scale}.get(name, "none")


def _is_prescaled(facts: TensorFacts, tensor: str) -> bool:
    """Whether rope is divided by the scale of q or k."""
    form = {"q": facts.q_scale, "k": facts.k_scale}.get(tensor, "none")
    return facts.rope > 0 and facts.rope_prescaled and form != "none"


def _scale(facts: TensorFacts, segment: str) -> ScaleStep:
    form, tensor = _form(facts, segment), segment[0]
    prescaled = _is_prescaled(facts, tensor)
    source = {"token": "token", "token_head": "row"}.get(form, "given")
    token = f"_quantize_token_scale{f'_{tensor}' if prescaled else ''}.cu.j2"
    return ScaleStep(
        name=f"{tensor}_scale",
        divisor=f"{tensor}_by",
        form=form,
        segment=segment,
        rope="q_rope" if tensor == "q" and prescaled else "",
        partial=f"_quantize_scale_{source}.cu.j2",
        token_partial=token if form == "token" else "",
        slot=f"k{tensor.upper()}ScaleSlot",
        rope_slot="kQRopeSlot" if tensor == "q" and prescaled else "",
        largest=f"{tensor}_largest",
        rope_largest=f"{tensor}_rope_largest",
        is_prescaled=prescaled,
        is_per_head=form == "head",
    )


def _segment(facts: TensorFacts, prefix: str, name: str, *, stores: bool, last: str) -> Segment:
    stem = name.rpartition("_")[2].title()
    tensor = name[0]
    is_divided = _is_prescaled(facts, tensor) if name == "q_rope" else _form(facts, name) != "none"
    halves = name == "q_rope" and facts.rope_dtype != "e4m3"
    return Segment(
        name=name,
        units=f"k{prefix}{stem}Units",
        offset=f"k{stem}OffsetBytes",
        row_bytes={"q_rope": "kRopeRowBytes", "v": "kVDepth"}.get(name, "kNopeDepth"),
        store=("store_halves" if halves else "store_e4m3") if stores else "",
        divisor=f"{tensor}_by" if is_divided else "",
        after=") {" if name == last else ",",
    )


def _given_scales(facts: TensorFacts) -> tuple[ScaleStep, ...]:
    """Those that the first kernel found the largest elements for."""
    segments = [name for name in ("q_nope", "k_nope", "v") if _form(facts, name) in ("tensor", "head")]
    return tuple(_scale(facts, name) for name in segments)


def _v_scale(facts: TensorFacts) -> str | None:
    """The partial for the scale of a token in transpose_v."""
    if facts.v_scale == "none":
        return None
    return f"_quantize_v_scale_{facts.v_scale}.cu.j2"


def _kernels(name: str, parts: tuple[Part, ...]) -> tuple[QuantizerKernel, ...]:
    first = tuple(part for part in parts if not part.stores)
    second = tuple(part for part in parts if part.stores)
    made = [
        QuantizerKernel(
            function="find_scales", entry=f"{name}_scales", does="largest elements, and scales", roles=first
        ),
        QuantizerKernel(
            function="quantize",
            entry=f"{name}_quantize",
            does="stored values and all other scales",
            roles=second,
        ),
    ]
    return tuple(kernel for kernel in made if kernel.roles)


def _smem(facts: TensorFacts, parts: tuple[Part, ...], threads: int) -> Smem | None:
    """The map of shared memory: what the rows of a token tell each other, and V while it is turned."""
    rows = max((part.rows_per_cta for part in parts if part.token_scales), default=0)
    sizes = [
        (
            "largest_smem",
            "float",
            2 * rows,
            4,
            "the largest magnitude of each row, for two scales",
            "by token",
        ),
        ("scale_smem", "float", 2 * rows, 4, "the scale of each token, for two tensors", "by token"),
    ]
    fields, offset = [], 0
    if facts.v_transposed:
        v_bytes = facts.v * threads // 32 * V_GROUP_TOKENS
        sizes.append(("v_smem", "u8", v_bytes, 1, "V in e4m3, tokens along rows", "transpose_v"))
    for name, element, count, size, content, live in sizes:
        if count == 0:
            continue
        fields.append(
            SmemField(
                name=name,
                element=element,
                count=count,
                offset_bytes=offset,
                size_bytes=count * size,
                align_bytes=_SMEM_ALIGN_BYTES,
                content=content,
                live=live,
            )
        )
        offset += -(-count * size // _SMEM_ALIGN_BYTES) * _SMEM_ALIGN_BYTES
    if not fields:
        return None
    last = fields[-1]
    return Smem(
        fields=tuple(fields),
        constants=(),
        sized_constants=(),
        last_field=last.name,
        used_bytes=last.offset_bytes + last.size_bytes,
        sizeof_bytes=offset,
        align_bytes=_SMEM_ALIGN_BYTES,
        limit_bytes=48 * 1024,
    )


def _features(facts: TensorFacts, parts: tuple[Part, ...], smem: Smem | None) -> QuantizerFeatures:
    scaled = {"q": facts.q_scale, "k": facts.k_scale, "v": facts.v_scale}
    divided = [tensor for tensor in ("q", "k") if _is_prescaled(facts, tensor)]
    has_rope, halves = facts.rope > 0, facts.rope > 0 and facts.rope_dtype != "e4m3"
    rows = [scaled["q"], scaled["k"], *([] if facts.v_transposed else [scaled["v"]])]
    return QuantizerFeatures(
        has_rope=has_rope,
        has_scales=set(scaled.values()) != {"none"},
        rope_prescaled=bool(divided),
        rope_e4m3=facts.rope_dtype == "e4m3",
        divides_halves=halves and bool(divided),
        stores_halves=halves and len(divided) < 2,
        divides_e4m3=set(rows) != {"none"},
        stores_plain_e4m3="none" in rows or (has_rope and not halves and len(divided) < 2),
        divides_k_rope="k" in divided,
        q_dense=not facts.q_ragged,
        kv_dense=not facts.kv_ragged,
        kv_ragged=facts.kv_ragged,
        uses_smem=smem is not None,
        has_token_scales=any(part.token_scales for part in parts),
        looks_at_rows=any(part.targets or part.scales for part in parts),
        transposes_v=facts.v_transposed,
        v_scaled=facts.v_scale != "none",
        v_given=facts.v_transposed and facts.v_scale in ("tensor", "head"),
    )


def _device_primitives(
    facts: TensorFacts, features: QuantizerFeatures, parts: tuple[Part, ...]
) -> tuple[str, ...]:
    """Headers of the primitive layer in a fixed order, only those that the kernels use."""
    raises = any(part.targets for part in parts)
    halves = features.has_rope and not features.rope_e4m3
    used = {
        "types": True,
        "layout": features.uses_smem,
        "thread": True,
        "shuffle_f32": features.has_token_scales,
        "shuffle_u32": features.looks_at_rows,
        "barrier": features.uses_smem,
        "shared_memory": features.uses_smem,
        "ld_shared_f32": features.has_token_scales,
        "ld_shared_v4_u32": features.transposes_v,
        "st_shared_f32": features.has_token_scales,
        "st_shared_u32": features.transposes_v,
        "ld_global_f32": raises or (features.transposes_v and features.v_scaled),
        "ld_global_i32": features.transposes_v and features.kv_ragged,
        "ld_global_v4_u32": True,
        "st_global_f32": features.has_scales,
        "st_global_v2_u32": True,
        "st_global_v4_u32": features.transposes_v or halves,
        "atomic_max_global_u32": raises,
        "float_bits": raises,
        "mul_hi_u32": True,
        "max_u16x2": features.looks_at_rows,
        "min_u16x2": features.divides_halves,
        "max_nan_f32": features.has_scales,
        "divide": features.has_scales,
        "unpack_bf16": True,
        "unpack_f16": True,
        "convert_e4m3": True,
        "convert_bf16": halves and facts.rope_dtype == "bf16",
        "convert_f16_satfinite": halves and facts.rope_dtype == "f16",
        "math": features.has_scales,
    }
    return tuple(f"primitives/device/{name}.cuh" for name, is_used in used.items() if is_used)


def _helpers(features: QuantizerFeatures, parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Partials with the functions that roles share, only those that are used."""
    forms = {target.form for part in parts for target in part.targets}
    forms |= {"tensor" for part in parts if part.raises_k_rope}
    used = {
        "scales": features.has_scales,
        "largest_of_row": features.looks_at_rows,
        "raise_tensor": "tensor" in forms,
        "raise_head": "head" in forms,
        "given_scales": any(part.targets for part in parts),
        "store_e4m3": features.stores_plain_e4m3,
        "store_e4m3_divided": features.divides_e4m3,
        "store_halves": features.stores_halves,
        "store_halves_divided": features.divides_halves,
        "token_slots": features.has_token_scales,
    }
    return tuple(f"_quantize_{name}.cu.j2" for name, is_used in used.items() if is_used)
