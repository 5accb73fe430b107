"""The checkpoints of a run: written whole, verified before they are read, the last few kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting import checksums
from sifting.training.run_folder import RunError


@dataclass(frozen=True)
class Found:
    """The checkpoint that a run continues from.

    Attributes:
        step: updates made by then; None where there is no checkpoint yet.
        state: what it holds.
        passed_over: newer ones that are damaged, each in words.
    """

    step: int | None = None
    state: dict[str, Any] | None = None
    passed_over: tuple[str, ...] = ()


class Checkpoints:
    """The folder `checkpoints` of a run.

    Args:
        folder: which need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first; one that was being removed is none."""
        found = [path.parent.name[5:] for path in self.folder.glob("step-*/state.pt")]
        return sorted(int(step) for step in found if step.isascii() and step.isdigit())

    def latest(self) -> int | None:
        """Step of the newest; whether it is sound is not looked at."""
        return max(self.steps(), default=None)

    def last_good(self) -> str:
        """Where the newest is, in words."""
        step = self.latest()
        if step is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.path(step)}"

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
        """Write a checkpoint whole or not at all, and drop all but the last `keep`."""
        path = self.path(step)
        for folder in (self.folder, path):
            _refuse_link(folder)
        path.mkdir(parents=True, exist_ok=True)
        checksums.write_state(path / "state.pt", state)
        # one of a later step, which could not be deleted or is not the run's, takes no place
        for old in [known for known in self.steps() if known <= step][:-keep]:
            self._drop(self.path(old))
        return path

    def drop(self, *, after: int | None = None) -> None:
        """Delete all checkpoints of a run that is over, or those after a step that it continues from."""
        _refuse_link(self.folder)
        for path in self.folder.glob("step-*"):
            if after is None or (path.name[5:].isdigit() and int(path.name[5:]) > after):
                self._drop(path)

    def _drop(self, path: Path) -> None:
        _refuse_link(path)
        shutil.rmtree(path, ignore_errors=True)

    def load(self, step: int, run: str | None = None) -> dict[str, Any]:
        """Read a checkpoint.

        Args:
            step: which one.
            run: ID of the run that it must be of.

        Raises:
            RunError: where it is damaged, is another run's, or cannot be read.
        """
        path = self.path(step) / "state.pt"
        try:
            state = checksums.read_state(path)
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
        except checksums.Damaged as error:
            raise RunError(str(error)) from error
        if state.get("update", step) != step:
            raise RunError(
                f"{path} is of update {str(state['update'])[:40]}: it is in the wrong folder"
            )
        if run is not None and state.get("run") != run:
            raise RunError(f"{path} is a checkpoint of another run")
        return state

    def newest(self, run: str | None = None) -> Found:
        """The newest checkpoint that verifies.

        Args:
            run: ID of the run that it must be of.

        Raises:
            RunError: where there are some, and none verifies.
        """
        passed: list[str] = []
        for step in reversed(self.steps()):
            try:
                return Found(step, self.load(step, run), tuple(passed))
            except RunError as error:
                passed.append(str(error))
        if passed:
            raise RunError(
                f"none of the checkpoints in {self.folder} can be used ({'; '.join(passed)}): restore one, or "
                "delete the run's folder and start over"
            )
        return Found()


def _refuse_link(path: Path) -> None:
    """What is in a folder may be deleted, and what a link leads to is somebody else's."""
    if path.is_symlink():
        raise RunError(f"{path} is a link: checkpoints are not written or deleted through one")
