"""docs/blackwell.md shows what the code gives, and says what has not been run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mla_codegen.plan.sm100.page import TABLES, with_tables

PAGE = (Path(__file__).parents[2] / "docs" / "blackwell.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    assert with_tables(PAGE) == PAGE, "run: python docs/update_blackwell.py"


def test_every_table_is_on_the_page_once() -> None:
    assert sorted(re.findall(r"<!-- table: (\S+) -->", PAGE)) == sorted(TABLES)
    assert PAGE.count("<!-- end of table -->") == len(TABLES)


def test_a_stale_table_is_replaced_and_the_text_around_it_stays() -> None:
    stale = "before\n<!-- table: tmem -->\nold\n<!-- end of table -->\nafter\n"
    fresh = with_tables(stale)
    assert "old" not in fresh
    assert fresh.startswith("before\n<!-- table: tmem -->\n| region |")
    assert fresh.endswith("|\n<!-- end of table -->\nafter\n")


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="absent"):
        with_tables("<!-- table: absent -->\n<!-- end of table -->")


def test_the_page_says_that_nothing_has_run_on_hardware() -> None:
    first = PAGE.split("\n\n")[1]
    assert first.startswith("**Nothing on this page has run on hardware")


def test_golden_rows_are_on_the_page() -> None:
    choice = "| e4m3, bf16 rope, scales | 128/64/128 | two O, 2Q | 2Q | 128 | separate | 3 | - | 3 | 512"
    assert f"{choice} | 25 | 216,780 | 33 | 217,088 |" in PAGE
    assert "| 5 | 23 | 232,128 | yes | 22 | 198,328 | yes |" in PAGE
