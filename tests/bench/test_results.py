"""From the runs of a task to one file of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting import checksums
from sifting.bench.results import _choice, keep_results, read_results, result_of, rounded, worth
from sifting.bench.running import FORMAT
from sifting.training.run_folder import RunError


def test_a_longer_baseline_that_is_no_better_measures_nothing() -> None:
    flat = {"baseline-60": {"0": 0.7}, "baseline": {"0": 0.7}, "baseline-133": {"0": 0.7}}
    assert worth({**flat, "memory": {"0": 0.8}}, lower_is_better=False) == {}


@pytest.mark.parametrize(("gain", "least", "most"), [(-0.01, 1.05, 2.0), (0.01, 0.5, 0.95)])
def test_a_gain_is_worth_less_time_and_a_loss_more(gain: float, least: float, most: float) -> None:
    base = {
        "baseline-60": {"0": 0.88, "1": 0.90},
        "baseline": {"0": 0.90, "1": 0.92},
        "baseline-133": {"0": 0.91, "1": 0.93},
    }
    arm = {seed: value + gain for seed, value in base["baseline"].items()}
    found = worth({**base, "memory": arm}, lower_is_better=False)["memory"]
    assert least < found["value"] < most
    lower = {name: {s: 1 - v for s, v in values.items()} for name, values in base.items()}
    turned = worth({**lower, "memory": {s: 1 - v for s, v in arm.items()}}, lower_is_better=True)
    assert turned["memory"]["value"] == pytest.approx(found["value"])


def test_what_an_autopilot_knew_is_among_how_well_it_chose() -> None:
    line = {
        "kind": "decision",
        "step": 5,
        "judged": [
            {"scorer": "memory", "ratio": 2, "kept_loss": 0.5},
            {"scorer": "input", "ratio": 2, "kept_loss": 0.8, "agreement": 1.1, "share": 0.7},
            {"scorer": "input", "ratio": 4, "kept_loss": 0.6, "share": 0.4},
        ],
    }
    assert _choice(line) == {"kept_loss": 0.8, "agreement": 1.1, "learning_share": 0.7}
    assert _choice({"kind": "eval", "step": 5}) == {}


def test_numbers_have_few_digits_and_stay_what_they_are() -> None:
    assert rounded({"a": (1 / 3, True, "x"), "b": 10**12}) == {
        "a": [0.33333, True, "x"],
        "b": 10**12,
    }


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "digits.json").write_text('{"format": 0, "task": "digits"}')
    with pytest.raises(RunError, match=r"digits\.json has format 0; this release reads"):
        read_results(tmp_path)
    (tmp_path / "digits.json").rename(tmp_path / "_notes.json")
    assert read_results(tmp_path) == {}


def test_damaged_results_are_named(tmp_path: Path) -> None:
    path = tmp_path / "digits.json"
    checksums.write_json(path, {"format": FORMAT, "task": "digits", "target": 0.5})
    assert read_results(tmp_path)["digits"]["target"] == 0.5
    whole = path.read_text()
    for content in (
        "[]",
        "{",
        "[" * 200_000,
        whole.replace("0.5", "0.6"),
        f'{{"format": {FORMAT}}}',
    ):
        path.write_text(content)
        with pytest.raises(
            (RunError, ValueError), match=r"digits\.json is (damaged|not as it was written)"
        ):
            read_results(tmp_path)


def test_a_task_of_which_nothing_has_finished_has_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "bench.json").write_text("{}")
    assert result_of(folder) is None
    assert keep_results(tmp_path, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_results_of_another_task_are_refused(tmp_path: Path) -> None:
    checksums.write_json(tmp_path / "digits.json", {"format": FORMAT, "task": "../../fashion"})
    with pytest.raises(RunError, match=r"digits\.json is of task '\.\./\.\./fashion', not of"):
        read_results(tmp_path)


def test_advice_joins_what_was_measured_before(tmp_path: Path) -> None:
    asked = {"size": "full", "updates": 600}
    arms = {"auto": {"saving": 0.123456789}}
    results, folder = tmp_path / "results", tmp_path / "runs" / "digits"
    folder.mkdir(parents=True)
    results.mkdir()
    checksums.write_json(folder / "bench.json", {"format": FORMAT, "asked": asked})
    said = {"target": "digits", "arms": arms, "pays": True, "sentence": "Do."}
    checksums.write_json(folder / "advice.json", said)
    assert keep_results(tmp_path / "runs", results) == []  # nothing was measured that it could join
    measured = {"format": FORMAT, "task": "digits", "asked": asked, "advice": None}
    checksums.write_json(results / "digits.json", measured)
    assert keep_results(tmp_path / "runs", results) == [results / "digits.json"]
    expected = {"arms": {"auto": {"saving": 0.12346}}, "pays": True, "sentence": "Do."}
    assert read_results(results)["digits"] == {**measured, "advice": expected}
    checksums.write_json(results / "digits.json", {**measured, "asked": {**asked, "updates": 100}})
    with pytest.raises(
        RunError, match=r"advice on 600 updates \(full\).*measured with 100 \(full\)"
    ):
        keep_results(tmp_path / "runs", results)
