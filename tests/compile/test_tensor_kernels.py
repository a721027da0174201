"""The emulator's kernels with tensor memory as CUDA: the same sources behind the device primitives."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.resources import primitives_folder
from mla_codegen.runtime.nvrtc import CompileResult, compile_source
from tests.compile.support import nvrtc_missing, opcodes, wheel_tool
from tests.emulator.small import source_with

ARCHS = ("sm_100a", "sm_100f", "sm_103a")
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "product_f16": ("tensor_product", {"kSteps": "4", "kAccumulate": "1"}),
    "product_f8f6f4": ("tensor_product", {"kKind": "1", "kType": "0", "kFromTmem": "true", "kM": "64"}),
    "chain_bf16": ("tensor_chain", {}),
    "chain_e4m3": ("tensor_chain", {"kFp8": "true"}),
    "orders": ("tensor_orders", {"kCase": "0"}),
    "transfers": ("tensor_transfers", {"kStore": "64", "kLoad": "128"}),
    "halves": ("tensor_transfers", {"kLoad": "64", "kHalves": "true"}),
}
PRODUCTS = {
    "product_f16": ("UTCHMMA", 4),
    "product_f8f6f4": ("UTCQMMA", 1),
    "chain_bf16": ("UTCHMMA", 8),
    "chain_e4m3": ("UTCQMMA", 4),
}
"""The machine instruction of the products, and how often it is there at least."""

pytestmark = pytest.mark.skipif(nvrtc_missing() is not None, reason=f"needs NVRTC: {nvrtc_missing()}")


def device_primitives() -> str:
    """All headers that Blackwell can compile, types and layout first."""
    folder = primitives_folder() / "device"
    names = [path.stem for path in sorted(folder.glob("*.cuh"))]
    left_out = {"types", "layout", "mbarrier_wait_debug"} | {
        name for name in names if name.startswith("wgmma")
    }
    order = ["types", "layout", *(name for name in names if name not in left_out)]
    return "\n".join((folder / f"{name}.cuh").read_text() for name in order)


def compiled(form: str, arch: str) -> CompileResult:
    name, constants = FORMS[form]
    source = source_with(name, constants)
    twins = '#include "mla_host_model.hpp"\n'
    assert source.count(twins) == 1
    return compile_source(
        source.replace(twins, f"namespace mla {{\n{device_primitives()}\n}}\n"), arch=arch, name=form
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", FORMS)
def test_it_compiles_without_spills_and_warnings(form: str, arch: str) -> None:
    if nvrtc_missing(arch):
        pytest.skip(f"needs NVRTC for {arch}")
    result = compiled(form, arch)
    figures = result.entry("kernel")
    assert (figures.spill_store_bytes, figures.spill_load_bytes, figures.stack_bytes) == (0, 0, 0)
    assert "warning" not in result.log


@pytest.mark.parametrize("form", PRODUCTS)
def test_it_has_the_machine_instructions_of_its_primitives(form: str, tmp_path: Path) -> None:
    cuobjdump = wheel_tool("cuobjdump")
    if cuobjdump is None or wheel_tool("nvdisasm") is None:
        pytest.skip("needs cuobjdump and nvdisasm: install mla-codegen[inspect]")
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled(form, "sm_100a").cubin)
    found = opcodes(cubin, cuobjdump)
    product, count = PRODUCTS[form]
    assert found[product] >= count
    assert found["UTCHMMA"] == 0 or found["UTCQMMA"] == 0
    needed = ["UTCBAR", "LDTM", "STTM", "UTCATOMSWS.FIND_AND_SET", "UTCATOMSWS.AND"]
    needed += ["UTMALDG.1D", "UTMALDG.2D", "UTMASTG.3D"] if form.startswith("chain") else []
    missing = [opcode for opcode in needed if not any(name.startswith(opcode) for name in found)]
    assert not missing
