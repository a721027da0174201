"""Which headers of the primitive layer a generated file needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_codegen.plan.tiles import Tiles

if TYPE_CHECKING:
    from mla_codegen.spec import Spec


def device_primitives(spec: Spec, tiles: Tiles, *, debug: bool) -> tuple[str, ...]:
    """Headers of the primitive layer in a fixed order, only those that the kernel uses."""
    used = {
        "types": True,
        "layout": True,
        "thread": True,
        "shuffle_f32": True,
        "shuffle_u32": tiles.out != "f32" and tiles.ov_depth >= 32,
        "barrier": True,
        "mbarrier": True,
        "mbarrier_wait": not debug,
        "mbarrier_wait_debug": debug,
        "fence": True,
        "tma": True,
        "tma_3d": not (tiles.q_dense and tiles.kv_dense),
        "tma_4d": tiles.q_dense or tiles.kv_dense,
        "shared_memory": True,
        "ld_shared_f32": tiles.scales_rows or tiles.rereads_factors,
        "ld_shared_v4_f32": tiles.scales_keys,
        "st_shared_f32": tiles.scales_rows or tiles.scales_keys or tiles.rereads_factors,
        "ld_global_f32": {tiles.q_scale, tiles.k_scale, tiles.v_scale} != {"none"},
        "matrix_transpose": tiles.transposes_v,
        "ld_shared_v4_u32": True,
        "st_shared_v4_u32": True,
        "bits": tiles.flush_blocks > 0,
        "vote": tiles.lazy_softmax,
        "ld_global_i32": not (tiles.q_dense and tiles.kv_dense),
        "st_global_u32": tiles.out != "f32" and tiles.ov_depth % 32 != 0,
        "st_global_v2_f32": tiles.out == "f32",
        "st_global_v4_u32": tiles.out != "f32",
        "st_global_f32": spec.softmax.lse != "none",
        "lg2": spec.softmax.lse != "none" or tiles.scales_p,
        **{f"convert_{kind}": True for kind in sorted(_conversions(tiles))},
        "math": True,
        "setmaxnreg": True,
        "wgmma": True,
    }
    return tuple(f"primitives/device/{name}.cuh" for name, is_used in used.items() if is_used)


def _conversions(tiles: Tiles) -> set[str]:
    """The types that fp32 is rounded to: P's, the output's and that of the master of O."""
    master = {"bf16"} if tiles.flush_blocks else set()
    return {tiles.qkv, *({tiles.out} - {"f32"}), *master}


def common_primitives(tiles: Tiles) -> tuple[str, ...]:
    names = ["unroll", "field_at", "pipeline_state", "matrix_descriptor"] + (["swizzle"] if tiles.fp8 else [])
    return tuple(f"primitives/common/{name}.cuh" for name in names)
