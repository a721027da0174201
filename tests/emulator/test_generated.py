"""The generated kernels under the emulator: results against float64, and the calls that lead there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from mla_codegen.accuracy import contract_bound
from mla_codegen.emulator import EmulatedKernel, EmulationError, load_emulated
from mla_codegen.errors import CompileError, LaunchError
from mla_codegen.reference import reference
from tests.emulator.faults import FAULTS
from tests.emulator.support import (
    Problem,
    kernel_of,
    make_problem,
    plan_of,
    relative_error,
    run,
    source_of,
)
from tests.gpu.checks import spec_names

NAMES = spec_names()
"""Those that the hand-made problems fit; the others are run by `test_pairs`."""
FP8, BF16 = "dsv3_fp8_sm90", "dsv3_bf16_sm90"
PROBLEMS = {
    "aligned": ((384,), (384,)),
    "one query, one key": ((1,), (1,)),
    "one query": ((1,), (600,)),
    "one key": ((200,), (1,)),
    "tile edges": ((191, 192, 193), (95, 96, 97)),
    "other tile edges": ((127, 128, 129), (127, 128, 129)),
    "phases wrap": ((64,), (9 * 128,)),
    "ragged with empty ones": ((0, 30, 0, 7), (5, 0, 0, 100)),
    "rows that see nothing": ((300,), (20,)),
}


def bound_of(name: str, data: Problem) -> float:
    """What the accuracy contract allows the relative error; fp8 is judged by how its plan rounds P."""
    plan = plan_of(name)
    emulated, _ = reference(plan.spec, **data.arguments, p_rounding=plan.variants[0].p_rounding)
    return contract_bound(
        plan.spec, expected=data.expected, emulated=emulated[: len(data.expected)]
    ).rel_frobenius


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_results(name: str, problem: str) -> None:
    data = make_problem(name, *PROBLEMS[problem], 2)
    report = kernel_of(name).run(**data.arguments, schedules=3, check=True)
    assert not report.hazards, report.render()
    assert report.unwritten_elements == 0
    assert relative_error(report.out, data.expected) <= bound_of(name, data)
    assert report.schedules == ((0, "late"), (1, "early"), (2, "random"))


def test_nothing_runs_for_an_empty_problem() -> None:
    data = make_problem(FP8, (0,), (5,), 1)
    assert kernel_of(FP8).run(**data.arguments).counts == {}


def test_call_returns_the_output_and_fills_out() -> None:
    data = make_problem(BF16, (70,), (90,), 2)
    kernel = load_emulated(plan_of(BF16), source_of(BF16))
    assert kernel.is_compiled()
    expected = kernel(**data.arguments)
    padded = np.full((70, 2, 160), 7, np.uint16).view(expected.dtype)
    out = padded[:, :, 16:144]
    assert kernel(**data.arguments, out=out) is out
    assert np.array_equal(out.view(np.uint16), expected.view(np.uint16))
    assert (padded.view(np.uint16)[:, :, :16] == 7).all()
    assert (padded.view(np.uint16)[:, :, 144:] == 7).all()


def test_a_kernel_that_may_not_be_compiled_has_to_be_in_the_cache() -> None:
    data = make_problem(BF16, (5,), (9,), 1).arguments
    source = source_of(BF16) + "// compiled by this test alone\n"
    kernel = load_emulated(plan_of(BF16), source, may_compile=False)
    assert not kernel.is_compiled()
    with pytest.raises(
        CompileError, match="not compiled for the emulator, and compile='never' forbids to do it"
    ):
        kernel(**data)
    assert EmulatedKernel(plan_of(BF16), source).is_compiled() is False
    expected = load_emulated(plan_of(BF16), source)(**data)
    assert kernel.is_compiled()
    assert np.array_equal(kernel(**data).view(np.uint16), expected.view(np.uint16))


def test_figures_and_plan_are_those_of_the_gpu_kernel_and_read_only() -> None:
    kernel = EmulatedKernel(plan_of(FP8), source_of(FP8))
    launch = plan_of(FP8).variants[0].launch
    assert kernel.attributes == {"threads": launch.threads, "shared_bytes": launch.smem_bytes}
    assert kernel.spec["dims"]["nope"] == 128 and kernel.plan["name"] == FP8
    assert kernel.lse_info is None
    for mapping in (kernel.attributes, kernel.plan, kernel.spec["dims"]):
        with pytest.raises(TypeError):
            mapping["name"] = 1  # type: ignore[index]


def test_slices_and_views_of_codes_give_the_same_bits() -> None:
    data = make_problem(FP8, (100,), (200,), 2)
    expected = kernel_of(FP8).run(**data.arguments).out
    views: dict[str, Any] = dict(data.arguments)
    joined = np.concatenate([views["k_nope"], views["v"]], axis=2)
    views["k_nope"], views["v"] = joined[:, :, :128], joined[:, :, 128:]
    views["q_nope"] = views["q_nope"].view(np.uint8)
    views["k_rope"] = views["k_rope"][:, None, :].view(np.uint16)
    assert np.array_equal(kernel_of(FP8).run(**views).out.view(np.uint16), expected.view(np.uint16))


def test_a_run_is_replayed_by_its_seed_and_workers_change_nothing() -> None:
    data = make_problem(FP8, (400,), (300,), 2)
    one = kernel_of(FP8).run(**data.arguments, seed=5, policy="random")
    two = kernel_of(FP8).run(**data.arguments, seed=5, policy="random", workers=3)
    assert one.counts == two.counts
    assert np.array_equal(one.out.view(np.uint16), two.out.view(np.uint16))
    other = kernel_of(FP8).run(**data.arguments, seed=6, policy="random")
    assert other.counts["switches"] != one.counts["switches"]


def test_exact_arithmetic_is_a_switch() -> None:
    data = make_problem(FP8, (64,), (2000,), 1, v_mean=1.0)
    errors = {
        arithmetic: relative_error(
            kernel_of(FP8).run(**data.arguments, arithmetic=arithmetic).out, data.expected
        )
        for arithmetic in ("tensor_core", "exact")
    }
    assert errors["exact"] < 4e-3
    assert errors["exact"] < errors["tensor_core"]


def test_progress_counts_ctas_to_the_end() -> None:
    data = make_problem(FP8, (400,), (300,), 2)
    seen: list[tuple[int, int]] = []
    report = kernel_of(FP8).run(
        **data.arguments, schedules=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (report.counts["ctas"], report.counts["ctas"])


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_nan_in_other_sequences(name: str) -> None:
    data = make_problem(name, (20, 70, 20), (65, 33, 65), 1).arguments
    before, behind = slice(20, 90), slice(90, 110)
    changed = {**data, "q_nope": data["q_nope"].copy(), "k_nope": data["k_nope"].copy()}
    changed["q_nope"][behind] = np.nan
    changed["k_nope"][98:] = np.nan
    bits = [kernel_of(name).run(**arguments).out[before].tobytes() for arguments in (data, changed)]
    assert bits[0] == bits[1]


def test_scales_may_lie_apart() -> None:
    data = make_problem(FP8, (30,), (40,), 1)
    apart = {**data.arguments, "q_scale": np.repeat(data.arguments["q_scale"], 2)[::2]}
    expected = kernel_of(FP8).run(**data.arguments)
    report = kernel_of(FP8).run(**apart)
    assert not report.hazards
    assert np.array_equal(report.out.view(np.uint16), expected.out.view(np.uint16))


def test_trace_shows_roles_and_barriers(tmp_path: Path) -> None:
    data = make_problem(FP8, (100,), (300,), 1)
    kernel_of(FP8).run(**data.arguments, trace=tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    tracks = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"wait k_full[0]", "arrive k_empty[0]", "wait turn_0"} <= names
    assert {"warp 0: load", "warp 4: consumer 0", "tensor core", "copy engine"} <= tracks
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_hazards_make_a_call_fail() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no wait for K")
    with pytest.raises(EmulationError, match=r"hazard-race.*kv_smem\[stage"):
        fault.build()(**make_problem(FP8, (130,), (333,), 1).arguments)


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, np.uint16)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q_scale": None}, "q_scale is missing"),
        ({"v_scale": np.ones(1, np.float32)}, "v_scale is passed, but scales.v of the spec is none"),
        ({"max_seqlen_q": None}, "max_seqlen_q is missing"),
        ({"q_rope": np.zeros((20, 2, 64), np.float32)}, "q_rope has dtype float32, bf16 is needed"),
        ({"k_rope": np.zeros((50, 48), np.uint16)}, r"k_rope has shape \[50, 48\]"),
        ({"q_nope": np.zeros((20, 2, 136), np.uint8)[:, :, 8:]}, "q_nope starts at address"),
        ({"v": np.zeros((90, 2, 130), np.uint8)[:, :, :128]}, "v has a stride of 260 B along total_k"),
        ({"k_scale": np.ones(90, np.float32)[::-1]}, "k_scale has a stride of -4 B along total_k"),
        (
            {"out": as_strided(np.zeros(8000, np.uint16), (20, 2, 128), (256, 256, 2))},
            "elements share memory",
        ),
        ({"softmax_scale": -1.0}, r"softmax_scale is -1.0, a number from 0 to 1e\+38 is needed"),
        ({"softmax_scale": 10**400}, r"softmax_scale is inf, a number from 0 to 1e\+38 is needed"),
        ({"k_scale": np.ones(90, ">f4")}, "k_scale has dtype float32 of the other byte order, f32 is needed"),
        ({"k_scale": np.zeros(364, np.uint8)[3:363].view(np.float32)}, "k_scale starts at address"),
        ({"softmax_scale": "half"}, "softmax_scale is 'half', a number is needed"),
        ({"out": read_only((20, 2, 128))}, "out is read-only"),
        ({"schedules": 0}, "schedules is 0, an integer of at least 1 is needed"),
        ({"workers": 0}, "workers is 0, an integer of at least 1 is needed"),
        ({"trace": "t.json", "trace_cta": 9}, "trace_cta is 9, the grid has the CTAs 0 to 1"),
        ({"policy": "never"}, "policy is 'never'"),
        (
            {"cu_seqlens_q": np.array([0, 21], np.int32), "check": True},
            "cu_seqlens_q runs from 0 to 21, from 0 to at most 20 tokens is needed",
        ),
        (
            {"max_seqlen_q": 10, "check": True},
            "sequence 0 has 20 queries, max_seqlen_q is 10",
        ),
        (
            {"q_scale": np.full(20, -1, np.float32), "check": True},
            r"q_scale is -1.0 at \[0\], a finite number of at least 0 is needed",
        ),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], text: str) -> None:
    arguments = {**make_problem(FP8, (20,), (50,), 2).arguments, **change}
    with pytest.raises(LaunchError, match=text):
        kernel_of(FP8).run(**arguments)


def test_a_report_says_what_was_not_written() -> None:
    data = make_problem(FP8, (20,), (50,), 1).arguments
    report = kernel_of(FP8).run(**{**data, "cu_seqlens_q": np.array([0, 15], np.int32)})
    assert report.render().splitlines()[1:] == [f"{5 * 128} elements of out were not written"]


def test_source_that_does_not_compile_is_refused_with_its_line() -> None:
    with pytest.raises(CompileError, match=r"dsv3_fp8_sm90\.cu:\d+"):
        EmulatedKernel(plan_of(FP8), source_of(FP8).replace("cta_sync();", "no_such_primitive();")).warmup()


def test_speed_of_one_head() -> None:
    data = make_problem(FP8, (256,), (256,), 1)
    run(kernel_of(FP8), data, seed=0)
    assert min(run(kernel_of(FP8), data, seed=seed).seconds for seed in range(5)) < 0.1
