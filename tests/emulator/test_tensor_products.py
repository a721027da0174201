"""Products of tcgen05 in a small kernel: what they compute from every layout, and wrong descriptors."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.emulator.native import RunResult
from tests.emulator.small import aligned, run_small, source_with
from tests.emulator.test_tables import CUTE

POLICIES = (0, 1, 2)
TILE_BYTES = 32768
SMEM_BYTES = 2 * TILE_BYTES + 64
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
TYPE_CODES = {"bf16": 1, "f16": 0, "e4m3": 0}
LAYOUTS = {0: 0, 128: 2, 64: 4, 32: 6}
"""Of the matrix descriptor, by the bytes of a swizzle row."""


def k_major(row: np.ndarray, byte: np.ndarray, *, width: int) -> np.ndarray:
    """Offset of byte `byte` of the row's part of the reduction; rows of a swizzle atom are `width` bytes.

    Units of 16 bytes change places by the row: all 8 rows differ in 128-byte rows, pairs of rows in 64-byte
    rows, fours in 32-byte rows. Without swizzle 8 rows of 16 bytes are together.
    """
    if width == 0:
        return row // 8 * 128 + byte // 16 * 4096 + row % 8 * 16 + byte % 16
    pattern = row % 8 // (128 // width)
    return row // 8 * 8 * width + row % 8 * width + ((byte // 16) ^ pattern) * 16 + byte % 16


def mn_major(byte: np.ndarray, line: np.ndarray, *, width: int, lines: int) -> np.ndarray:
    """Offset of byte `byte` along M or N in line `line` of the reduction, of `lines` in all."""
    if width == 0:
        return byte // 16 * 128 + line // 8 * 4096 + line % 8 * 16 + byte % 16
    pattern = line % 8 // (128 // width)
    chunk = byte // width * width * lines
    return chunk + line * width + ((byte % width // 16) ^ pattern) * 16 + byte % 16


def operand(matrix: np.ndarray, width: int, *, mn: bool) -> tuple[np.ndarray, dict[str, int]]:
    """Shared memory that holds rows of M or N by the reduction, and the offsets of its descriptor."""
    rows, reduction = matrix.shape
    size = matrix.itemsize
    raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(rows, reduction, size)
    row, line, part = np.indices(raw.shape)
    if mn:
        offsets = mn_major(row * size + part, line, width=width, lines=reduction)
        step_lines = 32 // size
        fields = (
            {"LeadingBytes": 4096, "StrideBytes": 128, "StepBytes": step_lines // 8 * 4096}
            if width == 0
            else {
                "LeadingBytes": width * reduction,
                "StrideBytes": 8 * width,
                "StepBytes": step_lines * width,
            }
        )
    else:
        offsets = k_major(row, line * size + part, width=width)
        fields = (
            {"LeadingBytes": 4096, "StrideBytes": 128, "StepBytes": 8192}
            if width == 0
            else {"LeadingBytes": 16, "StrideBytes": 8 * width, "StepBytes": 32}
        )
    image = np.zeros(TILE_BYTES, np.uint8)
    image[offsets] = raw
    return image.view(np.int32), fields


def quarters(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray:
    """Multiples of 1/4 up to 2: every sum here is exact in any of the arithmetics."""
    return (np.random.default_rng(seed).integers(-8, 9, shape) / 4).astype(np.float32).astype(DTYPES[dtype])


def lanes_of_rows(m: int, lane: int) -> np.ndarray:
    """The lane of each row: all of them, or 16 of each warp's 32."""
    rows = np.arange(m)
    return rows if m == 128 else rows // 16 * 32 + rows % 16 + lane


def run_product(
    dtype: str,
    *,
    m: int = 128,
    n: int = 64,
    width: int = 128,
    a_mn: bool = False,
    b_mn: bool = False,
    from_tmem: bool = False,
    accumulate: bool = False,
    lane: int = 0,
    constants: dict[str, str] | None = None,
    given: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    without: str = "",
    policy: int = 0,
) -> tuple[RunResult, np.ndarray, np.ndarray]:
    """What the engine reports, D, and what D should be."""
    k = 32 // np.dtype(DTYPES[dtype]).itemsize
    steps = 1 if width == 32 and not (a_mn and b_mn) else 2
    a, b = quarters((m, k * steps), dtype, 1), quarters((n, k * steps), dtype, 2)
    c = np.random.default_rng(3).integers(-40, 40, (128, n)).astype(np.float32)
    if given is not None:
        a, b, c = given[0].astype(DTYPES[dtype]), given[1].astype(DTYPES[dtype]), given[2]
    a_image, a_fields = operand(a, width, mn=a_mn)
    b_image, b_fields = operand(b, width, mn=b_mn)
    in_lanes = np.zeros((128, k * steps), DTYPES[dtype])
    in_lanes[lanes_of_rows(m, lane)] = a
    fields = {
        "kKind": int(dtype == "e4m3"), "kType": TYPE_CODES[dtype], "kM": m, "kN": n, "kSteps": steps,
        "kFromTmem": from_tmem, "kAMnMajor": a_mn, "kBMnMajor": b_mn, "kLayout": LAYOUTS[width],
        "kAccumulate": int(accumulate), "kLane": lane,
        **{f"kA{name}": value for name, value in a_fields.items()},
        **{f"kB{name}": value for name, value in b_fields.items()},
    }  # fmt: skip
    texts = {name: str(value).lower() for name, value in fields.items()} | (constants or {})
    arrays = {
        "a": aligned(a_image),
        "b": aligned(b_image),
        "a_lanes": in_lanes.view(np.int32),
        "c": c,
        "out": np.full((m, n), np.nan, np.float32),
    }
    source = source_with("tensor_product", texts)
    assert without in source
    source = source.replace(without, "", 1)
    result = run_small("tensor_product", source, arrays=arrays, smem_bytes=SMEM_BYTES, policy=policy)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    if accumulate:
        expected = expected + c[lanes_of_rows(m, lane)]
    return result, arrays["out"], expected


