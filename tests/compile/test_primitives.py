"""Every primitive alone: with the types in front, and with every function that is no template assembled."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.errors import CompileError
from mla_codegen.resources import primitives_folder
from mla_codegen.runtime.nvrtc import CompileResult, compile_source
from tests.compile.support import compile_errors, nvrtc_missing

HOPPER = ("sm_90a",)
BLACKWELL = ("sm_100a", "sm_100f", "sm_103a")

pytestmark = pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}")

FOUNDATION = tuple(primitives_folder() / "device" / name for name in ("types.cuh", "layout.cuh"))
NO_INLINE = "#undef __forceinline__\n#define __forceinline__ __noinline__"
HEADERS = sorted(primitives_folder().glob("*/*.cuh"))


def archs_of(header: Path) -> tuple[str, ...]:
    """The targets that have the header's instructions; one for each generation where both have them."""
    if header.stem.startswith(("tcgen05_", "f32x2")):
        return BLACKWELL
    return HOPPER if header.stem.startswith("wgmma") else (HOPPER[0], BLACKWELL[0])


def compile_alone(text: str, arch: str = "sm_90a") -> CompileResult:
    """The header's functions as real functions, since those that nobody calls are not assembled inline."""
    foundation = "\n".join(path.read_text() for path in FOUNDATION)
    # A constexpr function is dropped where nobody calls it.
    functions = text.replace("__forceinline__ constexpr", "__forceinline__")
    source = f"{NO_INLINE}\nnamespace mla {{\n{foundation}\n{functions}\n}}\n"
    return compile_source(source, arch=arch, name="alone", extra_options=("-rdc=true",), strict=False)


@pytest.mark.parametrize(
    ("header", "arch"),
    [(header, arch) for header in HEADERS for arch in archs_of(header)],
    ids=lambda value: value if isinstance(value, str) else f"{value.parent.name}/{value.stem}",
)
def test_a_primitive_compiles_alone(header: Path, arch: str) -> None:
    if nvrtc_missing(arch):
        pytest.skip(f"needs NVRTC for {arch}")
    text = "" if header in FOUNDATION else header.read_text()
    result = compile_alone(text, arch)
    functions = text.count("__device__ __forceinline__") - text.count("template <")
    assert result.cubin.count(b".text.") >= max(functions, 0)
    assert ": warning" not in result.log  # ptxas warns of the stack that arrays of real functions need


def test_a_wrong_instruction_in_a_primitive_is_found() -> None:
    text = '__device__ __forceinline__ void wrong() { asm volatile("mbarrier.nothing [0];"); }'
    with pytest.raises(CompileError, match="mbarrier"):
        compile_alone(text)


def test_tensor_memory_needs_blackwell() -> None:
    text = (primitives_folder() / "device" / "tcgen05_fence.cuh").read_text()
    with pytest.raises(CompileError, match="tcgen05"):
        compile_alone(text, "sm_90a")


def test_types_are_all_that_a_primitive_gets() -> None:
    text = "__device__ __forceinline__ u32 wrong() { return smem_base(); }"
    foundation = "\n".join(path.read_text() for path in FOUNDATION)
    said = compile_errors(f"namespace mla {{\n{foundation}\n{text}\n}}\n", arch="sm_90a")
    assert '"smem_base" is undefined' in said
