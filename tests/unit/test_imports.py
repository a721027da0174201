"""Which module may import which, what the package's names are, and what a generated kernel does not need."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mla_codegen.resources import package_folder

PACKAGE = package_folder()
ROOT = PACKAGE.parent
BASE = ("errors", "arch", "dtypes", "digest", "files", "scale_rule")
SPEC = ("spec", "spec_faults", "spec_rules", "spec_sections")
LOADER = ("spec_loader", "spec_matrix", "spec_nodes", "spec_scalars")
NUMBERS = (
    "accuracy",
    "arrays",
    "fp8",
    "host_problem",
    "p_emulation",
    "problems",
    "quantize",
    "reference",
    "tensors",
)

# Module or folder -> the modules of ours that it may import; the longest match wins.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "arch": (),
    "dtypes": (),
    "digest": (),
    "files": (),
    "resources": (),
    **dict.fromkeys(SPEC, (*BASE, *SPEC)),
    **dict.fromkeys(LOADER, (*BASE, *SPEC, *LOADER)),
    "scale_rule": ("dtypes",),
    "plan.model": (),
    "plan.quantizer_model": ("plan.model", "tensors"),
    "plan": (*BASE, "spec", "plan", "tensors"),
    "render": ("plan.model", "plan.quantizer_model", "resources"),
    "template_lint": ("errors", "render", "resources"),
    "emit": ("digest", "files", "plan.model", "plan.quantizer_model", "render"),
    "call": ("arch", "dtypes", "errors", "plan.model", "plan.quantizer_model", "tensors", "call"),
    "runtime": (*BASE, "plan.model", "plan.quantizer_model", "call", "runtime"),
    **dict.fromkeys(NUMBERS, (*BASE, "plan.model", *NUMBERS)),
    "loading": (*BASE, "plan.model", "runtime"),
    "judge": (*BASE, "plan.model", *NUMBERS),
    "machine": ("arch", "emulator.compiler", "errors", "runtime"),
    "emulator": (*BASE, "plan.model", "plan.quantizer_model", "call", "emulator"),
    "torch_views": BASE,
    "torch_ops": (*BASE, "call.rules", "runtime", "torch_views"),
    "integrations": (*BASE, *NUMBERS, "torch_ops"),
}

# Packages that only some may import.
RESTRICTED: dict[str, tuple[str, ...]] = {
    "cupy": ("runtime",),
    "jinja2": ("render", "template_lint"),
    "yaml": ("spec_nodes",),
    "pydantic": SPEC,
    "pydantic_core": SPEC,
    "click": ("cli",),
    "rich": ("cli",),
    "torch": ("torch_ops", "torch_views", "integrations"),
    "transformers": ("integrations",),
}

# Imports inside functions, made when a call needs them.
LAZY: dict[str, tuple[str, ...]] = {
    "loading": ("emit", "emulator", "plan", "render", "spec", "spec_loader", "tensors"),
    "quantize": ("loading",),
    "tensors": ("spec_loader",),
    "dtypes": (),
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.glob("**/*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


def imports(path: Path, *, top_level: bool) -> Iterator[str]:
    """Full names of what a file imports, at run time, inside functions (or outside of them)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, nested in _walk(tree, nested=False):
        if nested == top_level:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                below = PACKAGE / Path(*name.split(".")[1:]) if base.startswith("mla_codegen") else None
                is_module = below is not None and (below.with_suffix(".py").is_file() or below.is_dir())
                yield name if is_module else base


