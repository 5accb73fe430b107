from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sifting.cli import train as cli
from sifting.training.locks import locked
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.training import test_recipe
from tests.training.test_recipe import OWN, RECIPE


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
        patch.setattr(test_recipe, "RECIPE", replace(RECIPE, problem=problem))
        assert cli.main(command) == 128 + number
    assert f"stopped by {number.name}; --resume goes on" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").checkpoints.latest() == 3
    assert cli.main([*command, "--resume"]) == 0
    assert read_run(tmp_path / "run").status == "finished"


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
