"""A task from its learning rates to its page, on digits at their smallest."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sifting import checksums
from sifting.bench import protocol, running
from sifting.bench.pages import END, START, write_pages
from sifting.bench.plots import measured_saving
from sifting.bench.registry import TASKS, BenchTask
from sifting.bench.results import keep_results, read_results, result_of
from sifting.bench.running import Bench, TaskRun, limited, own_task
from sifting.compare import calibration
from sifting.measure import stopwatch
from sifting.training.locks import locked
from sifting.training.recipe import DataError
from sifting.training.run_folder import RunError

ARMS = ("baseline-60", "baseline-133", "memory", "sift")


@pytest.fixture(scope="module")
def short() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "MOST", 3)
        patch.setattr(calibration, "FEWEST", 2)
        patch.setattr(calibration, "FIRST", 1)
        patch.setattr(protocol, "RATES", (1.0, 3.0))
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    out = tmp_path_factory.mktemp("bench")
    return Bench(out, size="smoke", clock="cpu", arms=ARMS, seeds=3)


@pytest.fixture(scope="module")
def ran(short: None, bench: Bench) -> Path:
    task = TaskRun("digits", TASKS["digits"], bench, command="sift bench digits")
    assert task.run(Console(quiet=True)) is None
    return bench.out


def test_every_arm_has_the_learning_rate_that_did_best_on_held_out_samples(ran: Path) -> None:
    note = json.loads((ran / "digits" / "bench.json").read_text())
    assert set(note["rates"]) == {"baseline", "random", "memory", "sift"}
    for arm, tried in note["tried"].items():
        assert f"{note['rates'][arm]:g}" in tried
        assert max(tried.values()) == tried[f"{note['rates'][arm]:g}"]
    for run in (ran / "digits" / "compared").glob("*/seed-*/config.json"):
        config = json.loads(run.read_text())
        arm = "baseline" if config["arm"].startswith("baseline") else config["arm"]
        assert config["max_lr"] == note["rates"][arm]


def test_the_baselines_learning_rate_can_serve_all_arms(short: None, tmp_path: Path) -> None:
    bench = Bench(tmp_path, size="smoke", clock="cpu", arms=("memory",), seeds=1, tune="baseline")
    task = TaskRun("digits", TASKS["digits"], bench)
    assert task.run(Console(quiet=True)) is None
    note = json.loads((tmp_path / "digits" / "bench.json").read_text())
    assert list(note["rates"]) == list(note["tried"]) == ["baseline"]
    runs = [
        json.loads(p.read_text()) for p in tmp_path.glob("digits/compared/*/seed-*/config.json")
    ]
    assert {run["arm"] for run in runs} == {"baseline", "random", "memory"}
    assert {run["max_lr"] for run in runs} == set(note["rates"].values())


def test_a_shorter_baseline_has_its_share_of_the_time(ran: Path) -> None:
    found = result_of(ran / "digits")
    assert found is not None
    plan = found["plan"]
    assert plan["baseline-60"]["updates"] == int(0.6 * plan["baseline"]["updates"])
    assert plan["baseline-133"]["updates"] > plan["baseline"]["updates"] == 12
    assert all(row["made"] == row["updates"] for row in plan.values())
    assert set(found["arms"]) == {"baseline", "random", "memory", "sift"}
    assert set(found["lengths"]) == {name for name in plan if name.startswith("baseline-")}
    assert all(len(by_seed) == 3 for by_seed in found["finals"].values())


def test_it_goes_on_with_the_same_settings_alone(short: None, ran: Path, bench: Bench) -> None:
    before = {p: p.stat().st_mtime_ns for p in ran.glob("digits/**/metrics.jsonl")}
    assert TaskRun("digits", TASKS["digits"], bench).run(Console(quiet=True)) is None
    assert before == {p: p.stat().st_mtime_ns for p in ran.glob("digits/**/metrics.jsonl")}
    with pytest.raises(RunError, match=r"other settings \(equal 'time' → 'updates'\)"):
        TaskRun("digits", TASKS["digits"], replace(bench, equal="updates"))


def test_a_note_that_was_changed_is_refused_by_name(ran: Path, bench: Bench) -> None:
    note = ran / "digits" / "bench.json"
    whole = note.read_bytes()
    note.write_bytes(whole.replace(b"0.0", b"0.1", 1))
    try:
        with pytest.raises(RunError, match=r"bench\.json .*its checksum differs"):
            TaskRun("digits", TASKS["digits"], bench)
        with pytest.raises(ValueError, match=r"bench\.json"):
            result_of(ran / "digits")
    finally:
        note.write_bytes(whole)


def test_a_note_of_another_task_is_refused(ran: Path, bench: Bench, tmp_path: Path) -> None:
    note = ran / "digits" / "bench.json"
    whole = note.read_bytes()
    checksums.write_json(note, {**checksums.read_json(note), "task": "../elsewhere"})
    said = r"bench\.json is of task '\.\./elsewhere', not of 'digits'"
    try:
        with pytest.raises(RunError, match=said):
            TaskRun("digits", TASKS["digits"], bench)
        with pytest.raises(RunError, match=said):
            keep_results(ran, tmp_path / "results")
    finally:
        note.write_bytes(whole)
    assert not (tmp_path / "elsewhere.json").exists()


def test_two_processes_do_not_run_one_task(ran: Path, bench: Bench) -> None:
    with (
        locked(ran / "digits"),
        pytest.raises(RunError, match=rf"digits is in use by process {os.getpid()}"),
    ):
        TaskRun("digits", TASKS["digits"], bench).run(Console(quiet=True))


def test_results_become_pages(ran: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    readme = tmp_path / "pages" / "README.md"
    readme.write_text(f"# Mine\n\n{START}\n{END}\n\nend\n")
    (written,) = keep_results(ran, tmp_path / "results")
    assert written.name == "digits.json"
    (tmp_path / "results" / "_notes.json").write_text('{"digits": "Because it is small."}')
    paths = write_pages(tmp_path / "results", tmp_path / "pages")
    page = (tmp_path / "pages" / "bench" / "digits.md").read_text()
    result = read_results(tmp_path / "results")["digits"]
    mean = sum(result["finals"]["memory"].values()) / 3
    assert f"| `memory` | {100 * mean:.2f}".rstrip("0").rstrip(".") in page
    assert "Because it is small." in page
    assert "Made by `sift bench digits`" in page
    text = readme.read_text()
    assert text.startswith("# Mine")
    assert text.endswith("end\n")
    assert "[digits](bench/digits.md)" in text
    assert "predicted.svg" not in text  # nobody asked for advice
    assert all(path.read_bytes() for path in paths)


def test_a_page_without_a_place_for_the_table_is_named(ran: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing\n")
    keep_results(ran, tmp_path / "results")
    with pytest.raises(ValueError, match=r"README.md has no place for the table"):
        write_pages(tmp_path / "results", tmp_path)


def test_time_that_is_over_stops_as_ctrl_c_does() -> None:
    with pytest.raises(KeyboardInterrupt), limited(1e-5):
        for _ in range(200):
            __import__("time").sleep(0.05)
    with pytest.raises(ValueError, match="hours=0"), limited(0):
        pass


def test_a_users_problem_is_a_task(tmp_path: Path) -> None:
    task = own_task("sifting.cli.demo:problem")
    bench = Bench(tmp_path, arms=("memory",))
    with pytest.raises(ValueError, match="give --updates"):
        TaskRun("mine", task, bench)
    assert TaskRun("mine", task, replace(bench, updates=40)).length == 40


def test_a_recipe_that_is_told_where_its_data_is_gets_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    monkeypatch.setenv("SIFT_DATA", str(tmp_path))
    task = BenchTask("gpt", "", rate="lr", full="small", folder="text")
    run = TaskRun("gpt", task, Bench(tmp_path, updates=10))
    assert run.config.data == str(tmp_path / "text")  # type: ignore[attr-defined]
    assert TaskRun("gpt", task, Bench(tmp_path, "smoke", updates=10)).config.arm == "baseline"
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"gpt needs its data in \$SIFT_DATA/text"):
        TaskRun("gpt", task, Bench(tmp_path, updates=10))


def test_what_is_predicted_is_timed_by_the_clock_of_what_it_is_held_against(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = []

    class Stopped(Exception):
        pass

    def advise(*given: object, **named: object) -> None:
        clocks.append(stopwatch._now)
        raise Stopped

    monkeypatch.setattr(running, "advise", advise)
    clock: stopwatch.Clock
    for clock in ("wall", "cpu"):
        bench = Bench(tmp_path / clock, "smoke", updates=10, tune="none", clock=clock)
        with pytest.raises(Stopped):
            TaskRun("digits", TASKS["digits"], bench).advise(Console(quiet=True))
    assert clocks == [stopwatch.CLOCKS["wall"], stopwatch.CLOCKS["cpu"]]


def test_what_was_predicted_stands_beside_what_was_measured(
    short: None, ran: Path, bench: Bench, tmp_path: Path
) -> None:
    task = TaskRun("digits", TASKS["digits"], bench)
    assert task.advise(Console(quiet=True)) is None
    (tmp_path / "README.md").write_text(f"{START}\n{END}\n")
    keep_results(ran, tmp_path / "results")
    (ran / "digits" / "advice.json").rename(tmp_path / "advice.json")
    said = json.loads((tmp_path / "advice.json").read_text())
    result = read_results(tmp_path / "results")["digits"]
    assert result["advice"]["sentence"] == said["sentence"]
    # no arm of these is one that is advised on: as if one were
    path = tmp_path / "results" / "digits.json"
    memory = {"saving": 0.1, "low": 0.0, "high": 0.2}
    path.write_text(
        json.dumps({**result, "advice": {**result["advice"], "arms": {"memory": memory}}})
    )
    written = write_pages(tmp_path / "results", tmp_path)
    assert said["sentence"] in (tmp_path / "bench" / "digits.md").read_text()
    measured = measured_saving(result, "memory")
    assert (tmp_path / "bench" / "predicted.svg" in written) == (measured is not None)
