from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.training.checkpoints import Checkpoints
from sifting.training.run_folder import RunError


def three(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (10, 20, 30):
        state = {"update": step, "run": "me", "x": torch.full((3,), float(step))}
        checkpoints.save(step, state, keep=2)
    return checkpoints


def test_checkpoints_are_whole_and_the_last_are_kept(tmp_path: Path) -> None:
    checkpoints = three(tmp_path)
    assert checkpoints.latest() == 30
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == [
        "step-00000020",
        "step-00000030",
    ]
    assert checkpoints.load(20)["x"].tolist() == [20.0] * 3
    (checkpoints.folder / ".step-00000040.part").mkdir()  # killed while writing
    assert checkpoints.latest() == 30
    (checkpoints.path(30) / "state.pt").unlink()  # killed while writing it again
    assert checkpoints.latest() == 20


def damage(path: Path, how: str) -> None:
    source = path.read_bytes()
    if how == "flipped":
        middle = len(source) // 2
        path.write_bytes(source[:middle] + bytes([source[middle] ^ 4]) + source[middle + 1 :])
    elif how == "shortened":
        path.write_bytes(source[:-100])
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("how", ["flipped", "shortened", "emptied", "a folder"])
def test_the_newest_that_verifies_is_used_and_what_was_passed_over_is_named(
    how: str, tmp_path: Path
) -> None:
    checkpoints = three(tmp_path)
    damage(checkpoints.path(30) / "state.pt", how)
    found = checkpoints.newest("me")
    assert found.step == 20
    assert found.state is not None
    assert found.state["x"].tolist() == [20.0] * 3
    (why,) = found.passed_over
    assert "step-00000030" in why
    damage(checkpoints.path(20) / "state.pt", how)
    with pytest.raises(RunError, match=r"none of the checkpoints .*step-00000030.*step-00000020"):
        checkpoints.newest("me")


def test_a_checkpoint_of_another_run_or_step_is_not_taken(tmp_path: Path) -> None:
    checkpoints = three(tmp_path)
    with pytest.raises(RunError, match="is a checkpoint of another run"):
        checkpoints.newest("somebody else")
    with pytest.raises(RunError, match=r"state\.pt is a checkpoint of another run"):
        checkpoints.load(30, "somebody else")
    assert checkpoints.load(30, "me")["x"].tolist() == [30.0] * 3
    checkpoints.path(20).rename(checkpoints.path(40))
    found = checkpoints.newest("me")
    assert found.step == 30
    assert "is of update 20: it is in the wrong folder" in found.passed_over[0]


def test_no_checkpoint_is_the_beginning(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").newest().step is None


def test_those_after_the_one_that_is_gone_on_from_are_dropped(tmp_path: Path) -> None:
    checkpoints = three(tmp_path)
    checkpoints.drop(after=20)
    assert checkpoints.steps() == [20]
    checkpoints.drop()
    assert checkpoints.steps() == []


def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "step-00000001").mkdir(parents=True)
    precious: Any = other / "step-00000001" / "state.pt"
    precious.write_text("precious")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.folder.symlink_to(other)
    with pytest.raises(RunError, match="checkpoints is a link"):
        checkpoints.save(10, {"x": 1}, keep=1)
    with pytest.raises(RunError, match="checkpoints is a link"):
        checkpoints.drop()
    checkpoints.folder.unlink()
    checkpoints.folder.mkdir()
    (checkpoints.folder / "step-00000001").symlink_to(other / "step-00000001")
    with pytest.raises(RunError, match="step-00000001 is a link"):
        checkpoints.save(10, {"x": 1}, keep=1)
    assert precious.read_text() == "precious"


def test_one_of_a_later_step_does_not_take_the_place_of_what_was_just_written(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.path(99).mkdir(parents=True)
    (checkpoints.path(99) / "state.pt").write_text("somebody's")
    for step in (10, 20):
        checkpoints.save(step, {"update": step, "run": "me"}, keep=1)
    assert checkpoints.steps() == [20, 99]
    assert checkpoints.newest("me").step == 20
