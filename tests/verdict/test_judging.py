from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.training.run_folder import Run
from sifting.verdict import judge
from tests.helpers.run_folders import made

ARMS = ("baseline", "random-keep", "sift")


def comparison(speed: float, *, seeds: int = 5, noise: float = 0.02, **more: Any) -> list[Run]:
    """Arms that are alike but for the speed of "sift"."""
    first = more.pop("first", 0)
    speeds = dict.fromkeys(ARMS, 1.0) | {"sift": speed}
    return [
        made(arm, first + seed, speed=s, noise=noise, **more)
        for arm, s in speeds.items()
        for seed in range(seeds)
    ]


def test_a_planted_gain_is_found_and_stated_with_its_control() -> None:
    verdict = judge(comparison(1.25), target=0.7)
    arm = verdict.arm("sift")
    assert verdict.outcome == "pays"
    assert arm.time_ratio is not None
    assert arm.time_ratio.below(1)
    assert arm.time_ratio.value == pytest.approx(0.8, abs=0.03)
    assert verdict.overall.startswith("Selection pays ")
    assert ": `sift` reached 70 % in 0." in verdict.overall
    assert "of the baseline's time; `random-keep` did the same in" in verdict.overall
    assert verdict.decision.reason == "better than both"


def test_what_selection_pays_is_counted_from_the_control() -> None:
    """random-keep is itself slower by 10 % here: selection gains more than the baseline's ratio says."""
    speeds = {"baseline": 1.0, "random-keep": 0.9, "sift": 1.1}
    runs = [made(a, s, speed=v, noise=0.003) for a, v in speeds.items() for s in range(5)]
    verdict = judge(runs, target=0.6)
    assert "Selection pays 18 %" in verdict.overall  # 1 − 0.9 / 1.1


def test_identical_runs_show_no_measurable_gain() -> None:
    base = [made("baseline", seed, noise=0.05) for seed in range(5)]
    runs = base + [
        replace(run, path=run.path.with_name(f"{arm}-{i}"), config={**run.config, **settings})
        for arm, settings in (
            ("sift", {"arm": "sift", "selector": {"exit": 1}}),
            ("random-keep", {"arm": "random-keep", "selector": {"policy": "random"}}),
        )
        for i, run in enumerate(base)
    ]
    verdict = judge(runs)
    assert verdict.outcome == "no gain"
    assert verdict.overall.startswith("No measurable gain: leave it off.")
    arm = verdict.arm("sift")
    assert arm.difference is not None
    assert (arm.difference.value, arm.difference.p, arm.p) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("arms", [("sift",), ("sift", "tuned", "other")])
def test_no_gain_is_rarely_claimed_where_there_is_none(arms: tuple[str, ...]) -> None:
    claims, alone, trials = 0, 0, 150
    for trial in range(trials):
        runs = [
            made(arm, 10 * trial + seed, noise=0.08, points=6)
            for arm in ("baseline", "random-keep", *arms)
            for seed in range(4)
        ]
        verdict = judge(runs)
        claims += verdict.outcome == "pays"
        ratio = verdict.arm("sift").time_ratio
        alone += ratio is not None and ratio.below(1)
    assert claims <= 0.05 * trials
    assert alone <= 0.07 * trials


def test_a_gain_that_the_number_of_arms_puts_in_doubt_is_not_settled() -> None:
    arms = {"baseline": 1.0, "random-keep": 1.0, "sift": 1.3}
    others = {f"other-{i}": 1.0 for i in range(8)}

    def runs(speeds: dict[str, float]) -> list[Run]:
        return [made(a, s, speed=v, noise=0.05) for a, v in speeds.items() for s in range(3)]

    alone, among = (judge(runs(speeds), target=0.7) for speeds in (arms, {**arms, **others}))
    assert (alone.outcome, alone.best) == ("pays", "sift")
    assert (among.outcome, among.best) == ("open", "sift")
    assert among.overall.startswith("Not settled. `sift` reached 70 % in ")
    assert among.decision.reason == "correction"
    assert "among 9 claims it is not" in among.overall
    assert among.decision.seeds is not None
    assert f"{among.decision.seeds} seeds would settle it" in among.overall
    assert among.arm("sift").p > 0.05


