"""What the autopilot can choose among, and what it decides."""

from __future__ import annotations

import json

import pytest

from sifting.autopilot.options import LADDER, PLAIN, Judged, Option, PilotDecision

INPUT = Option("input", 2)


def test_an_option_says_what_it_keeps() -> None:
    assert str(Option("memory", LADDER[0])) == "1 in 2 by memory"
    assert str(PLAIN) == "everything"


def test_decisions_survive_as_plain_values() -> None:
    made = PilotDecision(7, INPUT, "why", 1.25)
    assert PilotDecision.from_plain(json.loads(json.dumps(made.to_plain()))) == made
    with pytest.raises(ValueError, match="a decision to keep 1 in 3 is not one of the autopilot"):
        PilotDecision.from_plain({**made.to_plain(), "ratio": 3})


def test_what_is_unknown_is_left_out_of_the_log() -> None:
    found = Judged(INPUT, share=0.8, error=0.02, speedup=1.3).to_plain()
    assert (found["scorer"], found["ratio"], found["share"]) == ("input", 2, 0.8)
    assert "kept_loss" not in found
    assert "option" not in found
