"""Quantisation: scales, codes and layouts on every array library that is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mla_codegen.arrays import host_values
from mla_codegen.problems import random_inputs
from mla_codegen.quantize import quantize
from mla_codegen.reference import measure, reference
from mla_codegen.tensors import PERM16

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
NOPE, ROPE, V = 32, 16, 48
FORMS = ("none", "tensor", "head", "token", "token_head")
CU_Q = np.array([0, 3, 3, 10], dtype=np.int32)
CU_K = np.array([0, 5, 22, 39], dtype=np.int32)
TOTAL_Q, TOTAL_K, HEADS, KV_HEADS = 10, 39, 4, 2
SMALLEST = np.float32(2.0**-126)
LARGEST_TO_SCALE = np.float32(1) / np.float32(448)


def make_spec(**changes: Any) -> dict[str, Any]:
    """A ragged e4m3 spec without scales; `scales_q=...` changes one field."""
    spec: dict[str, Any] = {
        "dtypes": {"qkv": "e4m3", "rope_gmem": "bf16"},
        "dims": {"nope": NOPE, "rope": ROPE, "v": V},
        "heads": {"q": "any", "group": 2},
        "scales": {"q": "none", "k": "none", "v": "none", "rope": "raw", "rope_k": "none"},
        "mask": "full",
        "layout": {"q": "ragged", "kv": "ragged", "v": "rows"},
    }
    for name, value in changes.items():
        section, _, field = name.partition("_")
        spec[section][field] = value
    return spec


def make_inputs() -> dict[str, np.ndarray]:
    """Float32 inputs holding bf16 values, with token magnitudes a factor 100 apart."""
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        spread = np.exp2(rng.uniform(-3.5, 3.5, (shape[0], *[1] * (len(shape) - 1))))
        return (rng.standard_normal(shape) * spread).astype(BF16).astype(np.float32)

    return {
        "q": normal(TOTAL_Q, HEADS, NOPE + ROPE),
        "kv": normal(TOTAL_K, KV_HEADS, NOPE + V),
        "k_rope": normal(TOTAL_K, ROPE),
        "cu_seqlens_q": CU_Q,
        "cu_seqlens_k": CU_K,
    }


def values(packed: dict[str, Any], name: str, dtype: str = "e4m3") -> np.ndarray:
    return host_values(packed[name], dtype).astype(np.float32)


def to_numpy(array: np.ndarray) -> np.ndarray:
    return array


def to_cupy(array: np.ndarray) -> Any:
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU for CuPy")
    return cupy.asarray(array)


def to_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


def to_torch_cuda(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU for torch")
    return torch.from_numpy(array).cuda()


LIBRARIES = (to_numpy, to_cupy, to_torch, to_torch_cuda)


@pytest.mark.parametrize("rope", ["raw", "prescaled"])
@pytest.mark.parametrize("form", FORMS)
def test_scales_are_the_largest_magnitude_over_448(form: str, rope: str) -> None:
    k_form = "token" if rope == "prescaled" and form in ("head", "token_head") else form
    spec = make_spec(scales_q=form, scales_k=k_form, scales_v=form, scales_rope=rope)
    inputs = make_inputs()
    packed = quantize(spec, **inputs)
    parts = {
        "q": (form, inputs["q"][..., :NOPE]),
        "k": (k_form, inputs["kv"][..., :NOPE]),
        "v": (form, inputs["kv"][..., NOPE:]),
    }
    axes = {"tensor": (0, 1, 2), "head": (0, 2), "token": (1, 2), "token_head": (2,)}
    for name, (part_form, x) in parts.items():
        codes = values(packed, name if name == "v" else f"{name}_nope")
        if part_form == "none":
            assert f"{name}_scale" not in packed
            np.testing.assert_array_equal(codes, np.clip(x, -448, 448).astype(E4M3).astype(np.float32))
            continue
        scale = packed[f"{name}_scale"]
        expected = (
            np.abs(x).max(axis=axes[part_form]).reshape(-1 if part_form != "token_head" else x.shape[:2])
        )
        np.testing.assert_array_equal(scale, expected * LARGEST_TO_SCALE)
        np.testing.assert_array_max_ulp(scale, expected / np.float32(448), maxulp=1)
        assert scale.dtype == np.float32
        kept = np.expand_dims(scale.reshape(np.abs(x).max(axis=axes[part_form]).shape), axes[part_form])
        assert np.abs(codes).max() == 448
        assert (np.abs(codes * kept - x) <= np.abs(x) / 16 + kept * 2.0**-10).all()


@pytest.mark.parametrize("rope_dtype", ["bf16", "f16", "e4m3"])
@pytest.mark.parametrize("form", ["tensor", "token", "none"])
def test_prescaled_rope_comes_back_times_the_scale(form: str, rope_dtype: str) -> None:
    spec = make_spec(scales_q=form, scales_k=form, scales_rope="prescaled", dtypes_rope_gmem=rope_dtype)
    inputs = make_inputs()
    packed = quantize(spec, **inputs)
    step = {"bf16": 2.0**-8, "f16": 2.0**-11, "e4m3": 2.0**-4}[rope_dtype] * 1.001  # float32 divides
    for name, truth in (("q", inputs["q"][..., NOPE:]), ("k", inputs["k_rope"])):
        scale = packed.get(f"{name}_scale", np.ones(1, np.float32))
        scale = scale.reshape(-1, *[1] * (truth.ndim - 1))
        stored = values(packed, f"{name}_rope", rope_dtype)
        smallest = scale * (2.0**-10 if rope_dtype == "e4m3" else 2.0**-25)
        assert (np.abs(stored * scale - truth) <= np.abs(truth) * step + smallest).all()


def test_raw_rope_is_a_plain_cast() -> None:
    inputs = make_inputs()
    packed = quantize(make_spec(scales_q="token", scales_k="token"), **inputs)
    np.testing.assert_array_equal(values(packed, "q_rope", "bf16"), inputs["q"][..., NOPE:])
    np.testing.assert_array_equal(values(packed, "k_rope", "bf16"), inputs["k_rope"])


@pytest.mark.parametrize("rope", ["raw", "prescaled"])
@pytest.mark.parametrize("rope_dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("form", ["tensor", "token", "token_head"])
def test_the_reference_of_the_packed_problem_is_near_the_true_one(
    form: str, rope_dtype: str, rope: str
) -> None:
    k_form = "token" if form == "token_head" else form
    scales = {"scales_q": form, "scales_k": k_form, "scales_v": form, "scales_rope": rope}
    inputs = make_inputs()
    spec = make_spec(**scales, dtypes_rope_gmem=rope_dtype)
    out, lse = reference(spec, **quantize(spec, **inputs))
    exact_spec = make_spec(dtypes_qkv="bf16", scales_rope=None)
    exact = quantize(exact_spec, **inputs)
    expected, expected_lse = reference(exact_spec, **exact)
    assert measure(out, expected).rel_frobenius < 0.2
    assert np.linalg.norm(lse - expected_lse) < 0.08 * np.linalg.norm(expected_lse)


def test_scale_of_k_rope() -> None:
    spec = make_spec(dtypes_qkv="bf16", dtypes_rope_gmem="e4m3", scales_rope_k="token")
    inputs = make_inputs()
    inputs["k_rope"][4] = 0
    packed = quantize(spec, **inputs)
    scale = packed["k_rope_scale"]
    expected = np.abs(inputs["k_rope"]).max(axis=1) * LARGEST_TO_SCALE
    expected[4] = 1
    np.testing.assert_array_equal(scale, expected)
    stored = values(packed, "k_rope")
    np.testing.assert_allclose(stored * scale[:, None], inputs["k_rope"], rtol=2.0**-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS[1:])
def test_zeros_get_scale_one_and_codes_of_zero(form: str) -> None:
    spec = make_spec(scales_q=form, scales_k="token", scales_v=form, scales_rope="prescaled")
    inputs = {name: np.zeros_like(x) if x.ndim > 1 else x for name, x in make_inputs().items()}
    packed = quantize(spec, **inputs)
    for name in ("q_scale", "k_scale", "v_scale"):
        assert (packed[name] == 1).all()
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v"):
        assert not values(packed, name, "bf16" if "rope" in name else "e4m3").any()


@pytest.mark.parametrize("rope_dtype", ["bf16", "f16", "e4m3"])
@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38, 1e-30])
def test_prescaled_rope_never_overflows(tiny: float, rope_dtype: str) -> None:
    spec = make_spec(scales_q="token", scales_k="token", scales_rope="prescaled", dtypes_rope_gmem=rope_dtype)
    inputs = make_inputs()
    inputs["q"][..., :NOPE] = tiny
    inputs["kv"][..., :NOPE] = tiny
    inputs["q"][0, :, NOPE:] = inputs["k_rope"][0] = 1e30
    packed = quantize(spec, **inputs)
    q_rope, k_rope = values(packed, "q_rope", rope_dtype), values(packed, "k_rope", rope_dtype)
    assert (packed["q_scale"] >= SMALLEST).all() and (packed["k_scale"] >= SMALLEST).all()
    with np.errstate(over="raise"):
        assert np.isfinite(np.einsum("qhr,kr->qhk", q_rope, k_rope)).all()
    step = 2.0**-4 if rope_dtype == "e4m3" else 2.0**-8
    np.testing.assert_allclose(q_rope[0] * packed["q_scale"][0], 1e30, rtol=step)
    np.testing.assert_allclose(k_rope[0] * packed["k_scale"][0], 1e30, rtol=step)


@pytest.mark.parametrize("tiny", [1e-45, 1e-38])
def test_scales_of_tiny_values_stay_normal(tiny: float) -> None:
    inputs = make_inputs()
    inputs["q"][:], inputs["kv"][:] = tiny, tiny
    packed = quantize(make_spec(scales_q="token", scales_v="tensor"), **inputs)
    assert (packed["q_scale"] == SMALLEST).all() and (packed["v_scale"] == SMALLEST).all()
    assert np.isfinite(values(packed, "q_nope")).all() and np.isfinite(values(packed, "v")).all()


def test_e4m3_rope_keeps_its_bits_beside_zeros() -> None:
    inputs = make_inputs()
    inputs["q"][..., :NOPE] = 0
    inputs["q"][..., NOPE:] *= 1e-4
    spec = make_spec(scales_q="token_head", scales_rope="prescaled", dtypes_rope_gmem="e4m3")
    assert (np.abs(values(quantize(spec, **inputs), "q_rope")).max(axis=-1) == 448).all()


def test_values_without_scales_saturate() -> None:
    inputs = make_inputs()
    inputs["q"][0, 0, 0], inputs["kv"][0, 0, NOPE] = 1e6, -1e6
    packed = quantize(make_spec(), **inputs)
    assert values(packed, "q_nope")[0, 0, 0] == 448 and values(packed, "v")[0, 0, 0] == -448
    packed = quantize(make_spec(dtypes_qkv="f16", dtypes_rope_gmem="f16", scales_rope=None), **inputs)
    assert packed["q_nope"].dtype == np.float16 and packed["q_nope"][0, 0, 0] == 65504


def naive_transposed(v: np.ndarray, cu_seqlens: list[int]) -> np.ndarray:
    """Transposed V [heads, v, columns] of rows [tokens, heads, v], one element column at a time."""
    batch = len(cu_seqlens) - 1
    out = np.zeros((v.shape[1], v.shape[2], 16 * (v.shape[0] // 16 + batch)), dtype=v.dtype)
    for b in range(batch):
        length = cu_seqlens[b + 1] - cu_seqlens[b]
        first_column = 16 * (cu_seqlens[b] // 16 + b)
        for group in range(0, length, 16):
            for position in range(16):
                token = group + 8 * (position % 4 >> 1) + 2 * (position // 4) + position % 2
                if token < length:
                    out[:, :, first_column + group + position] = v[cu_seqlens[b] + token]
    return out


def test_permutation_of_sixteen_tokens() -> None:
    assert PERM16 == (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)


@pytest.mark.parametrize("lens", [(5, 17, 17), (16, 32), (1, 15, 0, 31, 33), (0,), (40,)])
def test_transposed_v_of_ragged_keys(lens: tuple[int, ...]) -> None:
    cu_k = np.cumsum([0, *lens]).astype(np.int32)
    rng = np.random.default_rng(0)
    inputs = {
        "q": rng.standard_normal((len(lens), HEADS, NOPE + ROPE), dtype=np.float32),
        "kv": rng.standard_normal((sum(lens), KV_HEADS, NOPE + V), dtype=np.float32),
        "k_rope": rng.standard_normal((sum(lens), ROPE), dtype=np.float32),
        "cu_seqlens_q": np.arange(len(lens) + 1, dtype=np.int32),
        "cu_seqlens_k": cu_k,
    }
    rows = quantize(make_spec(scales_v="token"), **inputs)
    transposed_spec = make_spec(scales_v="token", layout_v="transposed")
    transposed = quantize(transposed_spec, **inputs)
    expected = naive_transposed(rows["v"].view(np.uint8), cu_k.tolist())
    np.testing.assert_array_equal(transposed["v"].view(np.uint8), expected)
    np.testing.assert_array_equal(transposed["v_scale"], rows["v_scale"])
    np.testing.assert_array_equal(
        reference(transposed_spec, **transposed)[0], reference(make_spec(scales_v="token"), **rows)[0]
    )


def dense_inputs() -> dict[str, np.ndarray]:
    inputs = make_inputs()
    return {
        "q": inputs["q"].reshape(2, 5, HEADS, NOPE + ROPE),
        "kv": inputs["kv"][:34].reshape(2, 17, KV_HEADS, NOPE + V),
        "k_rope": inputs["k_rope"][:34].reshape(2, 17, 1, ROPE),
    }


@pytest.mark.parametrize("v_layout", ["rows", "transposed"])
@pytest.mark.parametrize("form", FORMS)
def test_dense_layouts(form: str, v_layout: str) -> None:
    spec = make_spec(scales_q=form, scales_k=form, scales_v=form, layout_v=v_layout)
    dense_spec = make_spec(
        scales_q=form, scales_k=form, scales_v=form, layout_v=v_layout, layout_q="dense", layout_kv="dense"
    )
    inputs = dense_inputs()
    packed = quantize(dense_spec, **inputs)
    ragged = {name: x.reshape(-1, *x.shape[2:]) for name, x in inputs.items()}
    cu_q, cu_k = np.array([0, 5, 10], dtype=np.int32), np.array([0, 17, 34], dtype=np.int32)
    expected = quantize(spec, **ragged, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    assert "cu_seqlens_q" not in packed and "max_seqlen_q" not in packed
    if form in ("token", "token_head"):
        assert packed["q_scale"].shape[:2] == (2, 5) and packed["v_scale"].shape[:2] == (2, 17)
    for name, array in packed.items():
        if name != "v" or v_layout == "rows":
            np.testing.assert_array_equal(array.reshape(-1), expected[name].reshape(-1))
    out = reference(dense_spec, **packed)[0]
    np.testing.assert_array_equal(out.reshape(10, HEADS, V), reference(spec, **expected)[0])


@pytest.mark.parametrize("convert", LIBRARIES[1:])
@pytest.mark.parametrize("v_layout", ["rows", "transposed"])
@pytest.mark.parametrize("form", FORMS)
def test_all_libraries_give_the_same_bits(
    form: str, v_layout: str, convert: Callable[[np.ndarray], Any]
) -> None:
    k_form = "token" if form in ("head", "token_head") else form
    scales = {"scales_q": form, "scales_k": k_form, "scales_v": form, "scales_rope": "prescaled"}
    spec = make_spec(**scales, layout_v=v_layout)
    inputs = make_inputs()
    inputs["kv"][3] = 0
    expected = quantize(spec, **inputs)
    packed = quantize(spec, **{name: convert(x) for name, x in inputs.items()})
    assert packed.keys() == expected.keys()
    assert packed["max_seqlen_q"] == 7
    for name, array in expected.items():
        if name != "max_seqlen_q":
            assert type(packed[name]) is type(convert(CU_Q))
            dtype = "bf16" if "rope" in name else "e4m3"
            found = packed[name] if array.dtype == np.int32 else host_values(packed[name], dtype)
            wanted = array if array.dtype == np.int32 else host_values(array, dtype)
            np.testing.assert_array_equal(found.tolist(), wanted.tolist())
    for found, wanted in zip(reference(spec, **packed), reference(spec, **expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("convert", LIBRARIES)
def test_all_libraries_convert_bit_by_bit(convert: Callable[[np.ndarray], Any]) -> None:
    """Every finite bf16 number as an element of q, k and v without scales."""
    numbers = np.arange(2**16, dtype=np.uint16).view(BF16).astype(np.float32)
    numbers = np.resize(numbers[np.isfinite(numbers)], (2**16 // 64, 1, 64))
    rope = np.ascontiguousarray(numbers[:, 0, :16])
    lengths = np.array([0, 1024], dtype=np.int32)
    for dtype in ("e4m3", "bf16", "f16"):
        spec = make_spec(heads_group=1, dims_nope=48, dims_v=16, dtypes_qkv=dtype, dtypes_rope_gmem="bf16")
        packed = quantize(
            spec,
            *(convert(x) for x in (numbers, numbers, rope)),
            cu_seqlens_q=convert(lengths),
            cu_seqlens_k=convert(lengths),
        )
        kind = {"e4m3": E4M3, "bf16": BF16, "f16": np.float16}[dtype]
        largest = float(ml_dtypes.finfo(kind).max)
        expected = np.clip(numbers, -largest, largest).astype(kind).astype(np.float32)
        np.testing.assert_array_equal(host_values(packed["q_nope"], dtype), expected[..., :48])
        np.testing.assert_array_equal(host_values(packed["v"], dtype), expected[..., 48:])


@pytest.mark.parametrize("convert", LIBRARIES)
def test_bf16_codes_are_read_as_bf16(convert: Callable[[np.ndarray], Any]) -> None:
    spec = make_spec(scales_q="token")
    inputs = make_inputs()
    codes = {n: x.astype(BF16).view(np.uint16) if x.ndim > 1 else x for n, x in inputs.items()}
    expected, packed = quantize(spec, **inputs), quantize(spec, **{n: convert(x) for n, x in codes.items()})
    np.testing.assert_array_equal(
        host_values(packed["q_nope"], "e4m3"), host_values(expected["q_nope"], "e4m3")
    )


def test_numpy_dtypes_of_the_result() -> None:
    packed = quantize(make_spec(scales_q="token"), **make_inputs())
    assert packed["q_nope"].dtype == E4M3 and packed["q_rope"].dtype == BF16
    assert packed["cu_seqlens_q"].dtype == np.int32


def test_without_rope() -> None:
    inputs = make_inputs()
    inputs["q"] = inputs["q"][..., :NOPE]
    inputs["k_rope"] = None  # type: ignore[assignment]
    spec = make_spec(dims_rope=0, scales_q="token", scales_rope=None)
    packed = quantize(spec, **inputs)
    assert packed["q_rope"] is None and packed["k_rope"] is None
    assert np.isfinite(reference(spec, **packed)[0]).all()


@pytest.mark.parametrize("form", FORMS)
def test_no_tokens_at_all(form: str) -> None:
    spec = make_spec(scales_q=form, scales_k="token", scales_v=form, scales_rope="prescaled")
    none = np.zeros(2, dtype=np.int32)
    inputs = {name: x[:0] if x.ndim > 1 else none for name, x in make_inputs().items()}
    packed = quantize(spec, **inputs)
    assert packed["max_seqlen_q"] == 0 and packed["v"].shape == (0, KV_HEADS, V)
    assert form not in ("tensor", "head") or (packed["q_scale"] == 1).all()


def test_capacity_is_passed_on() -> None:
    assert quantize(make_spec(), **make_inputs(), max_seqlen_q=64)["max_seqlen_q"] == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": np.full((10, 4, NOPE + ROPE), np.nan, np.float32)}, "q holds infinities or NaN"),
        ({"k_rope": np.full((39, ROPE), np.inf, np.float32)}, "k_rope holds infinities"),
        ({"k_rope": None}, "missing k_rope"),
        ({"cu_seqlens_k": None}, "missing cu_seqlens_k"),
        ({"q": np.zeros((10, 4, NOPE), np.float32)}, "q has shape .* ragged one has 3 axes, the last of 48"),
        ({"q": np.zeros((10, 3, NOPE + ROPE), np.float32)}, "3 query heads on 2 KV heads"),
        ({"k_rope": np.zeros((38, ROPE), np.float32)}, "k_rope has shape"),
        ({"kv": np.zeros((39, 2, NOPE + V), np.int32)}, "dtype int32 cannot hold bf16"),
        ({"q": [1.0]}, "type list is not supported"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(make_spec(scales_q="token"), **{**make_inputs(), **changes})


def test_neither_cupy_nor_torch_nor_pydantic_is_imported() -> None:
    code = (
        "import sys; import mla_codegen.quantize, mla_codegen.reference, mla_codegen.problems;"
        "sys.exit(bool({'cupy', 'torch', 'pydantic', 'yaml', 'jinja2'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


@pytest.mark.parametrize(
    "lengths", [[0, 9, 5], [1, 3, 12], [0, -5, 12], [0, 3, 13], [0.0, 3.5, 12.0], [[0, 12]]]
)
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_lengths_in_host_memory_are_checked(name: str, lengths: list[Any]) -> None:
    spec = make_spec()
    inputs = random_inputs(spec, q_lens=(3, 9), kv_lens=(5, 7))
    with pytest.raises(ValueError, match=name):
        quantize(spec, **{**inputs, name: np.array(lengths)})
