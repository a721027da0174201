"""template_lint: every kind of logic is reported with its line, and the project's own templates are clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.template_lint import MAX_COLUMNS, lint, lint_template

CLEAN = """\
{# a comment with threadIdx and __syncthreads() #}
{% include "_banner.cu.j2" %}
{% include plan.partials.scores %}
{% for field in plan.fields %}
  u32 {{ field.name }} = {{ field.value | hex }};  // id 0 is __syncthreads, asm is elsewhere
{% if not loop.last %}

{% endif %}
{% endfor %}
{% if plan.features.causal %}
__device__ __forceinline__ u32 f(u32 x) { return x + 1; }
{% else %}
static_assert(true, "no asm here");
{% endif %}
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#endif
"""


def faults(text: str, name: str = "x.cu.j2") -> list[tuple[int | None, str]]:
    return [(fault.line, fault.message) for fault in lint_template(text, path=Path(name))]


def test_what_templates_may_do() -> None:
    assert faults(CLEAN) == []


@pytest.mark.parametrize(
    ("logic", "noun"),
    [
        ("{{ plan.a + 1 }}", "arithmetic"),
        ("{{ -plan.a }}", "arithmetic"),
        ("{{ plan.a ~ plan.b }}", "a concatenation with ~"),
        ("{{ plan.a[0] }}", "indexing"),
        ("{{ plan.a() }}", "a call"),
        ("{{ plan.a == 1 }}", "a comparison"),
        ("{{ plan.a or plan.b }}", "boolean logic"),
        ("{{ 'a' if plan.b else 'c' }}", "an inline if"),
        ("{{ plan.a | upper }}", "filter 'upper'"),
        ("{{ plan.a | hex(1) }}", "filter 'hex'"),
        ('{{ "text" }}', "a literal"),
        ("{% set x = plan.a %}", "set"),
        ("{% macro f() %}{% endmacro %}", "a macro"),
        ("{% block b %}{% endblock %}", "block"),
        ("{% if plan.a > 1 %}{% endif %}", "a comparison"),
        ("{% if plan.a and plan.b %}{% endif %}", "boolean logic"),
        ("{% if plan.a is defined %}{% endif %}", "a test"),
        ("{% if plan.a %}{% elif plan.b %}{% endif %}", "an elif"),
        ("{% if plan.a %}{% if plan.b %}{% endif %}{% endif %}", "a nested if"),
        ("{% if plan.a %}{% for x in plan.b %}{% if x.c %}{% endif %}{% endfor %}{% endif %}", "a nested if"),
        ("{% for x in plan.a if x %}{% endfor %}", "a for with condition, recursion or else"),
        ("{% for x, y in plan.a %}{% endfor %}", "a for with several targets"),
        ("{% include [plan.a, plan.b] %}", "an include of more than one name"),
        ('{% include "a" ~ plan.b %}', "an include of more than one name"),
    ],
)
def test_logic_is_reported_with_its_line(logic: str, noun: str) -> None:
    assert faults(f"first line\n\n{logic}\n") == [(3, f"{noun} in a template")]


def test_syntax_errors_have_a_line() -> None:
    ((line, message),) = faults("a\n{% for x plan.a %}\n")
    assert line == 2
    assert "expected token" in message


@pytest.mark.parametrize(
    "code",
    ["asm volatile", "__shared__", "threadIdx", "blockIdx", "__shfl_sync", "__syncthreads", "atomicAdd"],
)
def test_built_ins_belong_to_the_primitives(code: str) -> None:
    word = code.split()[0]
    message = f"`{word}` outside the primitive layer"
    assert faults(f"{{% for x in plan.a %}}\n  {code} x;\n{{% endfor %}}\n") == [(2, message)]
    assert faults(f'// {code}\n"{code}"\n') == []
    assert faults(f"{code}\n", "x.py.j2") == []


def test_layout_is_part_of_the_lint(tmp_path: Path) -> None:
    assert faults("a\tb\nc \n") == [
        (1, "character '\\t', files are ASCII with LF and no tabs"),
        (2, "trailing blank"),
    ]
    (tmp_path / "wide.cuh").write_text("//" + "x" * MAX_COLUMNS + "\n")
    (fault,) = lint(tmp_path, primitives=tmp_path)
    assert (fault.line, fault.message) == (1, f"{MAX_COLUMNS + 2} columns, {MAX_COLUMNS} are allowed")


def test_the_projects_own_templates_and_primitives_are_clean() -> None:
    assert [fault.render() for fault in lint()] == []