def assert_product(dtype: str, **form: object) -> None:
    result, out, expected = run_product(dtype, **form)  # type: ignore[arg-type]
    assert not result.hazards, result.hazards
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("width", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mn", (False, True), ids=("k_major", "mn_major"))
def test_operands_in_shared_memory(dtype: str, width: int, mn: bool) -> None:
    m, n = (64, 72) if width in (64, 0) else (128, 80)
    assert_product(dtype, m=m, n=n if not mn else n // 16 * 16, width=width, a_mn=mn, b_mn=mn)


@pytest.mark.parametrize("dtype", ("bf16", "e4m3"))
def test_each_operand_has_its_own_majorness(dtype: str) -> None:
    assert_product(dtype, width=64, b_mn=True)
    assert_product(dtype, width=64, a_mn=True, m=64)


@pytest.mark.parametrize("m", (64, 128))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_in_tensor_memory(dtype: str, m: int) -> None:
    assert_product(dtype, m=m, n=96, from_tmem=True, b_mn=True, accumulate=m == 64)


@pytest.mark.parametrize(
    ("m", "n", "lane"), [(64, 8, 0), (64, 256, 16), (64, 40, 16), (128, 16, 0), (128, 256, 0)]
)
def test_shapes_and_lanes(m: int, n: int, lane: int) -> None:
    assert_product("bf16", m=m, n=n, lane=lane)
    assert_product("e4m3", m=m, n=n, lane=lane, from_tmem=True, width=64)


@pytest.mark.parametrize("policy", POLICIES)
def test_accumulating(policy: int) -> None:
    assert_product("bf16", accumulate=True, policy=policy)
    assert_product("e4m3", accumulate=True, policy=policy, width=64)


def test_e4m3_sums_keep_what_fp32_holds() -> None:
    """Small products on a large accumulator, of which Hopper's e4m3 sums would keep 14 bits."""
    a, b = np.full((128, 64), 0.125), np.full((64, 64), 0.125)
    c = np.full((128, 64), 8192.0, np.float32)
    result, out, expected = run_product("e4m3", width=64, accumulate=True, given=(a, b, c))
    assert not result.hazards
    assert np.array_equal(out, expected)
    assert out[0, 0] == 8193


def test_the_layouts_are_those_of_cute() -> None:
    """The formulas here against the tables that CuTe printed."""
    for width, (name, size) in itertools.product((128, 64, 32), (("bf16", 2), ("e4m3", 1))):
        row, column = np.indices((96, max(width, 32) // size))
        table = CUTE[f"k_{name}_{width}"].reshape(row.shape)
        assert np.array_equal(table, k_major(row, column * size, width=width))
    for width in (128, 64, 32):
        row, line = np.indices((128, 64))
        table = CUTE[f"mn_bf16_{width}"].reshape(128, 64)
        assert np.array_equal(table, mn_major(row * 2, line, width=width, lines=64))


@pytest.mark.parametrize(
    ("form", "constants", "kind"),
    [
        ({}, {"kInstructionBits": "1u << 4"}, "tcgen05"),  # fp16 accumulator
        ({}, {"kInstructionBits": "1u << 7"}, "tcgen05"),  # A f16, B bf16
        ({}, {"kInstructionBits": "1u << 13"}, "tcgen05"),  # negated A
        ({}, {"kInstructionBits": "1u << 2"}, "tcgen05"),  # sparse
        ({}, {"kInstructionBits": "1u << 23"}, "tcgen05"),  # reserved
        ({}, {"kInstructionBits": "1u << 26"}, "tcgen05"),  # M = 192
        ({}, {"kInstructionBits": "1u << 17"}, "tcgen05"),  # N = 72 with M = 128
        ({"dtype": "e4m3", "width": 64}, {"kType": "1"}, "tcgen05"),  # e5m2
        ({"from_tmem": True}, {"kInstructionBits": "1u << 15"}, "tcgen05"),
        ({}, {"kMatrixBits": "1ull << 46"}, "tcgen05"),  # the constant
        ({}, {"kMatrixBits": "1ull << 49"}, "tcgen05"),  # base offset
        ({}, {"kMatrixBits": "1ull << 52"}, "tcgen05"),  # absolute stride
        ({}, {"kMatrixBits": "3ull << 61"}, "tcgen05"),  # layout 1
        ({}, {"kMatrixBits": "8"}, "tcgen05"),  # starts in the second row of an atom
        ({}, {"kAStrideBytes": "65536"}, "bounds"),
        ({"m": 64}, {"kLane": "8"}, "tmem"),
        ({}, {"kLane": "16"}, "tmem"),
        ({"from_tmem": True}, {"kOperandColumn": "500"}, "tmem"),
        ({}, {"kColumns": "32"}, "tmem"),
        ({}, {"kColumns": "48"}, "tmem"),
        ({}, {"kColumns": "16"}, "tmem"),
    ],
)  # fmt: skip
def test_misuse_of_a_product(form: dict[str, object], constants: dict[str, str], kind: str) -> None:
    result, _, _ = run_product(constants=constants, **{"dtype": "bf16", **form})  # type: ignore[arg-type]
    assert kind in {hazard.kind for hazard in result.hazards}


def test_a_commit_needs_its_barrier_fenced() -> None:
    result, _, _ = run_product("bf16", without="    fence_mbarrier_init();\n")
    assert {hazard.kind for hazard in result.hazards} == {"proxy-fence"}
    assert "tcgen05.commit signals @b" in result.hazards[0].text
