"""From measured times to a table of costs, and to its doubt."""

from __future__ import annotations

from typing import Any

import pytest

from sifting.compare.budget import ArmWork
from sifting.compare.readings import Reading, doubt_of, tables_of
from sifting.selection.schedule import Schedule


def test_the_same_work_has_one_price_and_other_work_its_own() -> None:
    def reading(forward: list[float], scoring: list[float], batch: int, drawn: int) -> Reading:
        times: dict[str, Any] = {"backward": [1.0], "optimizer": [1.0]}
        times.update(forward=forward, scoring=scoring, auditing=[], data=[float(drawn)])
        return Reading(
            times, ArmWork(Schedule(batch / drawn), drawn), batch, f"{batch} samples", batch
        )

    tables = tables_of(
        {
            "baseline": reading([1.0, 2.0, 9.0], [], 32, 32),
            "sift": reading([3.0, 4.0], [5.0, 7.0, 90.0], 32, 64),
            "large": reading([8.0], [1.0], 64, 64),
        }
    )
    assert tables["baseline"]["forward"] == tables["sift"]["forward"] == 3.0
    assert tables["large"]["forward"] == 8.0
    assert tables["sift"]["scoring"] == 7.0
    assert (tables["baseline"]["scoring"], tables["sift"]["auditing"]) == (0.0, 0.0)
    assert [tables[arm]["data"] for arm in tables] == [32.0, 64.0, 64.0]


def test_noise_that_is_left_in_a_table_is_told() -> None:
    def reading(scoring: list[float], keep: float) -> Reading:
        times: dict[str, Any] = {name: [1.0, 1.0] for name in ("forward", "backward", "optimizer")}
        times.update(scoring=scoring, auditing=[], data=[0.0, 0.0])
        return Reading(times, ArmWork(Schedule(keep), round(32 / keep)), 32, "same", 32)

    readings = {"baseline": reading([], 1.0), "sure": reading([1.0, 1.0], 0.5)}
    assert doubt_of(readings) == {"baseline": 0.0, "sure": 0.0}
    # 4 or 6 seconds an update beside the baseline's 3
    assert doubt_of({**readings, "unsure": reading([1.0, 3.0], 0.5)})["unsure"] == pytest.approx(
        0.2
    )


def test_what_nobody_measured_is_priced_by_what_it_is_made_of() -> None:
    times = {"forward": [8.0], "backward": [2.0], "optimizer": [1.0], "data": [0.5]}
    table = tables_of({"auto": Reading(times, ArmWork(Schedule(1.0), 16), 16, "same", 16)})["auto"]
    assert table["looking"] == 8.0 / 16, "a sample's part of a forward"
    assert table["trials"] == 8.0 + 2.0 + 1.0 + 16 * 0.5, "an update with its samples read"


def test_an_arm_that_diverged_is_not_doubted() -> None:
    times = {name: [1.0, 1.0] for name in ("forward", "backward", "optimizer", "data")}
    work = ArmWork(Schedule(1.0), 32)
    readings = {
        "baseline": Reading(times, work, 32, "same", 32),
        "gone": Reading({**times, "scoring": [1.0, 50.0]}, work, 32, "same", 32, diverged=True),
    }
    assert doubt_of(readings) == {"baseline": 0.0, "gone": 0.0}
