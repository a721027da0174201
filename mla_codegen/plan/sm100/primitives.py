"""Which headers of the primitive layer a Blackwell kernel needs."""

from __future__ import annotations

from mla_codegen.plan.model import Sm100Mma
from mla_codegen.plan.sm100.attention import FA4Config
from mla_codegen.plan.sm100.forms import Forms


def device_primitives(
    config: FA4Config, mma: Sm100Mma, forms: Forms, *, o_cols: int, merges: bool
) -> tuple[str, ...]:
    """Headers in a fixed order, only those that the kernel uses; ``merges`` where there is a 1Q body."""
    kinds = {mma.nope, mma.rope, mma.pv}
    p_cols = 8 if config.operands.qkv_bytes == 1 else 16
    used = {
        "types": True,
        "layout": True,
        "thread": True,
        "lane_index": True,
        "barrier": True,
        "mbarrier": True,
        "mbarrier_wait": not forms.debug,
        "mbarrier_wait_debug": forms.debug,
        "fence": True,
        "tma": True,
        "tma_3d": not (forms.q_dense and forms.kv_dense),
        "tma_4d": forms.q_dense or forms.kv_dense,
        "shared_memory": True,
        "ld_shared_u32": True,
        "ld_shared_f32": True,
        "ld_shared_v4_f32": forms.scales_keys,
        "ld_shared_v4_u32": True,
        "st_shared_f32": True,
        "st_shared_v4_u32": True,
        "ld_global_f32": forms.carries_scales
        or forms.folds_k_scale
        or forms.scales_output
        or forms.k_rope_scale != "none",
        "ld_global_i32": not (forms.q_dense and forms.kv_dense),
        "st_global_f32": forms.lse != "none",
        "st_global_v4_u32": True,
        "vote": True,
        "bits": True,
        "exponent": True,
        "float_bits": True,
        "lg2": forms.lse != "none" or forms.scales_p,
        **{f"convert_{kind}": True for kind in sorted(_rounded(config, forms))},
        "convert_from_e4m3": config.operands.converts_rope,
        "math": True,
        "f32x2": True,
        "setmaxnreg": True,
        "tcgen05_alloc": True,
        "tcgen05_fence": True,
        "tcgen05_wait": True,
        "tcgen05_commit": True,
        "tcgen05_mma_f8f6f4": "tcgen05_mma_f8f6f4" in kinds,
        "tcgen05_mma_f16": "tcgen05_mma_f16" in kinds,
        "tcgen05_ld_32x32b_x8_f32": o_cols == 8,
        "tcgen05_ld_32x32b_x16_f32": o_cols == 16,
        "tcgen05_ld_32x32b_x32_f32": True,
        "tcgen05_ld_32x32b_x2_f32": merges,
        "tcgen05_st_32x32b_x2_f32": merges,
        "tcgen05_st_32x32b_x8_f32": o_cols == 8,
        "tcgen05_st_32x32b_x16_f32": o_cols == 16,
        "tcgen05_st_32x32b_x32_f32": o_cols == 32,
        "tcgen05_st_32x32b_x8_u32": p_cols == 8,
        "tcgen05_st_32x32b_x16_u32": p_cols == 16,
    }
    return tuple(f"primitives/device/{name}.cuh" for name, is_used in used.items() if is_used)


def _rounded(config: FA4Config, forms: Forms) -> set[str]:
    """The types that fp32 is rounded to: P's, the output's and that of converted rope."""
    rope = {config.operands.rope_mma} if config.operands.converts_rope else set()
    return {config.operands.qkv, *({forms.out} - {"f32"}), *rope}


def common_primitives(config: FA4Config) -> tuple[str, ...]:
    """Headers that device and host model share."""
    names = ["field_at", "pipeline_state", "tcgen05_descriptor"]
    names += ["swizzle"] if config.operands.converts_rope else []
    return tuple(f"primitives/common/{name}.cuh" for name in names)
