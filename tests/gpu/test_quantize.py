"""Generated quantisers."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_topics

pytestmark = pytest.mark.gpu(ARCH)


@pytest.mark.parametrize("spec", ["dsv3_fp8_sm90", "dsv3_fp8_vt_sm90"])
def test_quantizers(spec: str) -> None:
    assert_topics("quantize", spec=spec, seconds=240)
