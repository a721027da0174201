"""Results against float64 over sizes; empty sequences and batch mates do not matter."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", spec_names())
def test_sizes(spec: str) -> None:
    assert_topics("sizes", spec=spec, seconds=180)


@pytest.mark.parametrize("spec", spec_names())
def test_rows_of_a_batch(spec: str) -> None:
    assert_topics("empty", "isolation", spec=spec, seconds=120)
