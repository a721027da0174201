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

TOKENS = {"total_q": 70, "total_k": 90}
CODES = {"e4m3": "u1", "bf16": "u2", "f16": "f2", "f32": "f4", "i32": "i4"}


def arrays_of(plan: Plan, heads: int, *, gaps: int = 1) -> dict[str, np.ndarray]:
    """An array for each argument; of scales, only every `gaps`-th element of each axis is used."""
    sizes = TOKENS | {"heads": heads, "kv_heads": heads // plan.spec["heads"]["group"], "batch + 1": 2}
    arrays = {}
    for item in plan.arguments:
        step = gaps if item.kind == "scale" else 1
        shape = tuple(step * (sizes[axis] if axis in sizes else int(axis)) for axis in item.axes)
        arrays[item.name] = aligned(shape, CODES[item.dtype])[tuple(slice(None, None, step) for _ in shape)]
    arrays["cu_seqlens_q"][:] = 0, TOKENS["total_q"]
    arrays["cu_seqlens_k"][:] = 0, TOKENS["total_k"]
    return arrays


def launched(name: str, *, gaps: int = 1, heads: int | None = None) -> tuple[Plan, dict[str, Any], Launched]:
    """The plan of a form, the arrays of a call, and what the driver saw of it."""
    spec = form(name)
    plan = make_plan(spec)
    driver = FakeDriver(plan=plan)
    kernel = Kernel(plan, "// source", StubBuild(), driver=driver)  # type: ignore[arg-type]
    arrays = arrays_of(plan, heads or heads_of(spec), gaps=gaps)
    call = {
        key: DeviceArray(array, pointer=number << 20)
        for number, (key, array) in enumerate(arrays.items(), start=1)
    }
    kernel(**call, max_seqlen_q=TOKENS["total_q"])
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
    spec = form(name)
    if spec.scales.q == "token_head":
        assert params["q_scale_head_stride"] == gaps
    if spec.scales.q == "head":
        assert (params["q_scale_token_stride"], params["q_scale_head_stride"]) == (0, gaps)
    if spec.softmax.lse != "none":
        by_token = spec.softmax.lse_layout == "head_token"
        strides = (1, TOKENS["total_q"]) if by_token else (heads_of(spec), 1)
        assert (params["lse_token_stride"], params["lse_head_stride"]) == strides


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
