"""Text from run folders, made safe to show."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sifting.report.sanitize import DEEPEST, LONGEST, MOST, clip, cut, escape


def test_text_is_one_line_of_printable_characters_and_not_too_long() -> None:
    assert clip("a\tb\n  c", 20) == "a b c"
    assert "\x1b" not in clip("\x1b[2J", 9)
    assert clip("x" * 50, 10) == "x" * 9 + "…"
    assert clip("x" * 10, 10) == "x" * 10


def test_megabytes_are_not_looked_at() -> None:
    begin = time.process_time()
    assert len(clip("\x00 " * 20_000_000, 80)) <= 80
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("text", ['<img src="x">', "a & b", "'x'", "\x00<"])
def test_nothing_of_it_is_html(text: str) -> None:
    assert not set("<>\"'\x00") & set(escape(text))


def test_settings_keep_their_shape_and_lose_what_nobody_reads() -> None:
    config: Any = {"note": "x" * (LONGEST + 1), "many": list(range(MOST + 5)), "one": 1, "no": None}
    found = cut(config)
    assert found["note"].endswith(f"… ({LONGEST + 1:,} characters)")
    assert found["many"][:2] == [0, 1]
    assert found["many"][-1] == "… (5 more)"
    assert (found["one"], found["no"]) == (1, None)
    wide = cut({str(i): i for i in range(MOST + 7)})
    assert (len(wide), wide["…"]) == (MOST + 1, "7 more")


def test_depths_have_a_floor() -> None:
    deep: Any = "bottom"
    for _ in range(3 * DEEPEST):
        deep = {"a": deep}
    found, depth = cut(deep), 0
    while isinstance(found, dict):
        found, depth = found["a"], depth + 1
    assert (found, depth) == ("…", DEEPEST)
