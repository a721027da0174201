"""``FA4Config``: block sizes, tensor-memory columns, ring mode and ring depths, by the seed's formulas.

Names and formulas are those of the seed's attention configuration, which ``MLAConfig`` mirrors; the seed's
``BM`` and ``BN`` are ``block_m`` and ``block_n``. What it has for other kernels and switches off for MLA is
left out: clusters of two CTAs, split-K, and groups of query heads fused into one tile.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.sm100.operands import Operands

Q_TILE_ROWS = 128
"""Query rows of one softmax warpgroup, and M of every product (the seed: MMA_M)."""
NUM_QK_STAGES = 1
"""Parts in which the depth of Q*K arrives: always 1 for MLA."""
NUM_PV_STAGES = 2
"""Sub-steps in which P is handed to P*V: always 2."""
MBARRIER_BYTES = 8
TMEM_ADDR_BYTES = 4
CORRECTION_BYTES = 1024
"""One fp32 factor for each of the 256 softmax threads, in 1Q and in 2Q."""


class KvRing(enum.Enum):
    """How K_nope, K_rope and V share the memory of the ring, named as in ``pipeline.kv_ring``."""

    SEPARATE = "separate"
    """A ring of K (nope and rope) and a ring of V."""
    SHARED = "shared"
    """K_nope and V alternate in one ring; K_rope has a ring of its own, half as deep."""
    UNIFIED = "unified"
    """The seed's literal ring: each slot has room for K_nope or V, and a slot of K_rope beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FA4Config:
    """Inputs as fields, everything derived as properties; depths and blocks in elements.

    ``num_q`` is 2 (two halves of 128 query rows see the same keys) or 1 (both softmax warpgroups work on the
    same 128 rows, one on the even blocks of keys and one on the odd). ``single_o`` has an effect with
    ``num_q`` 1 only. ``bn_cap`` and ``page_size`` are 0 where there is none.
    """

    operands: Operands
    limits: ArchLimits
    num_q_heads: int
    group: int
    nope_depth: int
    rope_depth: int
    ov_depth: int
    page_size: int = 0
    num_q: int = 2
    single_o: bool = False
    bn_cap: int = 0
    orders_softmax: bool = False
    """The softmax warpgroups take turns, which adds two mbarriers."""

    def __post_init__(self) -> None:
        assert self.num_q in (1, 2), f"num_q is {self.num_q}, allowed: 1, 2"
        object.__setattr__(self, "single_o", self.single_o and self.num_q == 1)

    @property
    def block_m(self) -> int:
        """The seed's BM: 256 in 2Q, 128 in 1Q."""
        return Q_TILE_ROWS * self.num_q

    @property
    def mma_m(self) -> int:
        return Q_TILE_ROWS

    @property
    def qk_depth(self) -> int:
        return self.nope_depth + self.rope_depth

    @property
    def swizzle_elems(self) -> int:
        """qkv elements of one swizzle row: 64 for e4m3 at 64 bytes and for 2-byte types at 128."""
        return self.operands.qkv_swizzle_bytes // self.operands.qkv_bytes

    @property
    def padded_nope_depth(self) -> int:
        return align_up(self.nope_depth, self.swizzle_elems)

    @property
    def padded_rope_depth(self) -> int:
        """The seed has padded_qk_depth - padded_nope_depth, which is the same for its only rope, 64.

        Any other rope is padded by itself, since nope and rope are tiles of their own.
        """
        return align_up(self.rope_depth, self.operands.rope_swizzle_bytes // self.operands.rope_bytes)

    @property
    def padded_qk_depth(self) -> int:
        return self.padded_nope_depth + self.padded_rope_depth

    @property
    def padded_ov_depth(self) -> int:
        return align_up(self.ov_depth, self.swizzle_elems)

    @property
    def shared_kv_cols(self) -> int:
        """Columns of a slot that holds K_nope or V."""
        return max(self.padded_nope_depth, self.padded_ov_depth)

    @property
    def block_n(self) -> int:
        """The seed's BN: as many keys as the columns allow beside O, at most 256; 0 where none fit.

        Two O: each pair of S and O has half of the columns. A single O: two S share what it leaves.
        """
        width, step, cols = self.shared_kv_cols, self.operands.mma_k, self.limits.tmem_cols
        most = (cols - width) // 2 if self.single_o else cols // 2 - width
        keys = min(self.limits.umma_n_max, align_down(max(most, 0), step))
        if self.bn_cap:
            keys = min(keys, align_down(self.bn_cap, step))
        if self.page_size and keys and keys % self.page_size and self.page_size % keys:
            keys = 1 << (keys.bit_length() - 1)
        return keys

    @property
    def block_k0(self) -> int:
        """The seed's BK0: depth of one Q*K."""
        return self.padded_qk_depth // NUM_QK_STAGES

    @property
    def block_k1(self) -> int:
        """The seed's BK1: keys of one P*V."""
        return self.block_n

    @property
    def tmem_s(self) -> tuple[int, int]:
        """First columns of S0 and S1; P0 and P1 start there too."""
        return (0, self.block_n)

    @property
    def tmem_o(self) -> tuple[int, int]:
        """First columns of O0 and O1, which are the same with a single O."""
        first = 2 * self.block_n
        return (first, first if self.single_o else first + self.padded_ov_depth)

    @property
    def tmem_used_cols(self) -> int:
        return self.tmem_o[1] + self.padded_ov_depth

    @property
    def q_row_bytes(self) -> int:
        """Of nope and rope of one query row, or of one key's K."""
        nope = self.padded_nope_depth * self.operands.qkv_bytes
        return nope + self.padded_rope_depth * self.operands.rope_bytes

    @property
    def fixed_mbars(self) -> int:
        """mbarriers that no ring depth changes: hand-offs of P, factors, S, O and turns, second half of Q."""
        order = 2 if self.orders_softmax else 0
        second_half = NUM_QK_STAGES if self.num_q == 2 else 0
        return 8 + order + 2 * NUM_PV_STAGES + second_half

    @property
    def fixed_smem_bytes(self) -> int:
        """Shared memory that no ring depth changes: Q, its scales, the factors, barriers."""
        barriers = TMEM_ADDR_BYTES + MBARRIER_BYTES * self.fixed_mbars
        q = self.block_m * (self.q_row_bytes + self.operands.scale_bytes)
        return barriers + q + CORRECTION_BYTES

    @property
    def kv_slot_bytes(self) -> int:
        """Of a slot for K_nope or V, with its full and empty mbarrier."""
        return self.block_n * self.shared_kv_cols * self.operands.qkv_bytes + 2 * MBARRIER_BYTES

    @property
    def k_extra_bytes(self) -> int:
        """Of what K has and V has not: rope and scales of one block of keys."""
        rope = self.padded_rope_depth * self.operands.rope_bytes
        return self.block_n * (rope + self.operands.scale_bytes)

    @property
    def num_slots(self) -> int:
        """Slots of K_nope or V that fit; every second one brings rope and scales along."""
        if self.block_n == 0:
            return 0
        remaining = max(0, self.limits.smem_per_cta_bytes - self.fixed_smem_bytes)
        slots = remaining // (self.kv_slot_bytes + self.k_extra_bytes // 2)
        return slots - 1 if slots and self._slots_bytes(slots) > remaining else slots

    @property
    def smem_used_bytes(self) -> int:
        """As the seed counts: separate rings are charged the wider of K_nope and V for both."""
        return self.fixed_smem_bytes + self._slots_bytes(self.num_slots)

    @property
    def kv_ring(self) -> KvRing:
        """The parity rule: an odd number of slots is shared, since separate rings would leave one unused.

        A single O always has separate rings.
        """
        odd = self.num_slots % 2 == 1
        return KvRing.SHARED if odd and not self.single_o else KvRing.SEPARATE

    @property
    def num_kv_stages(self) -> int:
        """Depth of the shared ring, or of each of the two separate ones."""
        return self.num_slots if self.kv_ring is KvRing.SHARED else self.num_slots // 2

    @property
    def num_rope_buffers(self) -> int:
        """K_rope buffers beside a shared ring; 0 with separate rings, whose K stages hold the rope."""
        if self.kv_ring is not KvRing.SHARED or self.rope_depth == 0:
            return 0
        return ceil_div(self.num_kv_stages, 2)

    @property
    def num_k_scale_buffers(self) -> int:
        """Buffers of block_n key scales: one for each K that the ring can hold."""
        if self.operands.scale is None:
            return 0
        return ceil_div(self.num_kv_stages, 2) if self.kv_ring is KvRing.SHARED else self.num_kv_stages

    @property
    def num_mbars(self) -> int:
        """mbarriers as the seed counts them; those that the project adds are not among them."""
        rings = 1 if self.kv_ring is KvRing.SHARED else 2
        return self.fixed_mbars + 2 * rings * self.num_kv_stages * NUM_QK_STAGES

    def _slots_bytes(self, slots: int) -> int:
        return slots * self.kv_slot_bytes + ceil_div(slots, 2) * self.k_extra_bytes


def align_up(value: int, step: int) -> int:
    """The next multiple of ``step``, ``value`` included."""
    return ceil_div(value, step) * step


def align_down(value: int, step: int) -> int:
    """The last multiple of ``step``, ``value`` included."""
    return value // step * step


def ceil_div(value: int, step: int) -> int:
    return -(-value // step)