def test_a_gain_over_the_baseline_that_random_keep_has_too_is_not_selections() -> None:
    speeds = {"baseline": 1.0, "random-keep": 1.25, "sift": 1.25}
    runs = [made(arm, s, speed=v, noise=0.02) for arm, v in speeds.items() for s in range(5)]
    verdict = judge(runs, target=0.7)
    assert verdict.outcome == "no gain"
    assert verdict.overall.startswith("No measurable gain from selection: leave it off.")
    assert verdict.decision.reason == "control"
    assert "but `random-keep` did the same in 0." in verdict.overall
    assert "compared with it, `sift` took " in verdict.overall
    assert "would have seen a gain of" in verdict.overall


def test_without_a_control_nothing_is_put_down_to_selection() -> None:
    runs = [run for run in comparison(1.25) if run.config["arm"] != "random-keep"]
    verdict = judge(runs, target=0.7)
    assert verdict.outcome == "cannot judge"
    assert "no random-keep to compare with" in verdict.overall
    assert any("no random-keep" in note for note in verdict.notes)


@pytest.mark.parametrize("finished", [0, 2])
def test_a_control_that_failed_is_no_control(finished: int) -> None:
    """Its failure neither takes the gain from an arm nor gives it to selection."""
    runs = [
        replace(run, status="failed")
        if run.config["arm"] == "random-keep" and run.config["seed"] >= finished
        else run
        for run in comparison(1.5)
    ]
    verdict = judge(runs, target=0.6)
    assert verdict.outcome == "cannot judge"
    assert f"`random-keep` finished {finished} of 5 runs, and 3 seeds in comm" in verdict.overall
    assert "leave it off" not in verdict.overall


def test_a_target_passed_by_the_first_evaluation_gives_no_ratio() -> None:
    """Else the arm whose first evaluation costs least would win, with no spread and p = 0."""
    costs = {"baseline": 0.3, "random-keep": 0.3, "sift": 0.0}
    runs = [made(a, s, speed=20, noise=0.02, scoring=c) for a, c in costs.items() for s in range(5)]
    verdict = judge(runs, target=0.2)
    arm = verdict.arm("sift")
    assert verdict.outcome == "no gain"
    assert (arm.time_ratio, arm.samples_ratio, arm.over_control) == (None, None, None)
    assert "reached 20 % with all of its 5 seeds" in verdict.sentence("sift")
    assert any("15 runs had passed the target by the first eval" in note for note in verdict.notes)


def test_a_run_that_ends_without_a_figure_did_not_finish() -> None:
    runs = comparison(1.5)
    log = [*runs[-1].metrics[:-1], {**runs[-1].metrics[-1], "accuracy": math.nan}]
    verdict = judge([*runs[:-1], replace(runs[-1], metrics=log)], target=0.6)
    arm = verdict.arm("sift")
    assert sorted(arm.final) == [0, 1, 2, 3]  # no earlier figure stands for the last
    assert arm.failed == 1
    assert verdict.outcome == "no gain"


def test_equal_gaps_of_few_seeds_are_no_certainty() -> None:
    """Accuracies are counts: three seeds often gain the same number of samples by chance."""

    def ending(arm: str, more: float) -> list[Run]:
        budget = {"kind": "seconds", "amount": 60}
        return [
            replace(run, metrics=[{**m, "accuracy": 0.9 + seed / 128 + more} for m in run.metrics])
            for seed, run in enumerate(made(arm, s, points=3, budget=budget) for s in range(3))
        ]

    runs = [*ending("baseline", 0.0), *ending("random-keep", 0.0), *ending("sift", 1 / 128)]
    assert judge(runs, target=0.99).outcome == "no gain"


