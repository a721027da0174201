"""Hardware limits of each target, every number once and with its public source.

Sources named below: "programming guide" is the CUDA C++ Programming Guide, table "Technical Specifications
per Compute Capability"; "PTX ISA" is the PTX ISA manual; "driver API" is the CUDA Driver API page on
cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchLimits:
    """What one target offers a kernel; all numbers are upper limits unless the name says otherwise."""

    name: str
    """Target as NVRTC's -arch takes it."""
    family: str
    """Targets of one family compile the same generated source."""
    compute_capabilities: tuple[tuple[int, int], ...]
    """Devices (major, minor) that run a cubin of this target."""
    feature_macros: tuple[str, ...]
    """Preprocessor macros: the compiler defines at least one for this target and none for the plain one."""
    min_nvrtc_version: tuple[int, int]
    """Oldest NVRTC (major, minor) that knows the target."""
    tmem_cols: int
    """Tensor-memory columns per SM, 0 where there are none."""
    tmem_lanes: int
    """Tensor-memory lanes, that is rows, per SM; 0 where there are none."""

    # PTX ISA, tcgen05, "Tensor Memory": a cell has 32 bits; a CTA allocates a power of two of columns, at
    # least 32. tcgen05.mma, cta_group::1, shapes of kind::f16 and kind::f8f6f4 with M = 128: N is a multiple
    # of 16 up to 256. These numbers mean something where tmem_cols is not 0.
    tmem_cell_bytes: int = 4
    """Bytes of one column in one lane."""
    tmem_alloc_min_cols: int = 32
    """Fewest columns of an allocation; every allocation is a power of two."""
    umma_n_step: int = 16
    """N of a tcgen05.mma with M = 128 is a multiple of this."""
    umma_n_max: int = 256
    """Largest N of a tcgen05.mma."""

    # Programming guide, 9.0, 10.0 and 10.3: 228 KiB per SM, of which 1 KiB is reserved for each CTA; 227 KiB
    # per CTA by opt-in, which is what cudaDevAttrMaxSharedMemoryPerBlockOptin reports.
    smem_per_sm_bytes: int = 233472
    """Shared memory of one SM."""
    smem_reserved_per_cta_bytes: int = 1024
    """Shared memory that the system takes from each CTA."""
    smem_per_cta_bytes: int = 232448
    """Dynamic shared memory that a CTA may opt in to."""

    # Programming guide: 64 K registers per SM, 255 per thread, 1024 threads per CTA, 32 threads per warp.
    # Registers are allocated per warp in units of 256 (CUDA occupancy calculator), that is in steps of 8 per
    # thread.
    sm_regs: int = 65536
    """Registers of 32 bits in one SM."""
    thread_regs: int = 255
    """Registers that one thread can address."""
    warp_unit_regs: int = 256
    """Registers of one warp are rounded up to a multiple of this."""
    cta_threads: int = 1024
    """Threads of one CTA."""
    warp_threads: int = 32
    """Threads of one warp."""

    # PTX ISA, setmaxnreg: the immediate is a multiple of 8 in the range 24 to 256.
    setmaxnreg_min_regs: int = 24
    """Smallest argument of setmaxnreg."""
    setmaxnreg_max_regs: int = 256
    """Largest argument of setmaxnreg."""
    setmaxnreg_step_regs: int = 8
    """Arguments of setmaxnreg are multiples of this."""

    # PTX ISA, bar / barrier: sixteen barriers numbered 0 to 15; __syncthreads uses number 0.
    named_barriers: int = 16
    """Named barriers of one CTA, number 0 included, which belongs to __syncthreads."""
    # PTX ISA, mbarrier, "Contents of the mbarrier object": both counts go up to 2^20 - 1.
    mbarrier_arrivals: int = 2**20 - 1
    """Expected arrivals of one mbarrier phase."""
    mbarrier_tx_bytes: int = 2**20 - 1
    """Bytes that one mbarrier phase can expect."""

    # Driver API: boxDim[i] <= 256, globalStrides[i] a multiple of 16 and less than
    # 2^40, globalAddress aligned to 16, the inner box a multiple of 16 bytes, at most 5 dimensions.
    tensor_map_rank: int = 5
    """Dimensions of a tensor map."""
    tensor_map_box_elems: int = 256
    """Elements of a TMA box along each dimension."""
    tensor_map_stride_limit_bytes: int = 2**40
    """Strides are below this."""
    tensor_map_stride_step_bytes: int = 16
    """Strides, inner box and global address are multiples of this."""

    def launch_cap_regs(self, threads: int) -> int:
        """Registers per thread that the compiler may use for a CTA of `threads` threads, one CTA per SM."""
        assert 0 < threads <= self.cta_threads, f"{threads} threads do not fit in a CTA"
        warps = -(-threads // self.warp_threads)
        units = self.sm_regs // self.warp_unit_regs // warps
        return min(self.thread_regs, units * self.warp_unit_regs // self.warp_threads)

    def setmaxnreg_allows(self, regs: int) -> bool:
        """Whether `regs` is a legal argument of setmaxnreg."""
        in_range = self.setmaxnreg_min_regs <= regs <= self.setmaxnreg_max_regs
        return in_range and regs % self.setmaxnreg_step_regs == 0

    def tmem_alloc_cols(self, used_cols: int) -> int:
        """Columns to allocate where `used_cols` are used: a power of two, and at least the smallest."""
        assert 0 < used_cols <= self.tmem_cols, f"{used_cols} TMEM columns, {self.tmem_cols} exist"
        return max(self.tmem_alloc_min_cols, 1 << (used_cols - 1).bit_length())


# Feature macros: programming guide, "Feature Set Compiler Targets". The family macro came with the f targets
# in CUDA 12.9, so that 12.8 has the arch macro of sm_100a only. Tensor memory: PTX ISA, tcgen05, "Tensor
# Memory": 512 columns of 128 lanes. Oldest compiler: PTX ISA release notes (sm_90a with 8.0, sm_100a with
# 8.6, sm_103a and family targets with 8.8); for sm_90a the project asks for CUDA 12.0, the first toolkit with
# PTX ISA 8.0.
_TABLE = (
    ArchLimits(
        name="sm_90a",
        family="hopper",
        compute_capabilities=((9, 0),),
        feature_macros=("__CUDA_ARCH_FEAT_SM90_ALL",),
        min_nvrtc_version=(12, 0),
        tmem_cols=0,
        tmem_lanes=0,
    ),
    ArchLimits(
        name="sm_100a",
        family="blackwell",
        compute_capabilities=((10, 0),),
        feature_macros=("__CUDA_ARCH_FEAT_SM100_ALL", "__CUDA_ARCH_FAMILY_SPECIFIC__"),
        min_nvrtc_version=(12, 8),
        tmem_cols=512,
        tmem_lanes=128,
    ),
    ArchLimits(
        name="sm_100f",
        family="blackwell",
        compute_capabilities=((10, 0), (10, 3)),
        feature_macros=("__CUDA_ARCH_FAMILY_SPECIFIC__",),
        min_nvrtc_version=(12, 9),
        tmem_cols=512,
        tmem_lanes=128,
    ),
    ArchLimits(
        name="sm_103a",
        family="blackwell",
        compute_capabilities=((10, 3),),
        feature_macros=("__CUDA_ARCH_FEAT_SM103_ALL", "__CUDA_ARCH_FAMILY_SPECIFIC__"),
        min_nvrtc_version=(12, 9),
        tmem_cols=512,
        tmem_lanes=128,
    ),
)

ARCHS: Mapping[str, ArchLimits] = MappingProxyType({arch.name: arch for arch in _TABLE})
"""All targets by name, in declared order."""
