"""The closed table of element types: YAML name, bytes, CUDA storage type, tensor-map type, array dtypes.

Standard library only; `numpy_dtype` imports NumPy and ml_dtypes when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """One element type, the same in a spec, a plan, a generated file and an argument check."""

    name: str
    """Name in specs and plans."""
    bytes: int
    """Bytes per element in global and shared memory."""
    mantissa_bits: int
    """Explicit mantissa bits."""
    max_finite: float
    """Largest finite value."""
    cuda_type: str
    """Type of one stored element in generated source; narrow floats are stored as unsigned integers."""
    tensor_map_type: str
    """Enumerator of CUtensorMapDataType."""
    tensor_map_value: int
    """Value of that enumerator."""
    array_dtype: str
    """Name of the NumPy dtype (from ml_dtypes where NumPy has none)."""
    array_views: tuple[str, ...]
    """Other NumPy dtype names that are accepted as a view of the same bytes."""
    torch_dtype: str
    """Name of the torch dtype, without the `torch.` in front."""

    def accepts(self, array_dtype: str) -> bool:
        """Whether an array whose dtype has this NumPy or torch name holds elements of this type."""
        return array_dtype.removeprefix("torch.") in (self.array_dtype, *self.array_views, self.torch_dtype)

    def accepted_names(self) -> tuple[str, ...]:
        """All dtype names that `accepts` takes, without repetition, the preferred one first."""
        return tuple(dict.fromkeys((self.array_dtype, *self.array_views, self.torch_dtype)))


# Tensor-map numbers: enum CUtensorMapDataType of the CUDA driver API (cuda.h): UINT8 0, UINT16 1, UINT32 2,
# INT32 3, UINT64 4, INT64 5, FLOAT16 6, FLOAT32 7, FLOAT64 8, BFLOAT16 9. It has no 8-bit float: e4m3 and
# e5m2 travel as bytes. Number formats: e4m3 and e5m2 as in the OCP 8-bit floating point specification (e4m3
# has no infinity).
_TABLE = (
    Dtype(
        name="e4m3",
        bytes=1,
        mantissa_bits=3,
        max_finite=448.0,
        cuda_type="u8",
        tensor_map_type="CU_TENSOR_MAP_DATA_TYPE_UINT8",
        tensor_map_value=0,
        array_dtype="float8_e4m3fn",
        array_views=("uint8",),
        torch_dtype="float8_e4m3fn",
    ),
    Dtype(
        name="e5m2",
        bytes=1,
        mantissa_bits=2,
        max_finite=57344.0,
        cuda_type="u8",
        tensor_map_type="CU_TENSOR_MAP_DATA_TYPE_UINT8",
        tensor_map_value=0,
        array_dtype="float8_e5m2",
        array_views=("uint8",),
        torch_dtype="float8_e5m2",
    ),
    Dtype(
        name="bf16",
        bytes=2,
        mantissa_bits=7,
        max_finite=float.fromhex("0x1.fep+127"),
        cuda_type="u16",
        tensor_map_type="CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        tensor_map_value=9,
        array_dtype="bfloat16",
        array_views=("uint16",),
        torch_dtype="bfloat16",
    ),
    Dtype(
        name="f16",
        bytes=2,
        mantissa_bits=10,
        max_finite=65504.0,
        cuda_type="u16",
        tensor_map_type="CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
        tensor_map_value=6,
        array_dtype="float16",
        array_views=("uint16",),
        torch_dtype="float16",
    ),
    Dtype(
        name="f32",
        bytes=4,
        mantissa_bits=23,
        max_finite=float.fromhex("0x1.fffffep+127"),
        cuda_type="float",
        tensor_map_type="CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
        tensor_map_value=7,
        array_dtype="float32",
        array_views=(),
        torch_dtype="float32",
    ),
)

DTYPES: Mapping[str, Dtype] = MappingProxyType({dtype.name: dtype for dtype in _TABLE})
"""All dtypes by name, in declared order."""


def numpy_dtype(dtype: Dtype) -> numpy.dtype:
    """The NumPy dtype of `dtype`; 8-bit floats and bf16 come from ml_dtypes."""
    import numpy

    if dtype.array_dtype in ("float16", "float32"):
        return numpy.dtype(dtype.array_dtype)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, dtype.array_dtype))
