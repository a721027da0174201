"""Strides, views, alignment, and sizes beyond 32 bits."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", spec_names())
def test_memory(spec: str) -> None:
    assert_topics("layouts", "limits", spec=spec, seconds=180)
