from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.training import run_folder as runs
from sifting.training.run_folder import RunError, RunFolder, read_run


def make(path: Path) -> RunFolder:
    folder = RunFolder.create(path / "run", config={"seed": 1})
    for step in range(1, 6):
        folder.log({"kind": "train", "step": step, "loss": 1 / step})
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert read_run(folder.path).status == "running"
    folder.finish("finished", {"accuracy": 0.5})
    run = read_run(folder.path)
    assert (run.status, run.config, run.summary) == ("finished", {"seed": 1}, {"accuracy": 0.5})
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4, 5]
    assert run.environment["versions"]["torch"] == torch.__version__
    assert not list(folder.path.rglob("*.part"))


def test_a_line_cut_off_at_the_end_is_left_out_and_one_in_the_middle_is_damage(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path)
    log = folder.path / "metrics.jsonl"
    log.write_text(log.read_text() + '{"kind": "tra')
    with pytest.warns(UserWarning, match="cut off"):
        assert len(read_run(folder.path).metrics) == 5
    log.write_text('{"broken\n' + log.read_text())
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1, is damaged"):
        read_run(folder.path)


def test_reopening_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    folder = make(tmp_path)
    RunFolder.reopen(folder.path, config={"seed": 1}, step=3)
    assert [line["step"] for line in read_run(folder.path).metrics] == [1, 2, 3]
    with pytest.raises(RunError, match=r"other settings \(seed: 1 → 2\)"):
        RunFolder.reopen(folder.path, config={"seed": 2}, step=3)


def test_audits_are_numbered_by_the_batches_before_them(tmp_path: Path) -> None:
    folder = make(tmp_path)
    log = folder.path / "audits.jsonl"
    log.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(10)))
    RunFolder.reopen(folder.path, config={"seed": 1}, step=3, batches=6)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(6)]
    RunFolder.reopen(folder.path, config={"seed": 1}, step=3)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(3)]


def test_several_ranks_may_look_at_once_whether_a_folder_can_be_written(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(RunFolder.check, [tmp_path / "run"] * 400))
    assert not (tmp_path / "run").exists()  # nothing is made before there is something to write


def test_checkpoints_are_whole_and_the_last_are_kept(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for step in (10, 20, 30):
        folder.save(step, {"x": torch.full((3,), float(step))}, keep=2)
    assert folder.latest() == 30
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == [
        "step-00000020",
        "step-00000030",
    ]
    assert folder.load(20)["x"].tolist() == [20.0] * 3
    (folder.checkpoints / ".step-00000040.part").mkdir()  # killed while writing
    assert folder.latest() == 30
    (folder.checkpoints / "step-00000030" / "state.pt").unlink()  # killed while writing it again
    assert folder.latest() == 20


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("never",)

    folder = make(tmp_path)
    path = folder.checkpoint_path(5)
    path.mkdir()
    torch.save({"x": Evil()}, path / "state.pt")
    with pytest.raises(RunError, match="cannot read the checkpoint"):
        folder.load(5)


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
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda path: full)
    with pytest.raises(RunError, match="10 MiB free, and 3 checkpoints need 300 MiB"):
        RunFolder.create(tmp_path / "other", config={}, checkpoint_bytes=100 * 2**20)


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: run.json cannot be read"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(RunError, match="has format 99; this release reads 1"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(RunError, match="is damaged"):
        read_run(tmp_path)


def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "step-00000001").mkdir(parents=True)
    (other / "step-00000001" / "state.pt").write_text("precious")
    folder = make(tmp_path)
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to(other)
    with pytest.raises(RunError, match="checkpoints is a link"):
        folder.save(10, {"x": 1}, keep=1)
    with pytest.raises(RunError, match="checkpoints is a link"):
        folder.drop_checkpoints()
    folder.checkpoints.unlink()
    folder.checkpoints.mkdir()
    (folder.checkpoints / "step-00000001").symlink_to(other / "step-00000001")
    with pytest.raises(RunError, match="step-00000001 is a link"):
        folder.save(10, {"x": 1}, keep=1)
    (folder.path / ".metrics.jsonl.part").symlink_to(other / "step-00000001" / "state.pt")
    RunFolder.reopen(folder.path, config={"seed": 1}, step=3)
    assert (other / "step-00000001" / "state.pt").read_text() == "precious"


def test_how_often_to_save_may_change_on_the_way(tmp_path: Path) -> None:
    folder = make(tmp_path)
    now = {"seed": 1, "checkpoint_every": "5m"}
    RunFolder.reopen(folder.path, config=now, step=3, free=("checkpoint_every",))
    with pytest.raises(RunError, match="checkpoint_every: None → '5m'"):
        RunFolder.reopen(folder.path, config=now, step=3)
