"""Writing a run folder: all of it or nothing, and only where it may be."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sifting import files
from sifting.training import run_writer
from sifting.training.checkpoints import Found
from sifting.training.run_folder import RunError, read_run
from sifting.training.run_writer import RunFolder


def make(path: Path) -> RunFolder:
    folder = RunFolder.create(path / "run", config={"seed": 1})
    for step in range(1, 6):
        folder.log({"kind": "train", "step": step, "loss": 1 / step})
    return folder


def found(folder: RunFolder) -> Found:
    return folder.checkpoints.newest(folder.id)


def test_reopening_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    folder = make(tmp_path)
    audits = folder.path / "audits.jsonl"
    audits.write_text('{"step": 4}\n')
    folder.save(5, {"update": 5}, keep=2)
    folder.log({"kind": "train", "step": 6})
    audits.write_text('{"step": 4}\n{"step": 5}\n')
    again = RunFolder.reopen(folder.path, config={"seed": 1}, found=found(folder))
    assert [line["step"] for line in read_run(folder.path).metrics] == [1, 2, 3, 4, 5]
    assert audits.read_text() == '{"step": 4}\n'
    again.log({"kind": "train", "step": 6})
    again.finish("finished", {})
    assert [line["step"] for line in read_run(folder.path).metrics] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RunError, match=r"other settings \(seed: 1 → 2\)"):
        RunFolder.reopen(folder.path, config={"seed": 2}, found=found(folder))


def test_a_log_that_is_not_what_the_checkpoint_saw_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.save(5, {"update": 5}, keep=2)
    log = folder.path / "metrics.jsonl"
    whole = log.read_bytes()
    for content, why in [
        (b"", "was shortened"),
        (whole[:-40], "was shortened"),
        (whole.replace(b"0.5", b"0.6"), "its checksum differs"),
    ]:
        log.write_bytes(content)
        with pytest.raises(RunError, match=rf"metrics\.jsonl .*{why}"):
            RunFolder.reopen(folder.path, config={"seed": 1}, found=found(folder))
        assert log.read_bytes() == content


def test_a_line_that_the_disk_has_no_room_for_is_not_written_by_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path)
    whole = (folder.path / "metrics.jsonl").read_bytes()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", lambda file, data: write(file, data[:7]))
        with pytest.raises(OSError, match=r"No space left on device: .*metrics\.jsonl"):
            folder.log({"kind": "train", "step": 6})
    assert (folder.path / "metrics.jsonl").read_bytes() == whole
    folder.finish("stopped", {})
    assert len(read_run(folder.path).metrics) == 5


def test_logs_or_checkpoints_without_their_run_are_not_written_over(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.save(5, {"update": 5}, keep=2)
    (folder.path / "run.json").unlink()
    with pytest.raises(RunError, match=r"holds metrics\.jsonl of a run whose run\.json is gone"):
        RunFolder.check(folder.path)
    (folder.path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="holds checkpoints/step-00000005"):
        RunFolder.check(folder.path)


def test_several_ranks_may_look_at_once_whether_a_folder_can_be_written(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(RunFolder.check, [tmp_path / "run"] * 400))
    assert not (tmp_path / "run").exists()  # nothing is made before there is something to write


def test_a_folder_in_use_or_unwritable_or_too_small_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path)
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(folder.path, config={})
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write a run to"):
        RunFolder.create(tmp_path / "file" / "run", config={})
    full = shutil.disk_usage(tmp_path)._replace(free=10 * 2**20)
    monkeypatch.setattr(run_writer.shutil, "disk_usage", lambda path: full)
    with pytest.raises(RunError, match="10 MiB free, and 3 checkpoints need 300 MiB"):
        RunFolder.create(tmp_path / "other", config={}, checkpoint_bytes=100 * 2**20)


def test_a_planted_temporary_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (tmp_path / "other").write_text("precious")
    (folder.path / ".metrics.jsonl.part").symlink_to(tmp_path / "other")
    RunFolder.reopen(folder.path, config={"seed": 1}, found=Found())
    assert (tmp_path / "other").read_text() == "precious"


def test_how_often_to_save_may_change_on_the_way(tmp_path: Path) -> None:
    folder = make(tmp_path)
    now = {"seed": 1, "checkpoint_every": "5m"}
    RunFolder.reopen(folder.path, config=now, found=Found(), free=("checkpoint_every",))
    with pytest.raises(RunError, match="checkpoint_every: None → '5m'"):
        RunFolder.reopen(folder.path, config=now, found=Found())


@pytest.mark.parametrize("name", ["metrics.jsonl", "audits.jsonl", "checkpoints"])
@pytest.mark.parametrize("there", [True, False])
def test_a_run_is_not_written_through_a_planted_link(
    name: str, there: bool, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    if there:
        other.write_text("precious")
    folder = make(tmp_path)
    (tmp_path / "new").mkdir()
    for path in (folder.path, tmp_path / "new"):
        if (path / name).is_dir():
            shutil.rmtree(path / name)
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(other)
    with pytest.raises(RunError, match=rf"{name} is a link: a run is not written through one"):
        RunFolder.create(tmp_path / "new", config={})
    with pytest.raises(RunError, match=rf"{name} is a link"):
        RunFolder.reopen(folder.path, config={"seed": 1}, found=Found())
    if name == "metrics.jsonl":
        with pytest.raises(OSError, match=r"metrics\.jsonl"):  # planted while it runs
            folder.log({"kind": "train", "step": 6})
    assert other.exists() == there
    assert not there or other.read_text() == "precious"


def test_an_error_of_the_disk_is_told_from_one_of_the_users_own_files(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for number in (errno.ENOSPC, errno.EFBIG, errno.ESTALE):
        said = folder.trouble(OSError(number, os.strerror(number)))
        assert said is not None
        assert os.strerror(number) in said
    assert folder.trouble(OSError(errno.ENOENT, "no such file", "/elsewhere/data.csv")) is None
    own = OSError(errno.EACCES, "may not", str(folder.path / "summary.json"))
    assert folder.trouble(own) is not None
