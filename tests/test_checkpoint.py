"""Checkpoints of one rank and of two, resumed by one and by two."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sifting import checkpoint
from sifting.checkpoint import latest, load, save, state_of
from tests.helpers.processes import LIMIT, run_ranks, torchrun
from tests.parallel.scripts import resuming

RESUMING = resuming.__file__


def finals(*folders: Path) -> list[float]:
    """The largest difference of each folder's final parameters from the first's."""
    first, *others = (torch.load(folder / "final.pt", weights_only=True) for folder in folders)
    return [
        max(float((a - b).abs().max()) for a, b in zip(first, other, strict=True))
        for other in others
    ]


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_checkpoints_go_on_with_another_number_of_ranks(tmp_path):
    """Saved by two ranks and loaded by one, by one and loaded by two, sharded and not."""
    alone, two = tmp_path / "alone", tmp_path / "two"
    resuming.go(alone)
    one = {step: tmp_path / f"one-{step}" for step in (3, 6, 9)}
    for step, folder in one.items():
        resuming.go(folder, stop_at=step)
        assert latest(folder).name == f"step-{step:09d}"
    done = run_ranks([RESUMING, two, one[3], one[9], one[6], "--shard", 3])
    assert done.returncode == 0, done.stderr
    ended = f"{resuming.STEPS_LAST} steps, {resuming.CANDIDATES_LAST} candidates"
    assert done.stdout.splitlines() == [
        ended,
        *("went on from step-000000003", ended),
        *("went on from step-000000009", ended),
        *("went on from step-000000006", ended),
    ]
    assert max(finals(alone, one[6], one[9])) < 1e-5
    # (two ranks from the start make another first choice: an exit that has learned nothing yet
    # ranks all alike, and of equals the first are kept, where ranks take every other sample)
    for step in (6, 9):
        folder = tmp_path / f"back-{step}"
        folder.mkdir()
        (folder / f"step-{step:09d}").symlink_to(two / f"step-{step:09d}")
        sifter = resuming.go(folder)
        assert sifter.step == resuming.STEPS_LAST
        assert sifter.stats().candidates_seen == resuming.CANDIDATES_LAST
        assert finals(two, folder)[0] < 1e-5


def on(ranks: int, size: int, *, divides: bool = True) -> DataLoader[Any]:
    """The loader of the first of some ranks."""
    data = TensorDataset(
        torch.zeros(resuming.SAMPLES, resuming.FEATURES).double(),
        torch.zeros(resuming.SAMPLES, dtype=torch.long),
    )
    sampler = DistributedSampler(data, num_replicas=ranks, rank=0) if divides else None
    return DataLoader(data, size, sampler=sampler)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_what_other_ranks_cannot_go_on_with_is_refused(tmp_path):
    saved = resuming.go(tmp_path, stop_at=6).state_dict()

    def go_on(loader: DataLoader[Any]) -> None:
        other = resuming.make(shard=False, lively=False)[2]
        other.load_state_dict(state_of([saved], rank=1, world=2))
        next(iter(other(loader)))

    go_on(on(2, 4))
    with pytest.raises(
        ValueError, match="8 batches of this loader hold 24 samples, and 32 had been"
    ):
        go_on(on(2, 3))
    with pytest.raises(
        ValueError, match=r"divides it among none: give it a DistributedSampler\(num"
    ):
        go_on(on(2, 4, divides=False))
    with pytest.raises(
        ValueError, match=r"1 ranks saved in .* with 3: their batches do not divide"
    ):
        state_of([saved], rank=0, world=3)
    for change, message in (
        ({"replicas": None}, "does not divide one order among them"),
        (
            {"stream": {**saved["cursor"]["position"]["stream"], "carry": [1]}},
            "between two batches",
        ),
    ):
        position = {**saved["cursor"]["position"], **change}
        broken = {**saved, "cursor": {**saved["cursor"], "position": position}}
        with pytest.raises(ValueError, match=message + r".*state_dict\(epoch_over=True\)"):
            state_of([broken], rank=0, world=2)


def test_a_checkpoint_that_was_cut_off_does_not_count(tmp_path):
    assert latest(tmp_path / "none") is None
    for step in (3, 6):
        resuming.go(tmp_path, stop_at=step, keep=1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000000006"]
    (tmp_path / "step-000000009").mkdir()
    assert latest(tmp_path).name == "step-000000006"
    model, optimizer, sifter = resuming.make(shard=False, lively=False)
    with pytest.raises(ValueError, match=r"step-000000009 is not a whole checkpoint"):
        load(tmp_path / "step-000000009", model=model, optimizer=optimizer, sifter=sifter)


def test_a_step_that_is_saved_again_is_there_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a run that was stopped and continues with other settings from where it was."""
    resuming.go(tmp_path, stop_at=3, keep=1)
    model, optimizer, sifter = resuming.make(shard=False, lively=False)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "sifter": sifter}
    load(latest(tmp_path), **parts)
    (tmp_path / ".step-000000009.part").mkdir()  # of one that was killed

    def killed(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    for owner, name in [
        (checkpoint.state_dict_saver, "save"),
        (checkpoint, "_seal"),
        (checkpoint.shutil, "rmtree"),
        (checkpoint.files, "put_in_place"),
    ]:
        if name == "rmtree":  # so that the first to be deleted is the one that is replaced
            for part in tmp_path.glob(".*.part"):
                shutil.rmtree(part)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(KeyboardInterrupt):
                save(tmp_path, **parts, keep=1)
        found = latest(tmp_path)
        assert found is not None, name
        load(found, **parts)
        assert sifter.step == 3
        (tmp_path / ".step-000000009.part").mkdir(exist_ok=True)
    save(tmp_path, **parts, keep=1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000000003"]


def test_a_checkpoint_is_not_deleted_through_a_link(tmp_path: Path) -> None:
    resuming.go(tmp_path / "mine", stop_at=3, keep=1)
    (tmp_path / "mine" / "step-000000003").rename(tmp_path / "theirs")
    (tmp_path / "mine" / "step-000000003").symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match="is a link: checkpoints are not deleted through one"):
        resuming.go(tmp_path / "mine", stop_at=6, keep=1)
    assert (tmp_path / "theirs" / "checksums.json").exists()


def test_a_damaged_checkpoint_is_passed_over_and_not_loaded(tmp_path: Path) -> None:
    for step in (3, 6):
        resuming.go(tmp_path, stop_at=step, keep=2)
    newest = tmp_path / "step-000000006"
    file = max((f for f in newest.iterdir() if f.is_file()), key=lambda f: f.stat().st_size)
    source = bytearray(file.read_bytes())
    source[len(source) // 2] ^= 1
    file.write_bytes(source)
    found = latest(tmp_path)
    assert found is not None
    assert found.name == "step-000000003"
    model, optimizer, sifter = resuming.make(shard=False, lively=False)
    before = sifter.state_dict()["meter"]
    with pytest.raises(ValueError, match=f"{file.name} is not as it was written"):
        load(newest, model=model, optimizer=optimizer, sifter=sifter)
    assert sifter.state_dict()["meter"] == before


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_a_restarted_job_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    """And a job that may not be started again is ended whole by the rank that dies."""
    folders = tmp_path / "killed", tmp_path / "whole"
    for folder in folders:
        folder.mkdir()
    words = [RESUMING, *folders, "--lively", "--die-at", 8, "--die-in-the-end"]
    # as the page on distribution tells a script of one's own to
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = torchrun(words, restarts=1, environment=own)
    out, err = job.communicate(timeout=LIMIT)
    # the run that was killed goes on; the other is then made from its start without a break
    assert out.count("went on from") == 1, err
    assert "went on from step-000000006" in out
    assert finals(*folders) == [0.0]
    assert job.returncode != 0
    assert "exitcode  : 13" in err
