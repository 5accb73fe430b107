"""From records to advice: pure arithmetic, held against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sifting.advice.phases import read_phases
from tests.helpers.advice import advice_of, decision


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


def test_a_share_above_one_is_no_surer_for_that() -> None:
    (phase,) = read_phases([decision(200, 1.4, error=0.1)], batches=1000, explore=0.25)
    found = phase.rows[0].speedup
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((1.3, 1.5, 1.5))


def test_savings_of_the_whole_run_add_up_phase_by_phase() -> None:
    """Plain until 20 %, then 1.25 times as fast until 60 %, then plain: 0.4 − 0.32 is saved."""
    found = advice_of(
        decision(200, 0.7, speedup=1.2), decision(600, 0.75, ratio=1), decision(800, 0.5, ratio=1)
    )
    assert found.auto.value == pytest.approx(0.08)
    assert found.auto.low == pytest.approx(0.4 - 0.4 / 1.21)
    assert found.pays
    assert found.planned == 920
    assert found.settings["input", 2].value == pytest.approx(0.08)
    assert ("input", 4) not in found.settings
    assert found.arms()["auto"]["saving"] == pytest.approx(0.08)
    assert set(found.arms()) == {"auto", "input-entropy"}
    assert "in the time of about 920" in found.sentence


def test_what_a_setting_is_worth_is_by_the_progress_made_while_it_would_have_been_used() -> None:
    """Taken up at 20 % on 0.9 of the progress; until 60 % it made half of it, which gains nothing."""
    found = advice_of(decision(200, 0.9, speedup=1.4), decision(600, 0.5, ratio=1))
    assert found.auto.value == pytest.approx(0.0)
    assert found.settings["input", 2].value == pytest.approx(0.0)
    assert found.phases[0].speedup.value == pytest.approx(1.4)  # what was known then
    assert not found.pays


def test_the_last_look_stands_for_the_rest_of_the_run() -> None:
    found = advice_of(decision(200, 0.6, speedup=1.1), decision(600, 0.75, speedup=1.25))
    assert found.auto.value == pytest.approx(0.8 - 0.8 / 1.25)
    assert found.settings["input", 2].value == pytest.approx(found.auto.value)


def test_an_option_that_no_share_tells_of_is_worth_what_was_expected() -> None:
    record = decision(200, 0.75, ratio=4, speedup=1.6)  # by its kept loss
    found = advice_of(record, decision(600, 0.75, ratio=1))
    assert found.auto.value == pytest.approx(0.4 - 0.4 / 1.6)
    assert found.auto.low == pytest.approx(0.0)


def test_where_nothing_is_gained_it_is_left_off() -> None:
    found = advice_of(decision(200, 0.5, ratio=1), decision(600, 0.48, ratio=1))
    assert not found.pays
    assert found.planned == 1000
    assert found.sentence == "Leave it off: 48% of the progress. Plan 1000 updates."
    assert found.settings["input", 2].value < 0


def test_of_a_memory_no_saving_is_predicted() -> None:
    record = decision(200, 0.75)
    record["judged"].append({"scorer": "memory", "ratio": 2, "cost": 0.0, "kept_loss": 0.5})
    record["shares"].append({"scorer": "memory", "ratio": 2, "share": 0.95, "error": 0.01})
    found = advice_of(record)
    (memory,) = [row for row in found.phases[0].rows if row.scorer == "memory"]
    assert memory.share == 0.95
    assert memory.saving is None
    assert ("memory", 2) not in found.settings


def _by_others(record: dict[str, Any], *options: tuple[str, int]) -> dict[str, Any]:
    return {**record, "others": [list(option) for option in options]}


def test_what_is_expected_of_an_autopilot_is_a_mean_over_the_samples_that_it_may_have() -> None:
    """Its own samples say nothing is to be gained, one of four other sets that half of the run is."""
    half, plain = ("input", 2), ("", 1)
    found = advice_of(
        _by_others(decision(500, 0.75, ratio=1), half, plain, plain, plain),
        _by_others(decision(800, 0.75, ratio=1), half, plain, plain, plain),
        overhead=0.01,
    )
    assert found.auto.value == pytest.approx((0.5 - 0.5 / 1.25) / 4 - 0.01)
    assert found.auto.low == pytest.approx(-0.01)
    assert found.auto.low < found.auto.value < found.auto.high
    assert found.chance == 0.25
    assert not found.pays
    assert "with 1 of 4 sets of as many" in found.sentence
    assert found.to_dict()["chance"] == 0.25


def test_where_all_sets_agree_nothing_hangs_on_them() -> None:
    found = advice_of(
        *(_by_others(decision(n, 0.75, speedup=1.25), *[("input", 2)] * 16) for n in (200, 600))
    )
    assert found.auto.value == pytest.approx(0.8 - 0.8 / 1.25)
    assert found.chance == 1.0
    assert found.pays
    assert "sets" not in found.sentence


def test_it_pays_by_others_where_its_own_samples_are_the_exception() -> None:
    few = [("", 1)] + [("input", 2)] * 15
    found = advice_of(*(_by_others(decision(n, 0.75, ratio=1), *few) for n in (200, 600)))
    assert found.pays
    assert "with 15 of 16 sets" in found.sentence
    assert "it would keep" not in found.sentence


def test_an_option_that_nothing_is_known_of_saves_nothing() -> None:
    found = advice_of(_by_others(decision(200, 0.75, ratio=1), ("memory", 4), ("memory", 4)))
    assert found.auto.value == pytest.approx(0.0)
