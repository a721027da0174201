"""Every planned form: it compiles as its plan says, without spills, local memory or compiler notes."""

from __future__ import annotations

import pytest

from mla_codegen.plan import make_plan
from mla_codegen.render import render
from mla_codegen.runtime.nvrtc import compile_source
from tests.compile.support import assert_as_planned, nvrtc_missing
from tests.forms import FORMS, form

pytestmark = pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}")


@pytest.mark.parametrize("name", FORMS)
def test_it_compiles_as_planned(name: str) -> None:
    plan = make_plan(form(name))
    result = compile_source(render(plan), arch=plan.arch, name=name)
    for variant in plan.variants:
        assert_as_planned(variant, result)


@pytest.mark.parametrize("name", ["bf16_lse_group", "fp8_all_group", "fp8_tensor_lse", "transposed_dense"])
def test_the_debug_build_compiles(name: str) -> None:
    plan = make_plan(form(name), debug=True)
    result = compile_source(render(plan), arch=plan.arch, name=name, strict=False)
    assert b"mla_debug_record" in result.cubin
