"""Advice in words."""

from __future__ import annotations

import json

import pytest

from sifting.advice.phases import whole_run
from sifting.advice.result import Range
from sifting.advice.wording import rows, trial_lines
from tests.helpers.advice import advice_of, decision


def test_a_saving_within_its_error_is_left_off() -> None:
    found = advice_of(decision(200, 0.65, error=0.1, speedup=1.15))
    assert found.auto.value > 0
    assert found.auto.low < 0
    assert found.sentence.startswith("Leave it off")
    assert "within its error" in found.sentence


def test_advice_is_json_and_a_table() -> None:
    trial = {
        "kind": "trial",
        "batch": 200,
        "scorer": "input",
        "ratio": 2,
        "updates": 40,
        "draws": 2,
        "loss": 0.5,
        "difference": 0.02,
        "error": 0.004,
        "harms": True,
    }
    found = advice_of(trial, decision(200, 0.75, speedup=1.25), notes=("short",))
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["arms"]["input-entropy"]["saving"] == pytest.approx(0.16)
    assert plain["phases"][0]["rows"][0]["share"] == 0.75
    assert plain["trials"][0]["harms"] is True
    assert rows(found)[0] == [
        "0% to 20%",
        "1 in 2 by input",
        "20 % (17 to 22)",
        "75% ± 2%",
        "0.60",
        "1.10",
        "0.0%",
    ]
    assert len(rows(found)) == 2
    assert trial_lines(found)[0].endswith("+0.0200 ± 0.0040 nats from plain (0.5000): harm")


def test_no_record_is_no_advice() -> None:
    found = advice_of()
    assert found.auto == Range(0.0, 0.0, 0.0)
    assert found.sentence.startswith("Nothing can be said")
    assert whole_run([], []) == Range(0.0, 0.0, 0.0)
