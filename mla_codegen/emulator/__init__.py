"""The CPU emulator: runs a generated kernel without a GPU and reports hazards of its synchronisation.

The generated source is compiled by a C++20 compiler against a host model of the primitives (`cpp/`); needs
NumPy and no CUDA package.
"""

from mla_codegen.emulator.kernel import EmulatedKernel, load_emulated
from mla_codegen.emulator.report import EmulationError, EmulationReport, Hazard

__all__ = ["EmulatedKernel", "EmulationError", "EmulationReport", "Hazard", "load_emulated"]
