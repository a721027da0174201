"""The emulator computes what the GPU computes."""

from __future__ import annotations

import pytest

from mla_codegen.emulator.compiler import find_compiler
from mla_codegen.errors import CompileError
from tests.emulator.support import plan_of
from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize(
    "spec", [name for name in spec_names() if plan_of(name).spec["dtypes"]["out"] == "f32"]
)
def test_emulator_agrees(spec: str) -> None:
    try:
        find_compiler()
    except CompileError as error:
        pytest.skip(str(error))
    assert_topics("emulator", spec=spec, seconds=120)
