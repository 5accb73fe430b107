from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sifting.verdict.prose import LONGEST, name, names, prose, strong


def test_each_medium_sets_names_off_in_its_own_way() -> None:
    said = strong("Leave it off.") + " " + names(["a", "b_c", "d|e"]) + " lost <all>."
    assert said.bare() == "Leave it off. a, b_c and d|e lost <all>."
    assert said.plain() == "Leave it off. `a`, `b_c` and `d|e` lost <all>."
    assert said.markdown() == "**Leave it off.** `a`, `b_c` and `d\\|e` lost &lt;all&gt;."
    assert said.strong() == "Leave it off."
    assert not prose("")


@given(st.text(max_size=200))
def test_a_name_is_one_line_without_escapes_and_never_endless(text: str) -> None:
    shown = name(text).bare()
    assert len(shown) <= LONGEST
    assert shown.split("\n") == [shown]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", shown)


def test_a_name_of_megabytes_is_cut() -> None:
    assert name("x" * 10_000_000).bare() == "x" * (LONGEST - 1) + "…"
