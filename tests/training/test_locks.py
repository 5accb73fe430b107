from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sifting.training import locks
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


def test_nothing_is_locked_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"\.lock is a link"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "kept"


ORPHAN = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1] + "/.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
worker = os.fork()
if worker == 0:  # of its loader: it has the lock as well
    os.close(1)
    time.sleep(600)
print(worker, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_what_a_dead_process_forked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    worker = int(first.communicate(timeout=60)[0])
    held = {"process": first.pid, "host": platform.node(), "command": "sift", "since": "today"}
    (tmp_path / ".locked-by.json").write_text(json.dumps(held))
    try:
        monkeypatch.setattr(locks, "ORPHANS", 0.1)
        with pytest.raises(RunError, match=f"in use by process {first.pid} on"), locked(tmp_path):
            pass
        monkeypatch.setattr(locks, "ORPHANS", 60.0)
        timer = threading.Timer(0.5, os.kill, (worker, signal.SIGKILL))
        timer.start()
        with locked(tmp_path):
            assert timer.finished.is_set()
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_a_file_is_locked_by_itself_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    with locked(tmp_path, file="a.json"):
        with locked(tmp_path, file="b.json"):  # is nobody's concern
            pass
        with (
            pytest.raises(
                RunError, match=rf"a\.json is in use by process {os.getpid()} .* another file"
            ),
            locked(tmp_path, file="a.json"),
        ):
            pass
        assert sorted(os.listdir(tmp_path)) == [".a.json.lock", ".a.json.locked-by.json"]
    assert os.listdir(tmp_path) == []
    (tmp_path / ".a.json.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is a link"), locked(tmp_path, file="a.json"):
        pass
    assert not (tmp_path / "elsewhere").exists()
