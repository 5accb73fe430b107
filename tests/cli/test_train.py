from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting import checksums
from sifting.cli import train as cli
from sifting.training.locks import locked
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers import recipe
from tests.helpers.recipe import OWN, RECIPE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_a_signal_stopped_ends_with_the_code_of_the_signal_and_goes_on(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def problem(config: Any, data: Any) -> Any:
        found = RECIPE.problem(config, data)
        calls = [0]

        def loss(model: Any, batch: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                os.kill(os.getpid(), number)
            return found.loss(model, batch)

        return replace(found, loss=loss)

    command = [OWN, "tiny", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "RECIPE", replace(RECIPE, problem=problem))
        assert cli.main(command) == 128 + number
    assert f"stopped by {number.name}; --resume continues" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").checkpoints.latest() == 3
    assert cli.main([*command, "--resume"]) == 0
    assert read_run(tmp_path / "run").status == "finished"


def test_resume_auto_begins_or_goes_on_whichever_the_folder_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [OWN, "tiny", "--out", str(tmp_path / "run"), "--resume=auto"]
    assert cli.main(command) == 0
    assert "finished after 8 updates" in capsys.readouterr().out
    assert cli.main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert cli.main([OWN, "tiny", "--out", str(tmp_path / "run"), "--no-resume"]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert cli.main([OWN, "tiny", "--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_checkpoint_passed_over_is_named_and_the_end_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = ["--checkpoint-every", "3u", "--keep-checkpoints", "9"]
    assert cli.main([OWN, "tiny", "--out", str(tmp_path / "whole"), *more]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut = RunFolder(tmp_path / "cut")
    whole = RunFolder(tmp_path / "whole").checkpoints.load(8)["model"]
    about = checksums.read_json(cut.path / "run.json")
    checksums.write_json(cut.path / "run.json", {**about, "status": "running"})
    for step in (6, 8):
        with (cut.checkpoints.path(step) / "state.pt").open("r+b") as file:
            file.truncate(100)
    with caplog.at_level("INFO", logger="sifting"):
        assert cli.main([OWN, "tiny", "--out", str(cut.path), *more, "--resume"]) == 0
    assert caplog.text.count("passed over; continuing from") == 2
    assert "step-00000008" in caplog.text
    again = cut.checkpoints.load(8)["model"]
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"update": 10**12}, "is of update 1000000000000"),
        ({"schedule": {"junk": 1}}, "the schedule has no"),
        ({"model": {}}, "cannot be resumed: Error"),
        ({"ranks": []}, "cannot be resumed"),
        ({"seconds": None}, "'seconds' of the run is None"),
        ({"losses": "none"}, "'losses' of the run is 'none'"),
    ],
)
def test_a_checkpoint_that_is_not_of_this_run_is_named_not_traced_back(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run"), "--checkpoint-every", "5u"]
    assert cli.main([OWN, "tiny", *out, "--keep-checkpoints", "1"]) == 0
    folder = RunFolder(tmp_path / "run")
    about = checksums.read_json(folder.path / "run.json")
    checksums.write_json(folder.path / "run.json", {**about, "status": "running"})
    state = {**folder.checkpoints.load(8), **change}
    checksums.write_state(folder.checkpoints.path(8) / "state.pt", state)
    capsys.readouterr()
    assert cli.main([OWN, "tiny", *out, "--resume"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "step-00000008" in err


def test_a_time_out_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("5", "10u", "soon"):
        command = [OWN, "tiny", "--out", str(tmp_path / "run"), "--rank-timeout", wrong]
        assert cli.main(command) == 2
        assert f"rank_timeout='{wrong}'" in capsys.readouterr().err


def test_a_folder_that_another_process_trains_in_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path / "run"):
        assert cli.main([OWN, "tiny", "--out", str(tmp_path / "run")]) == 2
    assert f"run is in use by process {os.getpid()} on " in capsys.readouterr().err


def test_checkpoints_as_often_as_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ["--checkpoint-every", "3u", "--keep-checkpoints", "9"]
    assert cli.main([OWN, "tiny", "--out", str(out), *more]) == 0
    found = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert found == [f"step-{step:08d}" for step in (3, 6, 8)]
    assert read_run(out).config["checkpoint_every"] == "3u"


def test_terminal_escapes_in_names_are_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["al\x1b[2Jex", "--out", str(tmp_path)]) == 2
    assert "\x1b" not in capsys.readouterr().err
