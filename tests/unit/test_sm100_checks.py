"""Invariants of Blackwell kernels: none is broken by any shape, and each has been seen to fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_codegen.plan.sm100.body import Body, Sm100Kernel, plan_kernel
from mla_codegen.plan.sm100.checks import broken_invariants
from mla_codegen.plan.sm100.mla import MLAConfig
from mla_codegen.plan.sm100.operands import Operands
from mla_codegen.plan.sm100.requests import request_faults
from tests.unit.sm100_shapes import BF16, OPERANDS, PTS, config, select

DEPTHS = st.integers(1, 16).map(lambda step: 16 * step)
PAGES = st.sampled_from((0, 16, 32, 64, 96, 128, 256))


@settings(max_examples=80, deadline=None)
@given(
    operands=st.sampled_from(OPERANDS),
    nope=DEPTHS,
    rope=st.integers(0, 16).map(lambda step: 16 * step),
    v=DEPTHS,
    page=PAGES,
    layout=st.sampled_from(("auto", "seed")),
    out=st.sampled_from(("bf16", "f32")),
)
def test_no_shape_breaks_an_invariant(
    operands: Operands, nope: int, rope: int, v: int, page: int, layout: str, out: str
) -> None:
    chosen = select(operands, nope=nope, v=v, rope=rope, page_size=page)
    if chosen.faults or request_faults(chosen.config, layout=layout):
        return
    assert broken_invariants(plan_kernel(chosen.config, layout=layout, out=out)) == ()


Change = Callable[[Body], Body]


def swap(items: tuple, name: str, **values: object) -> tuple:
    """The items with fields of the one called `name` replaced."""
    assert any(item.name == name for item in items), f"there is no {name}"
    return tuple(replace(item, **values) if item.name == name else item for item in items)


def field(name: str, **values: object) -> Change:
    def change(body: Body) -> Body:
        smem = replace(body.storage.smem, fields=swap(body.storage.smem.fields, name, **values))
        return replace(body, storage=replace(body.storage, smem=smem))

    return change


def constant(name: str, **values: object) -> Change:
    """The constant, and what is compared with a field, changed alike."""

    def change(body: Body) -> Body:
        constants = swap(body.storage.smem.constants, name, **values)
        sized = tuple(item for item in constants if item.field is not None)
        smem = replace(body.storage.smem, constants=constants, sized_constants=sized)
        return replace(body, storage=replace(body.storage, smem=smem))

    return change


def without_comparisons(body: Body) -> Body:
    smem = replace(body.storage.smem, sized_constants=())
    return replace(body, storage=replace(body.storage, smem=smem))


def region(name: str, **values: object) -> Change:
    return lambda body: replace(
        body, storage=replace(body.storage, regions=swap(body.storage.regions, name, **values))
    )


def tmem(name: str, **values: object) -> Change:
    return lambda body: replace(
        body, tmem=replace(body.tmem, regions=swap(body.tmem.regions, name, **values))
    )


def barrier(name: str, **values: object) -> Change:
    return lambda body: replace(body, mbarriers=swap(body.mbarriers, name, **values))


def role(name: str, **values: object) -> Change:
    return lambda body: replace(body, roles=swap(body.roles, name, **values))


def product(name: str, **values: object) -> Change:
    return lambda body: replace(body, products=swap(body.products, name, **values))


def named_barrier(name: str, **values: object) -> Change:
    return lambda body: replace(body, named_barriers=swap(body.named_barriers, name, **values))


BROKEN: list[tuple[Change, str]] = [
    (product("pv", n=120), "pv has N 120, a multiple of 16 up to 256"),
    (product("pv", n=272), "pv has N 272, a multiple of 16 up to 256"),
    (product("qk_rope", b="rope"), "qk_rope reads rope, which is no region"),
    (
        lambda body: replace(body, pv_parts=(96, 64)),
        "P is handed over in 160 keys, a block has 128",
    ),
    (named_barrier("output_read", id=16), "named barrier output_read has id 16"),
    (named_barrier("output_read", id=0), "named barrier output_read has id 0"),
    (field("kv_smem", offset_bytes=64512), "kv_smem starts at 64512, the field before it ends at 65536"),
    (field("kv_smem", offset_bytes=66000), "kv_smem at 66000 is not aligned to 1024"),
    (field("tmem_addr", size_bytes=8), "the fields end at 216848, used_bytes is 216844"),
    (constant("q_bytes", value=65535), "q_bytes is 65535, its field q_smem has 65536 bytes"),
    (constant("k_scale_bytes", field="k_smem"), "k_scale_bytes is 512, its field k_smem has None bytes"),
    (without_comparisons, "0 constants are compared with fields, 3 name one"),
    (region("v", count=4), "v from 163840 to 229376 is not inside of kv_smem"),
    (region("v", offset_bytes=163840 - 16), "v is not aligned to its swizzle, 512 bytes"),
    (region("v", offset_bytes=163840 - 1024), "v at 162816 lies over k_rope, which ends at 163840"),
    (region("o", stride_bytes=65536), "o from 0 to 98304 is not inside of q_smem"),
    (region("o", alias_of="o_smem"), "o is an alias of o_smem, which is no field"),
    (tmem("o0", first_col=240), "TMEM columns of o0 start at 240, those of s1 end at 256"),
    (tmem("p1", first_col=100), "p1 is not inside of s1, over which it lies"),
    (tmem("o1", cols=130), "the TMEM regions end at 514, used_cols is 512"),
    (
        lambda body: replace(body, tmem=replace(body.tmem, alloc_cols=256)),
        "256 TMEM columns are allocated for 512 of 512",
    ),
    (barrier("k_full", first_index=12), "k_full starts at index 12, the ones before it end at 11"),
    (barrier("k_full", arrivals=(1, 1)), "k_full has 3 stages and 2 arrival counts"),
    (lambda body: replace(body, num_mbars=25), "33 mbarriers, num_mbars is 25, mbar_base has 33"),
    (barrier("k_full", stages=60), "90 mbarriers, 64 are initialised"),
    (
        lambda body: replace(body, copy_bytes=replace(body.copy_bytes, q_half=1)),
        "half of Q is 1 bytes, its boxes bring 32768",
    ),
    (
        lambda body: replace(body, copy_bytes=replace(body.copy_bytes, k_nope=1)),
        "k_nope is 1 bytes a block, its boxes bring 16384",
    ),
    (barrier("v_full", tx_bytes=(1,)), "the barriers expect 32769 bytes a block, the boxes bring 49152"),
    (role("tail", num_warps=1), "the roles have 15 warps, the launch 16"),
    (role("tail", registers=24), "warps 12 to 15 ask for different numbers of registers"),
    (role("softmax", registers=208), "the roles take 2112 registers per lane, 2048 are allocated"),
    (role("tail", registers=20), "tail asks setmaxnreg for 20 registers"),
]


@pytest.mark.parametrize(("change", "sentence"), BROKEN)
def test_each_invariant_fires(change: Change, sentence: str) -> None:
    kernel = plan_kernel(config())
    assert broken_invariants(kernel) == ()
    broken = replace(kernel, bodies=(change(kernel.bodies[0]), *kernel.bodies[1:]))
    assert sentence in broken_invariants(broken)


def test_rope_and_scale_buffers_beside_a_shared_ring_are_enough() -> None:
    kernel = plan_kernel(config())
    one_q = kernel.bodies[1]
    for name in ("rope", "k_scale"):
        ring = replace(one_q.ring, **{f"{name}_buffers": 3})
        broken = replace(kernel, bodies=(kernel.bodies[0], replace(one_q, ring=ring)))
        what = "rope" if name == "rope" else "scale"
        assert broken_invariants(broken) == (f"3 {what} buffers are too few for 7 slots",)


@pytest.mark.parametrize(
    ("smem_bytes", "sentence"),
    [
        (217087, "1Q needs more shared memory than the launch asks for"),
        (232449, "232449 bytes of shared memory exceed 232448"),
    ],
)
def test_a_launch_is_as_large_as_its_bodies_and_no_larger_than_a_cta(smem_bytes: int, sentence: str) -> None:
    kernel: Sm100Kernel = plan_kernel(config())
    changed = replace(kernel, launch=replace(kernel.launch, smem_bytes=smem_bytes))
    assert sentence in broken_invariants(changed)


REQUESTS = [
    (replace(config(heads=10), group=3), "auto", "heads.q is 10, allowed with group 3: its multiples"),
    # 100 divides no 128 and the power of two below is 128 again
    (config(page_size=100), "auto", "pages have 100 tokens, allowed with 128 keys per step"),
    (config(page_size=16), "auto", "pages have 16 tokens, allowed with scales: at least 32"),
    (config(nope=112), "seed", "dims.nope is 112, allowed with smem.layout seed"),
    (config(rope=32), "seed", "dims.rope is 32, allowed with smem.layout seed"),
    # q 256 x (64 x 2 + 256 x 2) = 163840; a stage has 128 x 128 x 2 + 128 x 256 x 2 = 98304
    (
        config(BF16, nope=64, rope=256),
        "seed",
        "smem.layout seed needs 363520 B of shared memory for 2 stages",
    ),
]


@pytest.mark.parametrize(("mla", "layout", "message"), REQUESTS)
def test_what_cannot_be_asked_for_is_said_with_its_numbers(mla: MLAConfig, layout: str, message: str) -> None:
    found = request_faults(mla, layout=layout)
    assert [fault.message[: len(message)] for fault in found] == [message]
    assert all(fault.help for fault in found)


@pytest.mark.parametrize("mla", [config(), config(BF16), config(page_size=64), config(BF16, page_size=16)])
def test_what_can_be_asked_for(mla: MLAConfig) -> None:
    assert request_faults(mla) == ()


def test_pages_of_keys_without_scales_may_be_small() -> None:
    assert request_faults(config(PTS, page_size=32)) == ()