def _walk(node: ast.AST, *, nested: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        inside = nested or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield child, nested
        yield from _walk(child, nested=inside)


def allowed_for(module: str) -> tuple[str, ...] | None:
    """What `module` may import; None for those that may import anything."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ALLOWED[name] for name in names if name in ALLOWED), None)


def covered(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def test_imports_go_in_one_direction() -> None:
    wrong = []
    for module, path in modules():
        allowed = allowed_for(module)
        for name in imports(path, top_level=True) if allowed is not None else ():
            own = name.removeprefix("mla_codegen.")
            if name.startswith("mla_codegen.") and not covered(own, (*allowed, module)):
                wrong.append(f"{module} imports {own}")
    assert wrong == []


def test_late_imports_are_the_known_ones() -> None:
    wrong = []
    for module, path in modules():
        allowed = allowed_for(module)
        for name in imports(path, top_level=False) if allowed is not None else ():
            own = name.removeprefix("mla_codegen.")
            extra = LAZY.get(module, ())
            if name.startswith("mla_codegen.") and not covered(own, (*allowed, *extra, module)):
                wrong.append(f"{module} imports {own} late")
    assert wrong == []


@pytest.mark.parametrize("package", sorted(RESTRICTED))
def test_packages_are_imported_where_they_belong(package: str) -> None:
    found = {
        module
        for module, path in modules()
        for top_level in (True, False)
        for name in imports(path, top_level=top_level)
        if name.split(".")[0] == package
    }
    assert {module for module in found if not covered(module, RESTRICTED[package])} == set()


def test_only_the_command_line_prints_reads_argv_or_exits() -> None:
    calls = {"print", "sys.exit", "exit", "input", "sys.argv", "sys.stdout.write", "sys.stderr.write"}
    wrong = []
    for module, path in modules():
        if covered(module, ("cli",)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            used = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            used = ast.unparse(node) if isinstance(node, ast.Attribute) else used
            if used in calls:
                wrong.append(f"{module}:{node.lineno} uses {used}")
    assert wrong == []


def test_exception_is_never_caught_whole() -> None:
    wrong = [
        f"{module}:{node.lineno}"
        for module, path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) == "Exception")
    ]
    assert wrong == []


CLASHING = ("reference", "quantize", "render", "build")


def run_python(code: str, *, blocked: tuple[str, ...] = (), cwd: Path = ROOT) -> str:
    """What a fresh Python prints; importing a blocked package is an error there."""
    block = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", block + code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", CLASHING)
def test_functions_win_over_modules_of_the_same_name(name: str) -> None:
    function_first = (
        f"import mla_codegen as m; m.{name}; import mla_codegen.{name}; print(callable(m.{name}))"
    )
    module_first = f"import mla_codegen as m, mla_codegen.{name}; print(callable(m.{name}))"
    inner_first = f"from mla_codegen.{name} import {name}; import mla_codegen as m; print(m.{name} is {name})"
    from_import = f"import mla_codegen.{name}; from mla_codegen import {name}; print(callable({name}))"
    for code in (function_first, module_first, inner_first, from_import):
        assert run_python(code) == "True", code


def test_public_names_are_all_there() -> None:
    package = importlib.import_module("mla_codegen")
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = package.absent


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("numpy", "pydantic", "yaml", "jinja2", "click", "rich", "cupy", "ml_dtypes")
    heavy += ("torch", "transformers")
    code = f"import mla_codegen, mla_codegen.plan; print([n for n in {heavy!r} if n in sys.modules])"
    assert run_python(code) == "[]"


def test_reading_a_plan_needs_no_planner() -> None:
    blocked = ("pydantic", "yaml", "jinja2", "click", "rich", "mla_codegen.plan.builder", "mla_codegen.spec")
    assert run_python("from mla_codegen.plan import Plan; print(Plan.__name__)", blocked=blocked) == "Plan"


def test_reference_and_quantize_need_numpy_alone() -> None:
    blocked = ("pydantic", "yaml", "jinja2", "click", "rich", "cupy", "torch")
    code = "import mla_codegen as m; print(callable(m.reference), callable(m.quantize), callable(m.measure))"
    assert run_python(code, blocked=blocked) == "True True True"


def test_a_generated_kernel_needs_neither_planner_nor_templates() -> None:
    names = sorted(path.name for path in (ROOT / "generated").iterdir() if (path / "plan.json").is_file())
    blocked = ("pydantic", "yaml", "jinja2", "click", "rich", "mla_codegen.plan.builder", "mla_codegen.spec")
    code = f"from generated.{names[0]} import kernel; print(kernel.plan['name'])"
    assert run_python(code, blocked=blocked) == names[0]
