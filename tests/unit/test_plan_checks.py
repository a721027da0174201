"""Each invariant of a plan has been seen to fire, and the planner breaks none, whatever a spec says."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_codegen.arch import ARCHS
from mla_codegen.errors import PlanError, SpecError
from mla_codegen.plan import Plan, checks, make_plan
from mla_codegen.plan.checks import broken_invariants
from mla_codegen.plan.model import ConstantGroup, Variant
from mla_codegen.spec import Origin, Spec

LIMITS = ARCHS["sm_90a"]
BASE: dict[str, Any] = {"name": "k", "arch": "sm_90a", "dims": {"nope": 128, "rope": 64, "v": 128}}
FP8 = BASE | {"dtypes": {"qkv": "e4m3"}, "scales": {"q": "token", "k": "token", "rope": "prescaled"}}
BF16 = BASE | {"dtypes": {"qkv": "bf16"}}
V_TOKEN = FP8 | {"scales": {"q": "token", "k": "token", "v": "token", "rope": "prescaled"}}
DENSE = BF16 | {"layout": {"q": "dense", "kv": "dense"}}

Change = Callable[[Variant], Variant]


def swap(items: tuple, name: str, **values: object) -> tuple:
    """The items with fields of the one called `name` replaced."""
    assert any(item.name == name for item in items), f"there is no {name}"
    return tuple(replace(item, **values) if item.name == name else item for item in items)


def smem_field(name: str, **values: object) -> Change:
    return lambda v: replace(v, smem=replace(v.smem, fields=swap(v.smem.fields, name, **values)))


def smem(**values: object) -> Change:
    return lambda v: replace(v, smem=replace(v.smem, **values))


def without_field(name: str) -> Change:
    def change(v: Variant) -> Variant:
        kept = tuple(item for item in v.smem.fields if item.name != name)
        assert len(kept) + 1 == len(v.smem.fields), f"there is no {name}"
        return replace(v, smem=replace(v.smem, fields=kept))

    return change


def seed_constant(name: str, value: int) -> Change:
    return lambda v: replace(v, smem=replace(v.smem, constants=swap(v.smem.constants, name, value=value)))


def mbarrier(name: str, **values: object) -> Change:
    return lambda v: replace(v, mbarriers=swap(v.mbarriers, name, **values))


def named(name: str, **values: object) -> Change:
    return lambda v: replace(v, named_barriers=swap(v.named_barriers, name, **values))


def role(name: str, **values: object) -> Change:
    return lambda v: replace(v, roles=swap(v.roles, name, **values))


def tensor_map(name: str, **values: object) -> Change:
    return lambda v: replace(v, tensor_maps=swap(v.tensor_maps, name, **values))


def launch(**values: object) -> Change:
    return lambda v: replace(v, launch=replace(v.launch, **values))


def constant(name: str, literal: str) -> Change:
    def group(old: ConstantGroup) -> ConstantGroup:
        return replace(
            old,
            constants=tuple(
                replace(item, literal=literal) if item.name == name else item for item in old.constants
            ),
        )

    return lambda v: replace(v, constants=tuple(group(old) for old in v.constants))


# What is planted, and the whole of one sentence that it must bring.
FAULTS: list[tuple[dict[str, Any], Change, str]] = [
    (
        FP8,
        smem_field("kv_smem", offset_bytes=48128),
        "kv_smem starts at 48128, the field before it ends at 49152",
    ),
    (FP8, smem_field("v_smem", offset_bytes=122881), "v_smem at 122881 is not aligned to 1024"),
    (FP8, smem_field("mbar_base", count=16), "mbar_base has 160 bytes, 16 elements of u64"),
    (
        BF16,
        smem_field("q_smem", align_bytes=2048),
        "q_smem is aligned to 2048, the struct to 1024 only",
    ),
    (BF16, smem(used_bytes=213152), "the fields end at 213144, used_bytes is 213152"),
    (BF16, smem(sizeof_bytes=213072), "sizeof is 213072, 213144 bytes are rounded up to 1024"),
    (FP8, smem(sizeof_bytes=233472), "233472 bytes of shared memory exceed 232448"),
    (
        FP8,
        smem_field("o_master_smem", size_bytes=49168),
        "work_smem starts at 223104, the field before it ends at 223120",
    ),
    (
        FP8,
        smem_field("o_master_smem", count=49136, size_bytes=49136),
        "o_master_smem has 49136 bytes, 3 consumers have 16384 each",
    ),
    (FP8, role("consumer", num_warps=8), "o_master_smem has 49152 bytes, 2 consumers have 16384 each"),
    (
        FP8,
        constant("kMasterVectorStride", "1024"),
        "master vectors are 1024 bytes apart, 128 threads have 16 each",
    ),
    # 64 x 2 / 8 vectors x 2048
    (FP8, constant("kMasterVectorBytes", "8"), "master vectors cover 32768 bytes, a consumer has 16384"),
    (FP8, constant("kMasterGroupBytes", "8192"), "master vectors cover 16384 bytes, a consumer has 8192"),
    (FP8, seed_constant("q_bytes", 49153), "q_bytes is 49153, its field q_smem has 49152 bytes"),
    (FP8, seed_constant("kv_bytes", 1024), "kv_bytes is 1024, its field kv_smem has 73728 bytes"),
    (FP8, smem(sized_constants=()), "0 constants are compared with fields, 3 name one"),
    (
        FP8,
        constant("kKScaleStageBytes", "256"),
        "k_scale_smem has 1152 bytes, 3 stages of kKScaleStageBytes have 768",
    ),
    (
        V_TOKEN,
        constant("kVScaleStageBytes", "256"),  # logarithms without reciprocals
        "v_scale_smem has 1536 bytes, 3 stages of kVScaleStageBytes have 768",
    ),
    (FP8, without_field("k_scale_smem"), "k_scale_smem has 0 bytes, 3 stages of kKScaleStageBytes have 1152"),
    (FP8, launch(smem_bytes=222208), "the launch asks for 222208 bytes, the struct has 224256"),
    (FP8, mbarrier("k_empty", first_index=3), "k_empty starts at index 3, the one before it ends at 9"),
    (FP8, mbarrier("k_empty", arrivals=8), "k_empty expects 8 arrivals, 12 threads arrive"),
    (FP8, mbarrier("q_empty", arrivals=12), "q_empty expects 12 arrivals, 4 threads arrive"),
    (FP8, mbarrier("v_full", arrivals=1), "v_full expects 1 arrivals, 3 threads arrive"),
    (BF16, mbarrier("v_tail_cleared", arrivals=32), "v_tail_cleared expects 32 arrivals, 1 threads arrive"),
    (BF16, mbarrier("k_empty", arrives="correction"), "k_empty expects 8 arrivals, 0 threads arrive"),
    (BF16, mbarrier("k_full", tx_bytes=49024), "k_full expects 49024 bytes, its copies bring 49152"),
    (FP8, mbarrier("v_full", tx_bytes=12288), "v_full expects 12288 bytes, its copies bring 0"),
    (FP8, tensor_map("v_map", box=(128, 80, 1)), "v_raw_full expects 12288 bytes, its copies bring 10240"),
    (FP8, mbarrier("q_full", tx_bytes=2**20), "q_full expects 1048576 bytes, the limit is 1048575"),
    (FP8, mbarrier("q_full", arrivals=2**20), "q_full expects 1048576 arrivals, the limit is 1048575"),
    (BF16, tensor_map("q_nope_map", issues=1), "q_full expects 24576 bytes, its copies bring 16384"),
    (FP8, constant("kKStages", "4"), "k_full has 3 where the source says kKStages, which is 4"),
    (
        FP8,
        constant("kConsumerArrivals", "384"),
        "v_empty has 12 where the source says kConsumerArrivals, which is 384",
    ),
    (FP8, lambda v: replace(v, num_mbars=16), "the barriers are 20, num_mbars is 16"),
    (
        FP8,
        smem_field("mbar_base", count=24, size_bytes=192),
        "mbar_base has room for 24 barriers, num_mbars is 20",
    ),
    (FP8, named("turn_1", id=1), "named barrier ids [1, 1, 3] are not distinct numbers from 1 to 15"),
    (BF16, named("turn_0", id=0), "named barrier ids [0, 2] are not distinct numbers from 1 to 15"),
    (BF16, named("turn_1", id=16), "named barrier ids [1, 16] are not distinct numbers from 1 to 15"),
    (BF16, named("turn_1", threads=250), "turn_1 is for 250 threads, not whole warps of the CTA"),
    (BF16, named("turn_1", threads=512), "turn_1 is for 512 threads, not whole warps of the CTA"),
    (FP8, role("transpose", first_warp=2), "role transpose starts at warp 2, the one before it ends at 1"),
    (FP8, role("consumer", num_warps=8), "the roles have 12 warps, the launch 512 threads"),
    (BF16, launch(launch_registers=176), "the launch has 176 registers a thread, it can have 168"),
    (
        BF16,
        role("consumer", registers=244),
        "role consumer has 244 registers, which setmaxnreg does not take",
    ),
    (BF16, role("consumer", registers=16), "role consumer has 16 registers, which setmaxnreg does not take"),
    # 128 x (32 + 3 x 168) = 68608 of 512 x 128
    (FP8, role("consumer", registers=168), "the warpgroups take 68608 registers, the launch allocates 65536"),
    (FP8, role("load", registers=24), "warpgroup 0 has several register counts: [24, 32]"),
    (
        FP8,
        tensor_map("k_nope_map", box=(128, 96)),
        "k_nope_map has a box of 2 dimensions, 3 axes and 3 dims",
    ),
    (
        DENSE,
        tensor_map("v_map", axes=("depth", "tokens", "heads")),
        "v_map has a box of 4 dimensions, 3 axes and 4 dims",
    ),
    (DENSE, tensor_map("k_rope_map", dims=(2, 1)), "k_rope_map has a box of 4 dimensions, 4 axes and 2 dims"),
    (
        FP8,
        tensor_map("k_nope_map", box=(128, 288, 1)),
        "k_nope_map has box (128, 288, 1), each extent is at most 256",
    ),
    (FP8, tensor_map("v_map", box=(128, 0, 1)), "v_map has box (128, 0, 1), each extent is at most 256"),
    (FP8, tensor_map("v_map", issue_bytes=12160), "v_map issues 12160 bytes, its box has 12288"),
    (
        BF16,
        tensor_map("v_map", box=(32, 256, 1)),
        "v_map has box (32, 256, 1), its rows are not 128 bytes wide",
    ),
]


def broken(spec: dict[str, Any], change: Change) -> tuple[str, ...]:
    plan = make_plan(Spec.from_mapping(spec))
    (variant,) = plan.variants
    return broken_invariants(replace(plan, variants=(change(variant),)), LIMITS)


@pytest.mark.parametrize(("spec", "change", "sentence"), FAULTS, ids=[fault[2] for fault in FAULTS])
def test_planted_faults_are_found(spec: dict[str, Any], change: Change, sentence: str) -> None:
    assert sentence in broken(spec, change)


@pytest.mark.parametrize("spec", [FP8, BF16, V_TOKEN, DENSE], ids=["fp8", "bf16", "v_token", "dense"])
def test_sound_plans_break_nothing(spec: dict[str, Any]) -> None:
    assert broken(spec, lambda variant: variant) == ()


def sentences() -> list[str]:
    """Every sentence that the checks can say, as a pattern."""
    patterns = []
    for node in ast.walk(ast.parse(inspect.getsource(checks))):
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.JoinedStr):
            texts = [
                re.escape(part.value) if isinstance(part, ast.Constant) else ".+"
                for part in node.value.values
            ]
            patterns.append("".join(texts))
    return patterns


def test_every_check_has_a_planted_fault() -> None:
    assert len(sentences()) > 20
    for pattern in sentences():
        assert any(re.fullmatch(pattern, fault[2]) for fault in FAULTS), f"nothing planted brings: {pattern}"


def test_a_broken_plan_never_leaves_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "broken_invariants", lambda plan, limits: ("the sky falls",))
    with pytest.raises(AssertionError, match="the sky falls"):
        make_plan(Spec.from_mapping(BF16))


AUTO = st.just("auto")
SIZES = st.fixed_dictionaries(
    {
        "tile": st.fixed_dictionaries(
            {
                "block_m": AUTO | st.sampled_from([64, 128, 144, 192, 256]),
                "block_n": AUTO | st.integers(1, 20).map(lambda i: 16 * i),
            }
        ),
        "pipeline": st.fixed_dictionaries(
            {name: AUTO | st.integers(1, 8) for name in ("kv_stages", "v_stages", "v_raw_stages")}
        ),
        "schedule": st.fixed_dictionaries(
            {"consumers": AUTO | st.integers(1, 4), "order": AUTO | st.sampled_from(["turns", "ping_pong"])}
        ),
        "softmax": st.fixed_dictionaries({"variant": AUTO | st.sampled_from(["online", "lazy"])}),
        "accumulation": st.fixed_dictionaries({"flush_blocks": AUTO | st.sampled_from([1, 12, 65536])}),
        "mask": st.sampled_from(["full", "causal", {"window": [64, 0]}]),
    }
)
ORIGIN = Origin(path="specs/k.yaml", positions={"name": (1, 1), "tile": (2, 3), "mask": (9, 9)})


@settings(max_examples=150, deadline=None)
@given(
    base=st.sampled_from([FP8, BF16]),
    out=st.sampled_from(["bf16", "f32"]),
    sizes=SIZES,
    debug=st.booleans(),
)
def test_every_spec_gives_a_sound_plan_or_located_diagnostics(
    base: dict[str, Any], out: str, sizes: dict[str, Any], debug: bool
) -> None:
    data = base | sizes | {"dtypes": {**base["dtypes"], "out": out}}
    spec = Spec.from_mapping(data, origin=ORIGIN)
    try:
        plan = make_plan(spec, debug=debug)
    except PlanError as error:
        for fault in error.diagnostics:
            assert fault.path == "specs/k.yaml"
            assert fault.field and fault.message and fault.help
            if fault.field.split(".")[0] in ("tile", "mask"):
                assert fault.line is not None
    else:
        assert broken_invariants(plan, LIMITS) == ()
        features, fp8 = plan.variants[0].features, base is FP8
        assert features.debug is debug
        order = "turns" if fp8 else "ping_pong"
        assert sizes["schedule"]["order"] in ("auto", order)
        pairs = "_pairs" if features.lazy_softmax and not fp8 else ""
        assert plan.variants[0].partials.kv_step == f"_kv_step_{order}{pairs}_sm90.cu.j2"
        assert features.flushes_output is fp8
        said = sizes["softmax"]["variant"]
        # Three 16-bit consumers may have no room for the lazy softmax.
        assert features.lazy_softmax is (said != "online") or (said == "auto" and not fp8)
        assert Plan.from_json(plan.to_json()) == plan


SCALE = st.sampled_from(["none", "tensor", "head", "token", "token_head"])
DIMS = st.integers(1, 16).map(lambda i: 16 * i)
SIDE = st.sampled_from(["ragged", "dense"])


@settings(max_examples=300, deadline=None)
@given(
    types=st.sampled_from(
        [("e4m3", "bf16"), ("e4m3", "e4m3"), ("bf16", "bf16"), ("f16", "bf16"), ("f16", "f16")]
    ),
    out=st.sampled_from(["bf16", "f16", "f32"]),
    dims=st.fixed_dictionaries({"nope": DIMS, "rope": st.just(0) | DIMS, "v": DIMS}),
    scales=st.fixed_dictionaries({"q": SCALE, "k": SCALE, "v": SCALE}),
    rope=st.sampled_from(["prescaled", "raw"]),
    layout=st.fixed_dictionaries({"q": SIDE, "kv": SIDE, "v": st.sampled_from(["rows", "transposed"])}),
    group=st.sampled_from([1, 3]),
    lse=st.sampled_from(["none", "log2"]),
    variant=st.sampled_from(["auto", "online"]),
)
def test_every_size_scale_and_layout_gives_a_sound_plan_or_says_what_does_not_fit(
    types: tuple[str, str],
    out: str,
    dims: dict[str, int],
    scales: dict[str, str],
    rope: str,
    layout: dict[str, str],
    group: int,
    lse: str,
    variant: str,
) -> None:
    qkv, rope_type = types
    scaled = qkv == "e4m3" and {scales["q"], scales["k"]} != {"none"} and dims["rope"] > 0
    data = {
        "name": "k",
        "arch": "sm_90a",
        "dtypes": {"qkv": qkv, "out": out} | ({"rope_gmem": rope_type} if dims["rope"] else {}),
        "dims": dims,
        "scales": (scales | ({"rope": rope} if scaled else {})) if qkv == "e4m3" else {},
        "layout": layout if qkv == "e4m3" else layout | {"v": "rows"},
        "heads": {"group": group},
        "softmax": {"lse": lse, "variant": variant},
    }
    try:
        plan = make_plan(Spec.from_mapping(data))
    except SpecError as error:
        # The one combination that is no spec: a rope divided by a scale of each head.
        assert scaled and rope == "prescaled" and scales["k"] in ("head", "token_head"), str(error)
        return
    except PlanError as error:
        assert {fault.code for fault in error.diagnostics} <= {"smem-overflow", "register-overflow"}
        assert all(fault.help.endswith("take smaller dims") for fault in error.diagnostics)
        odd = dims["v"] > 128 and dims["v"] % 32 != 0  # such V needs more registers than the next multiple
        assert sum(dims.values()) > 320 or odd, str(error)
        return
    assert broken_invariants(plan, LIMITS) == ()
    assert Plan.from_json(plan.to_json()) == plan


@settings(max_examples=60, deadline=None)
@given(
    qkv=st.sampled_from(["e4m3", "bf16", "f16"]),
    arch=st.sampled_from(["sm_90a", "sm_100a", "sm_100f", "sm_103a"]),
    mask=st.sampled_from([{"prefix_lm": True}, {"window": [64, 0]}]),
    sizes=SIZES,
)
def test_unsupported_specs_are_refused_with_diagnostics(
    qkv: str, arch: str, mask: object, sizes: dict[str, Any]
) -> None:
    data = BASE | {"arch": arch, "dtypes": {"qkv": qkv}} | sizes | {"mask": mask}
    with pytest.raises(PlanError) as caught:
        make_plan(Spec.from_mapping(data))
    faults = {fault.field: fault for fault in caught.value.diagnostics}
    assert all(fault.field and fault.help for fault in faults.values())
    assert faults["mask"].help == "set mask: full or causal"
