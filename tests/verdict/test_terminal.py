from __future__ import annotations

import io

import pytest

from sifting.terminal import make_console
from sifting.verdict import judge
from sifting.verdict.terminal import show
from tests.helpers.run_folders import made

ARMS = {"baseline": 1.0, "random-keep": 1.0, "sift-entropy-at-the-third": 1.3, "mine:tent:": 0.9}


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_field_is_printed_whole_at_any_width(width: int) -> None:
    arms = {**ARMS, "[bold]\x1b[2J evil": 1.0}
    runs = [made(a, s, speed=v, noise=0.02) for a, v in arms.items() for s in range(3)]
    verdict = judge(runs, target=0.6)
    file = io.StringIO()
    show(verdict, make_console(file=file, width=width))
    shown = file.getvalue()
    table = shown[: shown.index("`baseline`")]
    assert max(map(len, table.splitlines())) <= width
    _, rows = verdict.table()
    for row in rows:
        for cell in row[1:]:
            assert cell in table
    assert "mine:tent:" in shown, "a name, not an emoji"
    assert "[bold]�[2J evil" in table
    assert "\x1b" not in shown
    assert verdict.overall in shown
