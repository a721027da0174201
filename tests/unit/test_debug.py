"""The debug build's record, from bytes to a sentence."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mla_codegen.errors import LaunchError
from mla_codegen.runtime.debug import RECORD_BYTES, format_record
from mla_codegen.runtime.kernel import Kernel
from tests.unit.plan_fixture import FakeDriver, make_plan

VARIANT = make_plan(debug=True).variants[0]
SMEM_BASE, MBAR_BASE = 0x400, 4096


def record(*, thread: int = 0, barrier: int = 0, phase: int = 0, written: int = 1) -> bytes:
    return struct.pack("<8I", 1, thread, barrier, phase, 5, 1, 0, written)


@pytest.mark.parametrize(
    ("index", "thread", "said"),
    [
        (
            0,
            383,
            "role consumer (thread 383) of CTA (5, 1, 0) waited in vain for barrier q_full, stage 0, phase 1",
        ),
        (
            3,
            130,
            "role consumer (thread 130) of CTA (5, 1, 0) waited in vain for barrier k_full, stage 2, phase 1",
        ),
        (
            4,
            31,
            "role load (thread 31) of CTA (5, 1, 0) waited in vain for barrier k_empty, stage 0, phase 1",
        ),
        (
            9,
            32,
            "role transpose (thread 32) of CTA (5, 1, 0) waited in vain for barrier v_full, stage 2, phase 1",
        ),
    ],
)
def test_record_names_role_barrier_and_stage(index: int, thread: int, said: str) -> None:
    address = SMEM_BASE + MBAR_BASE + 8 * index
    assert format_record(record(thread=thread, barrier=address, phase=1), VARIANT) == said


def test_an_address_between_barriers_is_shown_as_it_is() -> None:
    text = format_record(record(barrier=SMEM_BASE + MBAR_BASE + 4), VARIANT)
    assert text is not None and "address 0x1404, which the plan does not have" in text


def test_no_record_and_half_a_record() -> None:
    assert format_record(bytes(RECORD_BYTES), VARIANT) is None
    assert (
        format_record(record(written=0), VARIANT) == "a barrier wait gave up, but its record was not finished"
    )


class StubBuild:
    cubin = b"cubin"

    def get(self) -> StubBuild:
        return self


def test_kernel_places_the_record_and_reports_it() -> None:
    driver = FakeDriver()
    kernel = Kernel(make_plan(debug=True), "// source", StubBuild(), driver=driver)  # type: ignore[arg-type]
    kernel.warmup()
    assert ("copy", 0xA000, struct.pack("<Q", 0xD000)) in driver.calls
    kernel.synchronize()
    assert kernel.debug_report() is None
    driver.record[:] = np.frombuffer(record(thread=1, barrier=SMEM_BASE + MBAR_BASE), np.uint8)
    driver.status = 719
    with pytest.raises(LaunchError) as caught:
        kernel.synchronize()
    assert str(caught.value) == (
        "error[kernel-failed]: kernel tiny failed on device 0 with CUDA_ERROR_719\n"
        "  note: role load (thread 1) of CTA (5, 1, 0) waited in vain for barrier q_full, stage 0, phase 0"
    )
