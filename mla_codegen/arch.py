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


# Feature macros: programming guide, "Feature Set Compiler Targets". The family macro came with the f targets
# in CUDA 12.9, so that 12.8 has the arch macro of sm_100a only. Tensor memory: PTX ISA, tcgen05, "Tensor
# Memory": 512 columns. Oldest compiler: PTX ISA release notes (sm_90a with 8.0, sm_100a with 8.6, sm_103a and
# family targets with 8.8); for sm_90a the project asks for CUDA 12.0, the first toolkit with PTX ISA 8.0.
_TABLE = (
    ArchLimits(
        name="sm_90a",
        family="hopper",
        compute_capabilities=((9, 0),),
        feature_macros=("__CUDA_ARCH_FEAT_SM90_ALL",),
        min_nvrtc_version=(12, 0),
        tmem_cols=0,
    ),
    ArchLimits(
        name="sm_100a",
        family="blackwell",
        compute_capabilities=((10, 0),),
        feature_macros=("__CUDA_ARCH_FEAT_SM100_ALL", "__CUDA_ARCH_FAMILY_SPECIFIC__"),
        min_nvrtc_version=(12, 8),
        tmem_cols=512,
    ),
    ArchLimits(
        name="sm_100f",
        family="blackwell",
        compute_capabilities=((10, 0), (10, 3)),
        feature_macros=("__CUDA_ARCH_FAMILY_SPECIFIC__",),
        min_nvrtc_version=(12, 9),
        tmem_cols=512,
    ),
    ArchLimits(
        name="sm_103a",
        family="blackwell",
        compute_capabilities=((10, 3),),
        feature_macros=("__CUDA_ARCH_FEAT_SM103_ALL", "__CUDA_ARCH_FAMILY_SPECIFIC__"),
        min_nvrtc_version=(12, 9),
        tmem_cols=512,
    ),
)

ARCHS: Mapping[str, ArchLimits] = MappingProxyType({arch.name: arch for arch in _TABLE})
"""All targets by name, in declared order."""