def test_harm_is_called_harm() -> None:
    verdict = judge(comparison(0.8), target=0.6)
    assert verdict.outcome == "harm"
    assert verdict.overall.startswith("Selection does harm here: leave it off.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_are_not_judged(seeds: int) -> None:
    verdict = judge(comparison(2.0, seeds=seeds), target=0.5)
    assert verdict.outcome == "cannot judge"
    assert "3 finished seeds" in verdict.overall
    assert "3 are needed" in verdict.sentence("sift")
    arm = verdict.arm("sift")
    assert arm.time_ratio is not None
    assert arm.time_ratio.low is None


def test_runs_that_never_reach_the_target_are_counted_and_no_ratio_is_claimed() -> None:
    runs = [made(arm, seed, noise=0.001) for arm in ARMS[:2] for seed in range(5)]
    runs += [made("sift", s, speed=1.5, noise=0.001, ceiling=0.8 if s else 0.5) for s in range(5)]
    verdict = judge(runs, target=0.7)
    arm = verdict.arm("sift")
    assert (arm.reached, arm.time_ratio, arm.over_control, arm.time) == (4, None, None, None)
    assert "reached 70 % with 4 of 5 seeds" in verdict.sentence("sift")
    assert verdict.decision.detectable_time is None
    columns, rows = verdict.table()
    assert (
        dict(zip(columns, rows[2], strict=True))["time to 70 % ÷ baseline"] == "reached by 4 of 5"
    )


def test_a_control_that_never_reaches_the_target_is_beaten_by_all_its_time() -> None:
    speeds = {"baseline": 1.0, "random-keep": 0.3, "sift": 1.25}
    runs = [made(arm, s, speed=v, noise=0.02) for arm, v in speeds.items() for s in range(5)]
    verdict = judge(runs, target=0.7)
    assert verdict.outcome == "pays"
    assert "`random-keep` reached it with 0 of 5 seeds" in verdict.overall
    assert verdict.arm("random-keep").time_ratio is None


def test_failed_and_unfinished_runs_do_not_count_as_success() -> None:
    runs = comparison(1.5)
    failed = [replace(r, status="failed") if r.path.name == "sift-seed4" else r for r in runs]
    verdict = judge(failed, target=0.6)
    assert verdict.outcome == "no gain"
    assert verdict.arm("sift").time_ratio is None
    assert "4 of 5 runs finished, 1 failed" in verdict.sentence("sift")
    running = [replace(r, status="running") if r.path.name == "sift-seed4" else r for r in runs]
    verdict = judge(running, target=0.6)
    assert verdict.outcome == "pays"
    assert verdict.arm("sift").time_ratio.n == 4  # type: ignore[union-attr]
    assert any("`sift` (4 of 5)" in note for note in verdict.notes)


def test_reference_time_is_used_where_all_runs_have_it() -> None:
    runs = comparison(1.25, reference=True)
    assert judge(runs).axis == "reference"
    base = judge(runs, target=0.6).arm("baseline").time
    assert base is not None
    mixed = [*runs[:-1], *comparison(1.25)[-1:]]
    assert judge(mixed).axis == "seconds"
    assert judge(mixed, target=0.6).arm("baseline").time == pytest.approx(base / 0.9)


def test_lower_is_better() -> None:
    def losses(run: Run) -> Run:
        log = [{**m, "loss": 2 - m["accuracy"]} if m["kind"] == "eval" else m for m in run.metrics]
        settings = {**run.config, "metric": "loss", "lower_is_better": True}
        return replace(run, metrics=log, config=settings)

    up = judge(comparison(1.25))
    down = judge([losses(run) for run in comparison(1.25)])
    assert down.outcome == up.outcome == "pays"
    assert up.target is not None
    assert down.target == pytest.approx(2 - up.target)
    assert down.arm("sift").time_ratio.value == pytest.approx(  # type: ignore[union-attr]
        up.arm("sift").time_ratio.value  # type: ignore[union-attr]
    )
    assert "reached `loss` 1." in down.overall


def test_with_a_budget_in_seconds_the_final_figure_is_a_claim() -> None:
    budget = {"kind": "seconds", "amount": 60}
    runs = [made(arm, s, noise=0.001, budget=budget) for arm in ARMS[:2] for s in range(5)]
    runs += [made("sift", s, speed=1.2, noise=0.001, budget=budget) for s in range(5)]
    assert judge(runs, target=0.799).outcome == "pays"  # a target that nobody reached
    assert "in the same time" in judge(runs, target=0.799).overall
    updates = [replace(r, config={**r.config, "budget": None}) for r in runs]
    assert judge(updates, target=0.799).outcome == "no gain"


def test_the_best_of_several_arms_is_corrected_for() -> None:
    runs = comparison(1.06, noise=0.02)
    one = judge(runs, target=0.6).arm("sift").p
    more = [*runs, *(made(f"arm {k}", s, noise=0.02) for k in range(4) for s in range(5))]
    verdict = judge(more, target=0.6)
    assert verdict.arm("sift").p == pytest.approx(min(1.0, 5 * one))
    assert "the best of 5 arms" in verdict.overall


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(15)))
def test_the_order_of_runs_changes_nothing(order: Sequence[int]) -> None:
    runs = comparison(1.2, points=5)
    assert judge([runs[i] for i in order]) == judge(runs)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 5.0), st.integers(0, 50))
