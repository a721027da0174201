"""What a launch carries for every planned form: scales and log-sum-exp by address and by own strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mla_codegen.errors import LaunchError
from mla_codegen.plan import make_plan
from mla_codegen.plan.model import Plan
from mla_codegen.runtime.kernel import Kernel
from tests.forms import FORMS, form, heads_of
from tests.unit.plan_fixture import DeviceArray, FakeDriver, Launched, StubBuild, aligned

TOKENS = {"total_q": 70, "total_k": 90, "q_len": 35, "kv_len": 45}
BATCH = {"batch": 2, "batch + 1": 3}
"""Of lengths 35 and 45 each."""
CODES = {"e4m3": "u1", "bf16": "u2", "f16": "f2", "f32": "f4", "i32": "i4"}


def arrays_of(plan: Plan, heads: int, *, gaps: int = 1) -> dict[str, np.ndarray]:
    """An array for each argument; of scales, only every `gaps`-th element of each axis is used."""
    # Transposed V: whole groups of 16 tokens in each dense sequence, one more group in each ragged one.
    columns = 48 if plan.spec["layout"]["kv"] == "dense" else 16 * (TOKENS["total_k"] // 16 + 2)
    kv_heads = heads // plan.spec["heads"]["group"]
    sizes = TOKENS | BATCH | {"heads": heads, "kv_heads": kv_heads, "v_columns": columns}
    arrays = {}
    for item in plan.arguments:
        step = gaps if item.kind == "scale" else 1
        shape = tuple(step * (sizes[axis] if axis in sizes else int(axis)) for axis in item.axes)
        arrays[item.name] = aligned(shape, CODES[item.dtype])[tuple(slice(None, None, step) for _ in shape)]
    for name, length in (("cu_seqlens_q", TOKENS["q_len"]), ("cu_seqlens_k", TOKENS["kv_len"])):
        if name in arrays:
            arrays[name][:] = 0, length, 2 * length
    return arrays


def prepared(
    name: str, *, gaps: int = 1, heads: int | None = None
) -> tuple[Plan, dict[str, Any], FakeDriver]:
    """The plan of a form, the arrays of a call, and the driver that saw it."""
    spec = form(name)
    plan = make_plan(spec)
    driver = FakeDriver(plan=plan)
    kernel = Kernel(plan, "// source", StubBuild(), driver=driver)  # type: ignore[arg-type]
    arrays = arrays_of(plan, heads or heads_of(spec), gaps=gaps)
    call = {
        key: DeviceArray(array, pointer=number << 20)
        for number, (key, array) in enumerate(arrays.items(), start=1)
    }
    longest = {} if spec.layout.q == "dense" else {"max_seqlen_q": TOKENS["q_len"]}
    rope = {} if spec.dims.rope else {"q_rope": None, "k_rope": None}
    kernel(**call, **rope, **longest)
    return plan, call, driver


def launched(name: str, *, gaps: int = 1, heads: int | None = None) -> tuple[Plan, dict[str, Any], Launched]:
    """The same with the launch itself."""
    plan, call, driver = prepared(name, gaps=gaps, heads=heads)
    (launch,) = driver.launches
    return plan, call, launch


@pytest.mark.parametrize("gaps", [1, 3])
@pytest.mark.parametrize("name", FORMS)
def test_params_carry_addresses_and_strides_of_the_arrays_passed(name: str, gaps: int) -> None:
    plan, call, launch = launched(name, gaps=gaps)
    params = dict(launch.params)
    assert set(params) == {item.name for item in plan.variants[0].params}
    for item in plan.variants[0].params:
        if item.name in call:
            assert params[item.name] == call[item.name].pointer
        elif item.name.endswith("_stride"):
            array = call[item.name.rsplit("_", 2)[0]].array
            expected = 0 if item.axis is None else array.strides[item.axis] // array.itemsize
            assert params[item.name] == expected, item.name
        elif item.name.endswith("_step"):
            assert params[item.name] == 1, item.name
    sizes = TOKENS | {"batch": 2, "heads": heads_of(form(name))}
    assert {key: params[key] for key in sizes if key in params} == {
        key: size for key, size in sizes.items() if key in params
    }
    spec = form(name)
    if spec.scales.q == "token_head":
        assert params["q_scale_head_stride"] == gaps
    if spec.scales.q == "head":
        assert (params["q_scale_token_stride"], params["q_scale_head_stride"]) == (0, gaps)
    if spec.softmax.lse != "none":
        by_token = spec.softmax.lse_layout == "head_token"
        queries = TOKENS["q_len" if spec.layout.q == "dense" else "total_q"]
        strides = (1, queries) if by_token else (heads_of(spec), 1)
        assert (params["lse_token_stride"], params["lse_head_stride"]) == strides
    if spec.layout.q == "dense":
        assert params["out_batch_stride"] == TOKENS["q_len"] * heads_of(spec) * spec.dims.v


@pytest.mark.parametrize("name", FORMS)
def test_each_map_has_the_extents_and_strides_of_its_array(name: str) -> None:
    """Extents innermost first, in the order that the plan says; outer strides in bytes."""
    plan, call, driver = prepared(name)
    assert len(driver.requests) == len(plan.variants[0].tensor_maps)
    for item, request in zip(plan.variants[0].tensor_maps, driver.requests, strict=True):
        array = call[item.argument].array
        if item.argument == "k_rope":
            array = array.reshape(*array.shape[:-2], array.shape[-1])
        extents = tuple(1 if dim < 0 else array.shape[dim] for dim in item.dims)
        assert request.extents == extents
        outer = zip(item.dims[1:], request.strides, strict=True)
        assert all(stride == array.strides[dim] for dim, stride in outer if dim >= 0)
        assert (request.box, request.address) == (item.box, call[item.argument].pointer)


@pytest.mark.parametrize("name", ["bf16_group", "fp8_all_group"])
def test_keys_of_a_group_are_mapped_with_their_own_heads(name: str) -> None:
    plan, _, launch = launched(name)
    spec = form(name)
    assert launch.params["heads"] == heads_of(spec)
    assert (launch.params["k_nope_head_step"], launch.params["v_head_step"]) == (1, 1)
    found = {item.name: item.axes[1] for item in plan.arguments if item.name in ("q_nope", "k_nope", "v")}
    assert found == {"q_nope": "heads", "k_nope": "kv_heads", "v": "kv_heads"}


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_heads_that_are_no_multiple_of_the_group_are_refused(heads: int) -> None:
    message = f"q_nope has {heads} heads, a multiple of heads.group 4 above 0 is needed"
    with pytest.raises(LaunchError, match=message):
        launched("bf16_group", heads=heads)


def test_another_number_of_heads_than_the_fixed_one_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"q_nope has 3 heads, heads\.q 6 of the spec is needed"):
        launched("fp8_all_group", heads=3)
