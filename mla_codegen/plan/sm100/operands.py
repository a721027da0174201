"""Element types of a Blackwell kernel's operands, and what follows from them: swizzle, MMA kind, MMA_K.

The seed calls the four types ``qkv_dtype``, ``rope_gmem_dtype``, ``rope_mma_dtype`` and ``scale_dtype_``, and
has three sets of them: generic (one type for all), blockscale (e4m3 rope in global memory, converted to bf16
in shared memory) and per-token scales (e4m3 with bf16 rope and fp32 scales).
"""

from __future__ import annotations

from dataclasses import dataclass

from mla_codegen.dtypes import DTYPES

UMMA_K_BYTES = 32
"""Bytes of an operand row that one tcgen05.mma consumes (PTX ISA, tcgen05.mma)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Types as in specs; ``scale`` is None where no tensor has scales. Swizzles are in bytes."""

    qkv: str
    """Q_nope, K_nope and V in global and shared memory, and P in tensor memory."""
    rope_gmem: str
    """K_rope in global memory; Q_rope has the type that is multiplied: only K_rope is ever converted."""
    rope_mma: str
    """What the rope product reads from shared memory."""
    scale: str | None = None

    @property
    def qkv_bytes(self) -> int:
        return DTYPES[self.qkv].bytes

    @property
    def rope_bytes(self) -> int:
        """Of one rope element in shared memory."""
        return DTYPES[self.rope_mma].bytes

    @property
    def scale_bytes(self) -> int:
        """Of one scale; 0 where there are none, which gives every scale buffer the size 0."""
        return 0 if self.scale is None else DTYPES[self.scale].bytes

    @property
    def qkv_swizzle_bytes(self) -> int:
        return swizzle_bytes(self.qkv)

    @property
    def rope_swizzle_bytes(self) -> int:
        return swizzle_bytes(self.rope_mma)

    @property
    def rope_gmem_swizzle_bytes(self) -> int:
        return swizzle_bytes(self.rope_gmem)

    @property
    def mma_k(self) -> int:
        """Elements of qkv that one tcgen05.mma consumes: 32 of 1 byte, 16 of 2 bytes (the seed: MMA_K)."""
        return UMMA_K_BYTES // self.qkv_bytes

    @property
    def converts_rope(self) -> bool:
        """Rope is stored in one type and multiplied in another: warps convert it in shared memory."""
        return self.rope_gmem != self.rope_mma

    @property
    def one_type(self) -> bool:
        """Nope and rope can go into one product: same type and swizzle, nothing to convert."""
        return self.qkv == self.rope_mma and not self.converts_rope


def swizzle_bytes(dtype: str) -> int:
    """64 for 1-byte types, 128 for 2-byte types (the seed, MLAConfig); chosen for each operand by itself."""
    return 64 if DTYPES[dtype].bytes == 1 else 128


def mma_kind(dtype: str) -> str:
    """Kind of the tcgen05.mma that multiplies this type."""
    return "f8f6f4" if DTYPES[dtype].bytes == 1 else "f16"


def generic(dtype: str) -> Operands:
    """One type for everything, no scales."""
    return Operands(qkv=dtype, rope_gmem=dtype, rope_mma=dtype)


BLOCKSCALE = Operands(qkv="bf16", rope_gmem="e4m3", rope_mma="bf16")
"""bf16 with an e4m3 rope that is converted in shared memory; its scales are not in the configuration."""
PER_TOKEN_SCALE = Operands(qkv="e4m3", rope_gmem="bf16", rope_mma="bf16", scale="f32")
"""e4m3 with a bf16 rope and one fp32 scale for each token of q and of k."""
