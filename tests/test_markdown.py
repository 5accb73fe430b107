from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sifting.markdown import bold, code, escape, table


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_a_table_has_a_line_a_row_and_a_bar_between_fields_whatever_they_hold(
    rows: list[list[str]],
) -> None:
    lines = table(["a", "b", "c"], rows).split("\n")
    assert len(lines) == 2 + len(rows)
    for line in lines:
        bars = line.replace("\\\\", "").replace("\\|", "").count("|")
        assert bars == 4
        assert "<" not in line


def test_what_is_markdown_already_is_not_escaped_again() -> None:
    assert escape(bold("a*b")) == "**a\\*b**"
    assert table(["x"], [[code("mine:half")]]).splitlines()[-1] == "| `mine:half` |"
    assert code("a|b") == "`a\\|b`"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row of 1 fields, \['x'\], in 2 columns"):
        table(["a", "b"], [["x"]])
