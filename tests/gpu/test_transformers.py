"""DeepSeek V3 of transformers on the GPU."""

from __future__ import annotations

import sys

import pytest

from tests.gpu.checks import ARCH, assert_kept
from tests.gpu.watched import run_command, run_watched

pytest.importorskip("transformers")
pytestmark = pytest.mark.gpu(ARCH)

SPECS = ("dsv3_bf16_sm90", "dsv3_fp8_sm90")


@pytest.mark.parametrize("spec", SPECS)
def test_the_model(spec: str) -> None:
    assert_kept(run_watched("tests.gpu.cases_transformers:run", seconds=300, arguments={"spec": spec}))


@pytest.mark.parametrize("spec", SPECS)
def test_the_example(spec: str) -> None:
    command = [sys.executable, "examples/transformers_deepseek_v3.py", "--spec", f"specs/{spec}.yaml"]
    code, printed = run_command([*command, "--device", "cuda"], seconds=180)
    assert code == 0, printed
