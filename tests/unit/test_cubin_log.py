"""The compiler's log: figures per kernel, and what is refused."""

from __future__ import annotations

import pytest

from mla_codegen.runtime.compiler_log import EntryFigures, judge_log, parse_log

CLEAN = """\
k.cu(14): warning #177-D: variable "kUnused" was declared but never referenced
Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas info    : 17 bytes gmem
ptxas info    : Compiling entry function 'short' for 'sm_90a'
ptxas info    : Function properties for short
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 256 bytes smem
ptxas info    : Compile time = 3.660 ms
ptxas info    : Compiling entry function 'long' for 'sm_90a'
ptxas info    : Function properties for long
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 1 barriers
ptxas info    : Compile time = 1.2 ms
"""

SPILLED = """\
ptxas warning : Local memory used for function 'k', size of stack frame: 344 bytes
ptxas warning : Registers are spilled to local memory in function 'k', 388 bytes spill stores
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     344 bytes stack frame, 388 bytes spill stores, 392 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 344 bytes cumulative stack size
"""

ENTRY = EntryFigures(
    name="k",
    registers=32,
    spill_store_bytes=0,
    spill_load_bytes=0,
    stack_bytes=0,
    barriers=1,
    static_smem_bytes=0,
)


def codes(log: str) -> list[str]:
    return [fault.code for fault in judge_log(log, parse_log(log), path="k.cu")]


def test_figures_of_each_kernel() -> None:
    short, long = parse_log(CLEAN)
    assert (short.name, short.registers, short.barriers, short.static_smem_bytes) == ("short", 168, 16, 256)
    assert (long.name, long.registers, long.barriers, long.static_smem_bytes) == ("long", 18, 1, 0)
    assert not codes(CLEAN)


def test_spills_are_counted_once_and_refused_with_the_numbers() -> None:
    (entry,) = parse_log(SPILLED)
    assert (entry.spill_store_bytes, entry.spill_load_bytes, entry.stack_bytes) == (388, 392, 344)
    (fault,) = judge_log(SPILLED, (entry,), path="k.cu")
    assert fault.render() == (
        "k.cu: error[register-spill]: kernel k spills 388 B of stores and 392 B of loads at 32 registers, "
        "0 B are allowed\n  help: choose a smaller tile.block_n or tile.block_m"
    )


def test_spills_of_a_called_function_count() -> None:
    called = "ptxas info    : Function properties for _Z4helpv\n"
    called += "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    (entry,) = parse_log(SPILLED.replace("344", "0").replace("388", "0").replace("392", "0") + called)
    assert (entry.spill_store_bytes, entry.stack_bytes) == (4, 8)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized",
            "ptxas-note",
        ),
        ("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored", "ptxas-note"),
        ("k.cu(3): warning #550-D: variable was set but never used", "compiler-warning"),
        ("ptxas warning : Value of threads per SM is out of range", "compiler-warning"),
    ],
)
def test_notes_and_unknown_warnings_are_refused(line: str, code: str) -> None:
    (fault,) = judge_log(line, (ENTRY,), path="k.cu")
    assert fault.code == code
    assert line in fault.message


def test_local_memory_without_spills_is_refused() -> None:
    log = SPILLED.replace("388", "0").replace("392", "0")
    assert codes(log) == ["local-memory"]
