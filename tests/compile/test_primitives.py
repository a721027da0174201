"""Every primitive alone: with the types in front, and with every function that is no template assembled."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.errors import CompileError
from mla_codegen.resources import primitives_folder
from mla_codegen.runtime.nvrtc import CompileResult, compile_source
from tests.compile.support import compile_errors, nvrtc_missing

pytestmark = pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}")

FOUNDATION = tuple(primitives_folder() / "device" / name for name in ("types.cuh", "layout.cuh"))
NO_INLINE = "#undef __forceinline__\n#define __forceinline__ __noinline__"
HEADERS = sorted(primitives_folder().glob("*/*.cuh"))


def compile_alone(text: str) -> CompileResult:
    """The header's functions as real functions, since those that nobody calls are not assembled inline."""
    foundation = "\n".join(path.read_text() for path in FOUNDATION)
    source = f"{NO_INLINE}\nnamespace mla {{\n{foundation}\n{text}\n}}\n"
    return compile_source(source, arch="sm_90a", name="alone", extra_options=("-rdc=true",), strict=False)


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_primitive_compiles_alone(header: Path) -> None:
    text = "" if header in FOUNDATION else header.read_text()
    cubin = compile_alone(text).cubin
    functions = text.count("__device__ __forceinline__") - text.count("template <")
    assert cubin.count(b".text.") >= max(functions, 0)


def test_a_wrong_instruction_in_a_primitive_is_found() -> None:
    text = '__device__ __forceinline__ void wrong() { asm volatile("mbarrier.nothing [0];"); }'
    with pytest.raises(CompileError, match="mbarrier"):
        compile_alone(text)


def test_types_are_all_that_a_primitive_gets() -> None:
    text = "__device__ __forceinline__ u32 wrong() { return smem_base(); }"
    foundation = "\n".join(path.read_text() for path in FOUNDATION)
    said = compile_errors(f"namespace mla {{\n{foundation}\n{text}\n}}\n", arch="sm_90a")
    assert '"smem_base" is undefined' in said
