"""The numbers by which scales are chosen; `mla_codegen.quantize` says how."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mla_codegen.dtypes import DTYPES

E4M3_LARGEST = DTYPES["e4m3"].max_finite
"""What the largest nope element of a group becomes."""
SMALLEST_SCALE = 2.0**-126
"""The smallest normal float32, whose reciprocal is finite."""
ROPE_LARGEST: Mapping[str, float] = MappingProxyType(
    {"e4m3": E4M3_LARGEST, "f16": DTYPES["f16"].max_finite, "bf16": 2.0**48}
)
"""What prescaled rope may become at most, by its dtype."""
