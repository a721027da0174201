"""Scales, extreme logits and accuracy."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", spec_names())
def test_numbers(spec: str) -> None:
    assert_topics("numbers", spec=spec, seconds=120)
