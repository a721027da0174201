"""Quantisers of drawn specs: they compile, and give the bits of NumPy under the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mla_codegen.emulator.quantizer import EmulatedQuantizer
from mla_codegen.plan.quantizer import plan_quantizer, quantizes
from mla_codegen.problems import DATA_KINDS, random_inputs
from mla_codegen.quantize import quantize
from mla_codegen.render import render_quantizer
from mla_codegen.runtime.nvrtc import compile_source
from mla_codegen.spec import Spec
from mla_codegen.tensors import tensor_facts
from tests.compile.support import nvrtc_missing
from tests.drawn.examples import examples
from tests.drawn.specs import KINDS, legal_specs
from tests.drawn.test_legal import assert_readable

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
LONGEST = 40


@st.composite
def inputs_of(draw: st.DrawFn, spec: Spec) -> dict[str, Any]:
    """True inputs in bf16 or f16, lengths among them."""
    facts = tensor_facts(spec)
    batch = draw(st.integers(1, 4))
    length = st.integers(0, LONGEST)
    lens = [
        draw(st.lists(length, min_size=batch, max_size=batch) if ragged else length)
        for ragged in (facts.q_ragged, facts.kv_ragged)
    ]
    assume(all(np.sum(one) > 0 for one in lens))
    heads = facts.heads or facts.group * draw(st.integers(1, 5))
    inputs = random_inputs(
        spec,
        batch=batch,
        heads=heads,
        q_lens=lens[0],
        kv_lens=lens[1],
        data=draw(st.sampled_from(DATA_KINDS)),
        seed=draw(st.integers(0, 99)),
    )
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    return {
        name: value.astype(dtype) if name in ("q", "kv", "k_rope") and value is not None else value
        for name, value in inputs.items()
    }


@pytest.mark.parametrize("kind", KINDS)
@examples(ci=10, nightly=50)
@given(data=st.data())
def test_a_quantiser_has_the_bits_of_numpy(kind: str, data: st.DataObject) -> None:
    spec = Spec.from_mapping(data.draw(legal_specs(kind)))
    plan = plan_quantizer(spec)
    assert (plan is not None) == quantizes(tensor_facts(spec))
    if plan is None:
        return
    source = render_quantizer(plan)
    assert_readable(source)
    if nvrtc_missing() is None:
        compile_source(source, arch=plan.arch, name=plan.name)
    inputs = data.draw(inputs_of(spec))
    expected = quantize(spec, **inputs)
    arrays = {name: inputs[name] for name in ("q", "kv", "k_rope") if inputs[name] is not None}
    seed, policy = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 2))
    kernel = EmulatedQuantizer(plan, source)
    found = kernel.run(arrays, cu_seqlens_k=inputs.get("cu_seqlens_k"), seed=seed, policy=policy)
    assert [hazard.text for hazard in found.hazards] == []
    assert set(found.unwritten.values()) == {0}
    for name, array in found.outputs.items():
        assert array.shape == expected[name].shape
        assert array.tobytes() == expected[name].tobytes(), name