def test_the_unit_of_time_changes_nothing(scale: float, first: int) -> None:
    def slower(run: Run) -> Run:
        log = [
            {**m, "seconds": {k: scale * v for k, v in m["seconds"].items()}} for m in run.metrics
        ]
        return replace(run, metrics=log)

    runs = comparison(1.2, points=5, first=first, seeds=3)
    one, two = judge(runs), judge([slower(run) for run in runs])
    assert (one.outcome, one.overall) == (two.outcome, two.overall)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 2.0), st.integers(0, 1000), st.integers(3, 6))
def test_no_claim_where_the_interval_has_1_in_it(speed: float, first: int, seeds: int) -> None:
    verdict = judge(comparison(speed, first=first, seeds=seeds, noise=0.1, points=6))
    arm = verdict.arm("sift")
    if verdict.outcome == "pays":
        assert arm.time_ratio is not None
        assert arm.over_control is not None
        assert arm.time_ratio.below(1)
        assert arm.over_control.below(1)
    for estimate in (arm.time_ratio, arm.difference, arm.cost):
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            assert estimate.low <= estimate.value <= estimate.high


def test_what_cannot_be_compared_is_refused_with_the_reason() -> None:
    runs = comparison(1.0, seeds=3)
    with pytest.raises(ValueError, match="no runs to judge"):
        judge([])
    with pytest.raises(ValueError, match="both of arm 'sift' and seed 0"):
        judge([*runs, replace(made("sift", 0), path=runs[0].path.with_name("again"))])
    with pytest.raises(ValueError, match=r"2 experiments .* 1000 updates; made / accuracy / 500"):
        judge([*runs, made("sift", 7, points=10)])
    with pytest.raises(ValueError, match="no run is of arm 'bsaeline'; the arms are baseline, ran"):
        judge(runs, baseline="bsaeline")
    assert "there is no baseline" in judge([r for r in runs if r.config["arm"] == "sift"]).overall
    alone = judge([r for r in runs if r.config["arm"] == "baseline"])
    assert "no arm that selects" in alone.overall


def test_json_and_markdown_say_the_same() -> None:
    verdict = judge(comparison(1.25), target=0.7)
    content = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert content["overall"] == verdict.overall
    assert content["arms"][2]["time_ratio"]["n"] == 5
    assert math.isclose(content["arms"][0]["final"]["0"], verdict.arm("baseline").final[0])
    text = verdict.markdown()
    for row in content["table"]["rows"]:
        assert f"| `{row[0]}` | " + " | ".join(row[1:]) + " |" in text
    hostile = judge([made("a|b<script>", s) for s in range(3)] + comparison(1.0)).markdown()
    assert "| `a\\|b<script>` |" in hostile
    assert "<script>" not in re.sub(r"`[^`]*`", "", hostile), "names are code, and nothing else"


def test_old_runs_without_the_newer_settings_are_read() -> None:
    """Settings that were added later are absent, and arms were dictionaries once."""
    runs = []
    for run in comparison(1.25):
        arm = {"exit": 1} if run.config["arm"] == "sift" else run.config["arm"]
        runs.append(replace(run, config={"arm": arm, "seed": run.config["seed"], "updates": 1000}))
    verdict = judge(runs, target=0.7)
    assert verdict.budget == "1000 updates"
    assert verdict.outcome == "pays"
    assert verdict.best == '{"exit": 1}'
