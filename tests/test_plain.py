"""`plain`: states are read whole before anything changes; every value of a sifter's state is damaged once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sifting.plain import MOST, Plain, generator_state


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (lambda p: p.whole("a"), {"a": True}),
        (lambda p: p.whole("a"), {"a": 2.0}),
        (lambda p: p.whole("a"), {"a": MOST + 1}),
        (lambda p: p.whole("a", most=2), {"a": 3}),
        (lambda p: p.flag("a"), {"a": 1}),
        (lambda p: p.number("a"), {"a": math.inf}),
        (lambda p: p.number("a"), {"a": 10**400}),
        (lambda p: p.numbers("a", nan=True), {"a": [10**400]}),
        (lambda p: p.numbers("a", length=2), {"a": [1.0]}),
        (lambda p: p.numbers("a"), {"a": "12"}),
        (lambda p: p.items("a"), {"a": "12"}),
        (lambda p: p.inside("a"), {"a": [1]}),
        (lambda p: p.tensor("a"), {"a": [1]}),
        (lambda p: p.tensor("a", shape=(2,)), {"a": torch.zeros(3)}),
        (lambda p: p.tensor("a", dims=2), {"a": torch.zeros(3)}),
        (lambda p: p.made("a", generator_state), {"a": torch.zeros(3, dtype=torch.uint8)}),
        (lambda p: p.get("a"), {}),
        (lambda p: list(p), {3: 4}),
    ],
)
def test_what_a_value_must_be_is_said(read: Callable[[Plain], Any], content: Any) -> None:
    with pytest.raises(ValueError, match=r"^the state is damaged: .*\bthe part\b"):
        read(Plain(content, "the part"))


def test_what_is_sound_is_given_back() -> None:
    found = Plain({"n": 3, "x": 1, "list": (1, math.nan), "yes": True}, "the part")
    assert (found.whole("n"), found.number("x"), found.flag("yes")) == (3, 1.0, True)
    assert math.isnan(found.numbers("list", nan=True)[1])
