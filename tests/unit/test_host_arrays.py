"""launch_on_host_arrays: what reaches the kernel and what comes back, with NumPy in the place of CuPy."""

from __future__ import annotations

import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.errors import LaunchError
from mla_codegen.runtime.host_arrays import launch_on_host_arrays


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that copies as CuPy does and knows as few dtypes."""

    def asarray(array: np.ndarray) -> np.ndarray:
        assert array.dtype.kind in "fiu", f"CuPy does not know {array.dtype}"
        return array.copy()

    stand_in = types.ModuleType("cupy")
    stand_in.__dict__.update(asarray=asarray, asnumpy=np.copy)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)


@pytest.mark.usefixtures("copies")
def test_codes_go_there_and_results_come_back() -> None:
    seen: dict[str, Any] = {}

    def kernel(*, q: np.ndarray, max_seqlen_q: int, out: np.ndarray, lse: np.ndarray) -> None:
        seen.update(q=q, max_seqlen_q=max_seqlen_q, poison=out.copy())
        out[:1] = np.array([2.0], dtype=ml_dtypes.bfloat16).view(np.uint16)
        lse[...] = 3.0

    q = np.array([1.0, 448.0], dtype=ml_dtypes.float8_e4m3fn)
    out = np.full((2,), np.nan, dtype=ml_dtypes.bfloat16)
    lse = np.full((2,), np.nan, dtype=np.float32)
    launch_on_host_arrays(kernel, {"q": q, "max_seqlen_q": 5}, out, lse)
    assert seen["q"].dtype == np.uint8
    assert seen["q"].tolist() == q.view(np.uint8).tolist()
    assert seen["max_seqlen_q"] == 5
    assert np.isnan(seen["poison"].view(ml_dtypes.bfloat16).astype(np.float32)).all()
    assert float(out[0]) == 2.0
    assert np.isnan(float(out[1])), "what the kernel does not write stays NaN"
    assert lse.tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("copies")
def test_without_lse_the_kernel_gets_none() -> None:
    def kernel(*, out: np.ndarray) -> None:
        out[...] = 1.0

    out = np.full((2,), np.nan, dtype=np.float32)
    launch_on_host_arrays(kernel, {}, out, None)
    assert out.tolist() == [1.0, 1.0]


def test_missing_cupy_is_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LaunchError, match=r"error\[no-cupy\]"):
        launch_on_host_arrays(lambda: None, {}, np.zeros(1), None)
