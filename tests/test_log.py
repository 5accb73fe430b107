"""What the library says, and who hears its warnings."""

from __future__ import annotations

import logging

import pytest

from sifting.log import LOGGER, each_line_once, hearing, say, warned


def test_a_line_goes_to_pythons_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sifting"):
        say("scores are made of logits")
    assert [(r.name, r.message) for r in caplog.records] == [
        ("sifting", "scores are made of logits")
    ]


def test_who_silences_it_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="sifting"):
        say("nothing")
    assert caplog.records == []


def test_a_line_said_twice_is_shown_once_while_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sifting"):
        with each_line_once():
            say("one")
            say("one")
            say("two")
            LOGGER.warning("three")
            LOGGER.warning("three")
        say("one")
    assert [r.message for r in caplog.records] == ["one", "two", "three", "three", "one"]


def test_everybody_who_hears_is_told_until_they_leave() -> None:
    first: list[str] = []
    second: list[str] = []
    with hearing(first.append):
        with hearing(second.append), pytest.raises(ValueError, match="in the middle"):
            warned("a")
            raise ValueError("in the middle")
        warned("b")
    warned("c")
    assert (first, second) == (["a", "b"], ["a"])
