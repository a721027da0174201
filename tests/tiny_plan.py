"""A plan and templates of a few lines, for tests of what is done with plans whatever is in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mla_codegen.plan.model import PLAN_SCHEMA, Choice, Plan

MAIN_TEMPLATE = """\
// {{ plan.name }} for {{ plan.arch }}
{% for header in plan.device_primitives %}

{% include header %}
{% endfor %}


{% for choice in plan.choices %}
// {{ choice.field }} = {{ choice.value }}
{% endfor %}
"""

INIT_TEMPLATE = '''\
"""Kernel {{ plan.name }}."""

SOURCE_DIGEST = "{{ plan.source_digest }}"
'''


def tiny_plan(name: str = "tiny", *, primitives: tuple[str, ...] = (), value: str = "64") -> Plan:
    """A plan that `tiny.cu.j2` prints; what that does not need is empty."""
    empty: dict[str, Any] = {field.name: () for field in dataclasses.fields(Plan)}
    said: dict[str, Any] = {
        "plan_schema": PLAN_SCHEMA,
        "name": name,
        "arch": "sm_90a",
        "template": "tiny.cu.j2",
        "spec_digest": "0123456789ab",
        "spec": {"name": name},
        "choices": (Choice(field="tile.block_n", value=value, rule="as the spec says"),),
        "arch_guard": "",
        "arch_guard_message": "",
        "device_primitives": primitives,
        "source_digest": None,
    }
    return Plan(**{**empty, **said})


def tiny_templates(folder: Path, *, main: str = MAIN_TEMPLATE) -> Path:
    """Writes the templates and returns their folder."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.cu.j2").write_text(main, encoding="ascii")
    (folder / "init.py.j2").write_text(INIT_TEMPLATE, encoding="ascii")
    return folder
