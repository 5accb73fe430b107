"""`ahead=` and `reuse=`: what they make, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest

from sifting import AdditiveExit, MemoryExit, Sifter
from sifting.exits.beside import Beside
from sifting.exits.options import make_beside, make_reuse
from sifting.exits.reuse import Reuse
from tests.helpers.models import Net


def test_they_are_made_where_they_are_asked_for(net: Net) -> None:
    scorer = Sifter(net, exit=1, score="loss")._scorer
    assert make_beside(scorer, 0, auto=False) is None
    assert isinstance(make_beside(scorer, 1, auto=False), Beside)
    assert make_reuse(scorer, False, scope="rank", ahead=0) is None
    assert isinstance(make_reuse(scorer, True, scope="rank", ahead=0), Reuse)


def test_where_nothing_is_scored_there_is_nothing_to_do(net: Net) -> None:
    idle = Sifter(net, policy="random")._scorer
    assert make_beside(idle, 1, auto=False) is None
    assert make_reuse(idle, True, scope="rank", ahead=0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ahead": 2}, "ahead=2: choose 1"),
        ({"ahead": True}, "ahead=True: choose 1"),
        ({"ahead": 1, "keep": "auto"}, "ahead=1 and keep='auto'"),
        ({"ahead": 1, "exit": "auto", "keep": 0.5}, "ahead=1: exit='auto', which compares ways"),
        ({"ahead": 1, "exit": MemoryExit()}, "ahead=1: .* runs nothing to score"),
        ({"reuse": True, "ahead": 1}, "reuse=True does not go with ahead=1"),
        ({"reuse": True, "scope": "global"}, "reuse=True does not go with scope='global'"),
        ({"reuse": True, "precision": "bf16"}, "reuse=True does not go with precision='bf16'"),
    ],
)
def test_what_does_not_go_together_is_named(
    net: Net, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sifter(net, **({"exit": 1, "score": "loss"} if "keep" not in options else {}) | options)


def test_an_exit_that_changes_the_model_cannot_score_a_copy(net: Net) -> None:
    exit = AdditiveExit(net, "blocks.1")
    with pytest.raises(ValueError, match="cannot score a copy of the model beside your step"):
        Sifter(net, exit=exit, score="loss", ahead=1)


def test_reuse_is_yes_or_no(net: Net) -> None:
    with pytest.raises(TypeError, match="reuse=1: give True or False"):
        Sifter(net, exit=1, reuse=1)  # type: ignore[arg-type]
