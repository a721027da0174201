"""Brings the tables of blackwell.md up to date: python docs/update_blackwell.py."""

from __future__ import annotations

from pathlib import Path

from mla_codegen.plan.sm100.page import with_tables

if __name__ == "__main__":
    page = Path(__file__).with_name("blackwell.md")
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
