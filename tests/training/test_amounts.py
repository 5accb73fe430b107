"""Amounts of training as users write them."""

from __future__ import annotations

import pytest

from sifting.training.amounts import parse_amount


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90s", ("seconds", 90.0)),
        (" 1.5 h ", ("seconds", 5400.0)),
        (".5min", ("seconds", 30.0)),
        ("200 updates", ("updates", 200.0)),
        ("3steps", ("updates", 3.0)),
        ("64n", ("samples", 64.0)),
    ],
)
def test_a_number_and_a_unit(text: str, found: tuple[str, float]) -> None:
    assert parse_amount(text, name="budget", understood="time") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "budget='soon' is not understood: give time"),
        ("10", "is not understood"),
        ("-3u", "is not understood"),
        ("1e3u", "is not understood"),
        ("10 fortnights", "is not understood"),
        ("0s", "give more than 0"),
        ("2.5u", "give a whole number of updates"),
        ("2.5n", "give a whole number of samples"),
    ],
)
def test_what_is_no_amount_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_amount(text, name="budget", understood="time")
