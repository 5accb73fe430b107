from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sifting.training.locks import locked
from sifting.training.run_folder import RunError

HOLD = """
import pathlib, sys, time
from sifting.training.locks import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_process_is_refused_by_the_name_of_the_first_even_after_a_crash(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    try:
        assert first.stdout.readline().strip() == "held"
        with (
            pytest.raises(RunError, match=rf"run is in use by process {first.pid} on "),
            locked(folder),
        ):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=60)
        first.stdout.close()
    with locked(folder):  # what the dead one left is no obstacle
        (folder / "run.json").write_text("{}")
    assert sorted(os.listdir(folder)) == [".lock", "run.json"]


def test_a_name_of_the_first_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    with locked(tmp_path):
        for content in ("", "[]", '{"process": 1}', "[" * 200_000):
            (tmp_path / ".locked-by.json").write_text(content)
            with pytest.raises(RunError, match="is in use by another process"), locked(tmp_path):
                pass


def test_a_folder_in_which_nothing_was_written_goes_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data"), locked(tmp_path / "a" / "b"):
        raise ValueError("no data")
    assert os.listdir(tmp_path) == []
    (tmp_path / "there").mkdir()
    with locked(tmp_path / "there"):
        pass
    assert os.listdir(tmp_path) == ["there"]


def test_other_ranks_do_not_lock(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path, here=False):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"), locked(tmp_path / "file"):
        pass
