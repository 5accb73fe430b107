"""Learning rates: what is tried, and what is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sifting.bench.rates import RateSearch, chosen_by
from tests.helpers.run_folders import made, write


def _tried(folder: Path, rate: float, *, status: str = "finished", **ceilings: float) -> Path:
    """Runs of arms at a learning rate, as a comparison leaves them."""
    for arm, ceiling in ceilings.items():
        run = made(arm, 0, ceiling=ceiling, status=status, points=2)
        write(replace(run, path=Path("seed-0")), folder / f"{rate:g}" / arm)
    return folder / f"{rate:g}"


def test_arms_whose_best_is_the_last_that_was_tried_go_on_until_it_is_not(tmp_path: Path) -> None:
    search = RateSearch((0.1, 0.3), ("baseline", "memory"))
    for rate, ceiling in ((0.1, 0.5), (0.3, 0.7)):
        folder = _tried(tmp_path, rate, baseline=ceiling, memory=1.2 - ceiling)
        search.take(rate, ("baseline", "memory"), folder)
    assert search.left() == {0.9: ("baseline",), 0.033: ("memory",)}
    search.take(0.9, ("baseline",), _tried(tmp_path, 0.9, baseline=0.6, memory=0.9))
    search.take(0.033, ("memory",), _tried(tmp_path, 0.033, memory=0.6))
    assert search.left() == {}, "both have a best with others on either side"
    assert search.best() == {"baseline": 0.3, "memory": 0.1}
    assert set(search.tried()["memory"]) == {"0.1", "0.3", "0.033"}, "not where it was not asked"


def test_what_diverged_was_tried_all_the_same(tmp_path: Path) -> None:
    search = RateSearch((0.1, 0.3), ("baseline",))
    search.take(0.1, ("baseline",), _tried(tmp_path, 0.1, baseline=0.5))
    search.take(0.3, ("baseline",), _tried(tmp_path, 0.3, status="failed", baseline=0.7))
    assert search.left() == {0.033: ("baseline",)}
    assert list(search.tried()["baseline"]) == ["0.1"]


def test_rates_are_chosen_on_held_out_samples_where_there_are_such() -> None:
    assert chosen_by("accuracy", {"final": {"accuracy": 0.5, "held_out_accuracy": 0.6}}) == 0.6
    assert chosen_by("accuracy", {"final": {"accuracy": 0.5}}) == 0.5
    assert chosen_by("accuracy", None) is None
