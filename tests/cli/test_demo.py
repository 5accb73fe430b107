from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sifting.cli import demo
from sifting.training.run_folder import read_run


def test_a_short_demo_trains_all_arms_judges_them_and_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STEPS", 300)
    monkeypatch.setattr(demo, "ARMS", ("auto",))
    monkeypatch.setattr(demo, "DEMO", replace(demo.DEMO, width=32))
    monkeypatch.setattr(demo, "RUNS", 10)
    out = tmp_path / "out"
    options = ["--seeds", "2", "--updates", "30", "--out", str(out)]
    assert demo.main(options) == 0
    shown = capsys.readouterr().out
    runs = [read_run(path.parent) for path in out.glob("runs/*/*/*/run.json")]
    assert sorted({run.config["arm"] for run in runs}) == sorted(["baseline", "random", *demo.ARMS])
    assert all(run.status == "finished" and run.summary["updates"] == 30 for run in runs)
    assert {path.relative_to(out).parts[1] for path in out.glob("runs/*/*/*/run.json")} == set(
        demo.TASKS
    )
    for name in demo.TASKS:
        verdict = json.loads((out / "runs" / name / "verdict.json").read_text())
        assert verdict["overall"] in shown.replace("\n", " ")
    assert shown.count("autopilot, seed ") == 2 * len(demo.TASKS)
    assert shown.replace("\n", " ").count("it ended after 30 updates") == 2 * len(demo.TASKS)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Greedy SGD against SGD" in page
    assert "data:image/svg+xml;base64," in page
    assert "least squares" in shown
    # a second start finds everything done
    assert demo.main(options) == 0
    assert "calibrating" not in capsys.readouterr().out


def test_the_convex_picture_says_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUNS", 20)
    assert "is ahead of SGD for " in demo.convex(tmp_path / "gsgd.svg")
    assert (tmp_path / "gsgd.svg").read_bytes().startswith(b"<?xml")
    monkeypatch.setattr(demo, "STEPS", 100)
    assert "from start to end" in demo.convex(tmp_path / "early.svg")


def test_too_small_a_demo_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--seeds", "1"])
    assert (
        "--seeds 1 --updates 300: give at least 2 seeds and 20 updates" in capsys.readouterr().err
    )


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--seeds", "2", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write a comparison to" in capsys.readouterr().err
