"""Kernels in which every two features of the planner meet."""

from __future__ import annotations

import pytest

from tests.gpu.checks import ARCH, assert_kept
from tests.gpu.watched import run_watched

pytestmark = pytest.mark.gpu(ARCH)
SHARDS = 12


@pytest.mark.parametrize("shard", range(SHARDS))
def test_pairs_of_features(shard: int) -> None:
    arguments = {"shard": shard, "shards": SHARDS}
    assert_kept(run_watched("tests.gpu.cases_pairs:run", seconds=300, arguments=arguments))
