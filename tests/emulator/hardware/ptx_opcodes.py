"""Makes ptx_opcodes.json: how CCCL spells the PTX instructions that the device primitives wrap.

Run as `python ptx_opcodes.py FOLDER`; needs the network: the headers come from the wheel nvidia-cuda-cccl
(Apache-2.0 with LLVM exception). Only instruction names and the number of their operands are kept.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "nvidia-cuda-cccl==13.3.5.0.6"
HEADERS = (
    "cp_async_bulk_commit_group",
    "cp_async_bulk_tensor",
    "cp_async_bulk_wait_group",
    "elect_sync",
    "fence_mbarrier_init",
    "fence_proxy_async",
    "mbarrier_arrive",
    "mbarrier_arrive_expect_tx",
    "mbarrier_init",
    "mbarrier_try_wait_parity",
    "prmt",
    "setmaxnreg",
    "tcgen05_alloc",
    "tcgen05_commit",
    "tcgen05_fence",
    "tcgen05_ld",
    "tcgen05_mma",
    "tcgen05_st",
    "tcgen05_wait",
)
FAMILIES = (
    "cp.async.bulk.commit_group",
    "cp.async.bulk.tensor",
    "cp.async.bulk.wait_group",
    "elect.sync",
    "fence.mbarrier_init",
    "fence.proxy.async",
    "mbarrier",
    "prmt",
    "setmaxnreg",
    "tcgen05",
)
"""How the names of these instructions start."""

_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(((?:\s*\"(?:[^\"\\]|\\.)*\")+)")
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_OPERANDS = re.compile(r"\[[^]]*\]|[^,\[\]]+")
_NEWER = ("override::", "mbarrier::report", "layout::", "phase_type::", "multicast::", "sync_restrict")
"""Parts of forms for later architectures, which are left out."""
_OTHER_FORMS = (
    "cta_group::2",
    "block_scale",
    "pack::16b",
    "16x64b",
    "16x128b",
    "16x32bx2",
    "exclusive",
    ".red",
)
"""Parts of forms of tcgen05 that no kernel here has, which are left out."""


def instructions(text: str) -> set[tuple[str, int]]:
    """Name with all qualifiers, and number of operands, of each PTX instruction in the asm strings of `text`.

    Braces, labels, declarations, predicates of jumps and what only moves a predicate are left out;
    `[tensor map, {coordinates}]` counts as one operand.
    """
    found = set()
    for block in _ASM.findall(text):
        code = "".join(_STRING.findall(block)).replace(r"\n", "\n").replace(r"\t", " ")
        code = re.sub(r"//[^\n]*", "", code)
        code = re.sub(r"^\s*\{|\}\s*$", "", code)
        for line in re.split(r";|^\w+%?=?:", code, flags=re.MULTILINE):
            words = line.strip().split(None, 1)
            if not words or "." not in words[0] or words[0].startswith((".", "@", "%")):
                continue
            if words[0] != "selp.b32":
                operands = _OPERANDS.findall(words[1]) if len(words) > 1 else []
                found.add((words[0], sum(1 for operand in operands if operand.strip())))
    return found


def _is_left_out(name: str) -> bool:
    others = _OTHER_FORMS if name.startswith("tcgen05") else ("cta_group::",)
    return any(part in name for part in (*_NEWER, *others))


def main(folder: str) -> None:
    """Downloads the headers and writes the table."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), WHEEL],
            check=True,
        )
        (wheel,) = scratch.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(scratch)
        found: set[tuple[str, int]] = set()
        for header in HEADERS:
            (path,) = scratch.glob(f"**/cuda/__ptx/instructions/generated/{header}.h")
            found |= instructions(path.read_text(encoding="utf-8"))
    kept = sorted(
        [name, operands] for name, operands in found if name.startswith(FAMILIES) and not _is_left_out(name)
    )
    rows = ",\n".join(f"  {json.dumps(row)}" for row in kept)
    (Path(folder) / "ptx_opcodes.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
