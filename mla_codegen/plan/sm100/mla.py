"""``MLAConfig``: what the seed adds to ``FA4Config`` for MLA, and its switch from 2Q to 1Q."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mla_codegen.arch import ArchLimits
from mla_codegen.plan.sm100.attention import FA4Config
from mla_codegen.plan.sm100.operands import Operands
from mla_codegen.plan.sm100.supported import supported

ROPE_DEPTH = 64
"""The seed's only rope; here it is a field of the spec."""
CACHE_DEPTH = 576
"""Width of a latent cache row, of which the last ``rope_depth`` columns are K_rope."""
NUM_THREADS = 512
SINGLE_O_THREADS = 384
NUM_CORRECTION_COLS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """The seed's constructor arguments as fields; ``depth`` is nope + rope, ``v_depth`` None is nope's.

    What it mirrors from the attention configuration is in ``fa4``.
    """

    operands: Operands
    limits: ArchLimits
    num_q_heads: int
    group: int
    depth: int
    page_size: int = 0
    v_depth: int | None = None
    num_q: int = 2
    single_o: bool = False
    bn_cap: int = 0
    rope_depth: int = ROPE_DEPTH
    cache_depth: int = CACHE_DEPTH

    @property
    def fa4(self) -> FA4Config:
        return FA4Config(
            operands=self.operands,
            limits=self.limits,
            num_q_heads=self.num_q_heads,
            group=self.group,
            nope_depth=self.nope_depth,
            rope_depth=self.rope_depth,
            ov_depth=self.ov_depth,
            page_size=self.page_size,
            num_q=self.num_q,
            single_o=self.single_o,
            bn_cap=self.bn_cap,
        )

    @property
    def nope_depth(self) -> int:
        return self.depth - self.rope_depth

    @property
    def ov_depth(self) -> int:
        return self.nope_depth if self.v_depth is None else self.v_depth

    @property
    def k_rope_column(self) -> int:
        """First column of K_rope in a latent cache row."""
        return self.cache_depth - self.rope_depth

    @property
    def q_tile_rows(self) -> int:
        """Rows of one half of Q: 128 in both modes, so that the tensor maps of 1Q and 2Q are the same."""
        return self.fa4.block_m // self.num_q

    @property
    def correction_smem_elements(self) -> int:
        """fp32 factors of the literal struct: one for each query row."""
        return self.fa4.block_m * NUM_CORRECTION_COLS

    @property
    def num_threads(self) -> int:
        """384 with a single O, where one softmax warpgroup is enough, else 512.

        The seed's kernel for per-token scales runs a single O with 512 threads all the same.
        """
        few = self.fa4.single_o and self.operands.scale is None
        return SINGLE_O_THREADS if few else NUM_THREADS

    def with_num_q(self, num_q: int) -> MLAConfig:
        """The same with 1 or 2 halves of query rows."""
        return replace(self, num_q=num_q)

    def switch_1q_config(self) -> MLAConfig:
        """What a CTA of a 2Q launch runs where no more than 128 query rows are left."""
        return self.with_num_q(1)

    def can_switch_to_1q(self) -> bool:
        return self.num_q == 2 and supported(self.switch_1q_config().fa4)

    def launch_smem_used_bytes(self) -> int:
        """As the seed counts: the larger of 2Q and 1Q where a CTA may switch."""
        used = self.fa4.smem_used_bytes
        if not self.can_switch_to_1q():
            return used
        return max(used, self.switch_1q_config().fa4.smem_used_bytes)

    def prefer_1q(self, *, max_prompt_rows: int, parts: int, batch: int, num_sms: int) -> bool:
        """The seed's choice of a 1Q launch: short prompts, or too few 2Q tiles for half of the SMs.

        It looks at batch and SM count, on which a row's bits must not depend; the project launches by
        :func:`mla_codegen.plan.sm100.launch.launch_num_q`.
        """
        tiles = -(-max_prompt_rows // 256) * parts * self.num_q_heads * batch
        return max_prompt_rows <= 128 or tiles <= num_sms // 2
