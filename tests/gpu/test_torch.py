"""torch operators on the GPU: torch.compile, CUDA graphs, streams."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", spec_names())
def test_operators(spec: str) -> None:
    assert_topics("torch", spec=spec, seconds=300)
