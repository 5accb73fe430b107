from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from sifting.cli import main as sift
from sifting.compare.grid import ImageSource
from sifting.compare.tables import Entry, GridTable
from sifting.terminal import make_console
from sifting.training.run_folder import Run, read_run

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

TINY = ["--updates", "8", "--evaluations", "2", "--batch", "20", "--audit-every", "4"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST", 1), ("FEWEST", 2), ("MOST", 2)):
        monkeypatch.setattr(f"sifting.compare.calibration.{name}", value)


def grid(out: Path, *options: str) -> int:
    return sift.main(["grid", "resnet", "smoke", "--out", str(out), *TINY, *options])


def test_the_whole_grid_in_one_command_that_skips_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--datasets", "digits@8", "--arms", "sift", "--no-control", "--seeds", "0"]
    assert grid(tmp_path, *options, "--max-lrs", "1e-2", "1e30") == 0
    shown = capsys.readouterr().out
    cells = sorted(tmp_path.glob("*/*/*/*/seed-*"))
    names = [str(path.relative_to(tmp_path / "digits-8").parent) for path in cells]
    assert names == [
        f"lr-{lr}/{rest}"
        for lr in ("0.01", "1e+30")
        for rest in ("time/sift", "updates/baseline", "updates/sift")
    ]
    plan = json.loads((tmp_path / "digits-8" / "comparison.json").read_text())
    for path in cells:
        run = read_run(path)
        assert run.config["data"] == "digits"
        assert f"lr-{run.config['max_lr']:g}" == path.parents[2].name
        equal_time = path.parents[1].name == "time"
        planned = plan["arms"]["sift"]["updates"] if equal_time else 8
        assert run.config["updates"] == planned
        assert run.config["budget"]["kind"] == ("seconds" if equal_time else "updates")
        assert run.status == ("failed" if run.config["max_lr"] > 1 else "finished")
    text = (tmp_path / "tables.md").read_text()
    assert "**digits, 8×8, with same training time**" in text
    assert "**digits, 8×8, with same number of gradient updates**" in text
    assert text.count("| max_lr | Baseline | SIFT w/ early exit |") == 2
    assert text.count("| 1e+30 | – | – |") == 2
    assert "diverged; " in shown
    assert "SIFT w/ early exit" in shown

    times = {path: (path / "run.json").stat().st_mtime_ns for path in cells}
    assert grid(tmp_path, *options, "--max-lrs", "1e-2", "1e30", "5e-3") == 0
    assert {path: (path / "run.json").stat().st_mtime_ns for path in cells} == times
    assert len(list(tmp_path.glob("*/*/*/*/seed-*"))) == 9
    assert (tmp_path / "tables.md").read_text().count("| 0.005 |") == 2


def made(*accuracies: float | None) -> list[Run]:
    return [
        Run(
            Path("run"),
            "failed" if value is None else "finished",
            {},
            {},
            [],
            {"final": {"accuracy": value or 0.0}},
        )
        for value in accuracies
    ]


def entry(*accuracies: float | None, planned: int = 3) -> Entry:
    return Entry.of(made(*accuracies), chance=0.1, tests=900, planned=planned)


@pytest.mark.parametrize(
    ("accuracies", "text"),
    [
        ((0.5, 0.6, 0.7), "60.00 ± 10.00"),
        ((0.5, None, 0.7), "60.00 ± 14.14 (2 of 3)"),
        ((0.5, 0.13, 0.1), "50.00 (1 of 3)"),  # a guess has a standard error of 0.01 here
        ((0.5, 0.131, 0.5), "37.70 ± 21.30"),
        ((None, 0.1, None), "–"),
        ((0.5, math.nan, 0.7), "60.00 ± 14.14 (2 of 3)"),
        ((0.5, 0.6), ""),
    ],
)
def test_a_field_says_how_many_converged(accuracies: Any, text: str) -> None:
    assert str(entry(*accuracies)) == text


def test_the_best_of_each_column_is_bold_if_all_its_runs_converged() -> None:
    entries = {
        (0.01, "baseline"): entry(0.5, 0.5, 0.5),
        (0.1, "baseline"): entry(0.6, 0.6, 0.6),
        (0.01, "mine:half"): entry(0.9, 0.9, None),
        (0.1, "mine:half"): entry(0.4, 0.4, 0.4),
    }
    table = GridTable(
        "title", (0.01, 0.1), ("baseline", "mine:half"), entries, {"baseline": 9, "mine:half": 7}
    )
    assert table.markdown().splitlines() == [
        "**title**",
        "",
        "| max_lr | Baseline | `mine:half` |",
        "|---|---|---|",
        "| 0.01 | 50.00 ± 0.00 | 90.00 ± 0.00 (2 of 3) |",
        "| 0.1 | **60.00 ± 0.00** | **40.00 ± 0.00** |",
        "",
        "Updates: Baseline 9, mine:half 7.",
    ]
    out = io.StringIO()
    table.show(make_console(file=out, width=40))
    lines = out.getvalue().splitlines()
    assert lines[0] == "title"
    assert max(map(len, lines)) <= 40
    for shown in ("50.00 ± 0.00", "60.00 ± 0.00", "90.00 ± 0.00 (2 of 3)", "mine:half"):
        assert any(shown in line for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-lrs", "0.1", "0.1"], "max_lrs=(0.1, 0.1): give at least one, each once"),
        (["--max-lrs", "-1"], "give numbers above 0"),
        (["--max-lrs", "0.01", "0.010000001"], "two would be written to one folder"),
        (["--datasets", "digits@big"], "after the @ give the images' side"),
        (["--datasets", "a/digits", "b/digits"], "two would be written to one folder"),
        (["--max-lr", "0.1"], "--max-lr is for single runs: here it is --max-lrs"),
        (["--data", "/no/such/data"], "cannot read images from '/no/such/data'"),
    ],
)
def test_mistakes_are_named(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grid(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert sift.main(["grid", "bert"]) == 2
    assert "no grid for 'bert'" in capsys.readouterr().err


def test_an_arm_of_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sifting.cli.grid import parse

    (tmp_path / "arms_of_a_grid.py").write_text('half = {"exit": 1, "score": "loss"}\n')
    elsewhere = [path for path in sys.path if path != ""]  # as under the installed command
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.chdir(tmp_path)
    argv = ["resnet", "smoke", "--out", "x", "--arms", "arms_of_a_grid:half"]
    assert "arms_of_a_grid:half" in parse(argv).configs


def test_the_papers_data_sets_are_the_papers_presets(tmp_path: Path) -> None:
    from sifting.cli.grid import parse

    found = parse(["resnet", "paper", "--out", str(tmp_path)])
    assert found.datasets == (ImageSource("uoft-cs/cifar100", 32), ImageSource("ethz/food101", 224))
    assert found.max_lrs == (5e-2, 1e-2, 5e-3, 1e-3)
    assert [data.title for data in found.datasets] == ["CIFAR-100", "Food-101"]
    assert parse(["resnet", "paper", "--out", "x", "--data", "mine"]).datasets == (
        ImageSource("mine", 32),
    )
