"""From records to advice: pure arithmetic, held against values worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sifting.advice.phases import Estimate, make_advice, read_phases, whole_run
from sifting.advice.wording import rows, sentence, trial_lines


def decision(
    batch: int, share: float, *, error: float = 0.02, ratio: int = 2, speedup: float = 1.0
) -> dict[str, Any]:
    judged = [
        {"scorer": "input", "ratio": r, "cost": 0.0, "kept_loss": 0.6, "agreement": 1.1}
        for r in (2, 4)
    ]
    return {
        "kind": "decision",
        "batch": batch,
        "scorer": "input" if ratio > 1 else "",
        "ratio": ratio,
        "speedup": speedup,
        "why": f"{share:.0%} of the progress",
        "judged": judged,
        "shares": [{"scorer": "input", "ratio": 2, "share": share, "error": error}],
    }


def advice_of(*records: dict[str, Any], **more: Any) -> Any:
    return make_advice(
        list(records), target="mine", updates=1000, seen=1000, batches=1000, explore=0.25, **more
    )


def test_the_speedup_of_a_phase_is_that_of_its_share() -> None:
    (phase,) = read_phases([decision(200, 0.75)], batches=1000, explore=0.25)
    two, four = phase.rows
    assert two.speedup is not None
    # 0.5 + the share, at one in two with a quarter at random
    assert two.speedup.value == pytest.approx(1.25)
    assert (two.speedup.low, two.speedup.high) == pytest.approx((1.21, 1.29))
    assert two.saving is not None
    assert two.saving.value == pytest.approx(0.2)
    assert four.speedup is None
    assert four.kept_loss == 0.6
    assert (phase.first, phase.last) == (0, 0.2)


def test_savings_of_the_whole_run_add_up_phase_by_phase() -> None:
    """Plain until 20 %, then 1.25 times as fast until 60 %, then plain: 0.4 − 0.32 is saved."""
    found = advice_of(
        decision(200, 0.75, speedup=1.25), decision(600, 0.5, ratio=1), decision(800, 0.5, ratio=1)
    )
    assert found.auto.value == pytest.approx(0.08)
    assert found.auto.low == pytest.approx(0.4 - 0.4 / 1.21)
    assert found.pays
    assert found.planned == 920
    assert found.settings["input", 2].value == pytest.approx(0.08)
    assert ("input", 4) not in found.settings
    assert found.arms()["auto"]["saving"] == pytest.approx(0.08)
    assert set(found.arms()) == {"auto", "input-entropy"}
    assert "in the time of about 920" in sentence(found)
    assert "in the time of about 920" in sentence(found)


def test_where_nothing_is_gained_it_is_left_off() -> None:
    found = advice_of(decision(200, 0.5, ratio=1), decision(600, 0.48, ratio=1))
    assert not found.pays
    assert found.planned == 1000
    assert sentence(found) == "Leave it off: 48% of the progress. Plan 1000 updates."
    assert found.settings["input", 2].value < 0


def test_a_saving_within_its_error_is_left_off() -> None:
    found = advice_of(decision(200, 0.65, error=0.1, speedup=1.15))
    assert found.auto.value > 0
    assert found.auto.low < 0
    assert sentence(found).startswith("Leave it off")
    assert "within its error" in sentence(found)


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


def test_of_a_memory_no_saving_is_predicted() -> None:
    record = decision(200, 0.75)
    record["judged"].append({"scorer": "memory", "ratio": 2, "cost": 0.0, "kept_loss": 0.5})
    record["shares"].append({"scorer": "memory", "ratio": 2, "share": 0.95, "error": 0.01})
    found = advice_of(record)
    (memory,) = [row for row in found.phases[0].rows if row.scorer == "memory"]
    assert memory.share == 0.95
    assert memory.saving is None
    assert ("memory", 2) not in found.settings


def test_no_record_is_no_advice() -> None:
    found = advice_of()
    assert found.auto == Estimate(0.0, 0.0, 0.0)
    assert sentence(found).startswith("Nothing could be told")
    assert whole_run([], []) == Estimate(0.0, 0.0, 0.0)
