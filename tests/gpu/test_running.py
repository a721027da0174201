"""Array libraries, streams, graphs, and what a call costs."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics, spec_names

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", spec_names())
def test_running(spec: str) -> None:
    assert_topics("running", "costs", spec=spec, seconds=180)
