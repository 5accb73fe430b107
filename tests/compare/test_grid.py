from __future__ import annotations

import json
from pathlib import Path

import pytest

from sifting.cli import main as sift
from sifting.compare.grid import ImageSource
from sifting.training.run_folder import read_run
from tests.helpers.comparisons import measure_briefly

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

TINY = ["--updates", "8", "--evaluations", "2", "--batch", "20", "--audit-every", "4"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


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


def test_data_is_named_with_its_side() -> None:
    source = ImageSource.parse("ethz/food101@64", side=32)
    assert (source.source, source.side) == ("ethz/food101", 64)
    assert ImageSource.parse("digits", side=8) == ImageSource("digits", 8)
    assert ImageSource("digits", 8).folder == "digits-8"
    assert "/" not in source.folder
