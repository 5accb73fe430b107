"""Tables of a grid in the paper's form: a row for each learning rate, a column for each arm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from sifting.markdown import Markdown, bold, code, escape, table
from sifting.terminal import print_table
from sifting.training.run_folder import Run

NAMES = {
    "baseline": "Baseline",
    "random": "Random-keep",
    "sift": "SIFT w/ early exit",
    "sift-last": "SIFT w/ last layer exit",
    "sift-entropy": "SIFT w/ early exit, entropy",
    "tuned": "Tuned exit",
    "tuned-entropy": "Tuned exit, entropy",
}
NOTE = (
    "Test accuracy in per cent, mean ± standard deviation over seeds; the best of each column is bold. "
    "“–”: no run converged. A run has not converged if its loss became infinite or not a number, or if its "
    "final accuracy is within three standard errors of guessing. Where only some runs converged, their "
    "mean is given with their number, and is never bold. The runs of an empty field are not finished."
)


def at_chance(accuracy: float, *, chance: float, tests: int) -> bool:
    """Whether an accuracy is not to be told from guessing, by three standard errors.

    >>> at_chance(0.012, chance=0.01, tests=10_000), at_chance(0.02, chance=0.01, tests=10_000)
    (True, False)

    Args:
        accuracy: on the test data.
        chance: one over the number of classes.
        tests: test samples.
    """
    return not accuracy > chance + 3 * math.sqrt(chance * (1 - chance) / tests)  # NaN is no success


@dataclass(frozen=True)
class GridField:
    """One field of a table.

    Attributes:
        accuracies: of the runs that converged.
        runs: that are over.
        planned: seeds.
    """

    accuracies: tuple[float, ...]
    runs: int
    planned: int

    @classmethod
    def of(cls, runs: Sequence[Run], *, chance: float, tests: int, planned: int) -> GridField:
        """From run folders that are over, diverged or not."""
        found = [
            float(run.summary["final"]["accuracy"])
            for run in runs
            if run.status == "finished" and run.summary is not None
        ]
        good = tuple(a for a in found if not at_chance(a, chance=chance, tests=tests))
        return cls(good, len(runs), planned)

    @property
    def mean(self) -> float | None:
        """Where every run converged."""
        whole = self.runs == self.planned and len(self.accuracies) == self.planned
        return statistics.fmean(self.accuracies) if whole and self.accuracies else None

    def __str__(self) -> str:
        if self.runs < self.planned:
            return ""
        if not self.accuracies:
            return "–"
        text = f"{100 * statistics.fmean(self.accuracies):.2f}"
        if len(self.accuracies) > 1:
            text += f" ± {100 * statistics.stdev(self.accuracies):.2f}"
        if len(self.accuracies) < self.planned:
            text += f" ({len(self.accuracies)} of {self.planned})"
        return text


@dataclass(frozen=True)
class GridTable:
    """One table of the paper.

    Attributes:
        title: data set and what is equal.
        rows: learning rates.
        columns: arms.
        entries: by both.
        updates: of each arm.
    """

    title: str
    rows: tuple[float, ...]
    columns: tuple[str, ...]
    entries: Mapping[tuple[float, str], GridField]
    updates: Mapping[str, int]

    def bold(self, row: float, column: str) -> bool:
        """Whether the field is the best of its column."""
        means = [self.entries[lr, column].mean for lr in self.rows]
        best = max((mean for mean in means if mean is not None), default=None)
        return best is not None and self.entries[row, column].mean == best

    def markdown(self) -> str:
        """As Markdown."""
        heads = [NAMES[arm] if arm in NAMES else code(arm) for arm in self.columns]
        rows = [[f"{lr:g}", *(self._field(lr, arm) for arm in self.columns)] for lr in self.rows]
        updates = ", ".join(f"{NAMES.get(arm, arm)} {n}" for arm, n in self.updates.items())
        lines = [bold(self.title), "", table(["max_lr", *heads], rows)]
        return "\n".join([*lines, "", f"Updates: {escape(updates)}.", ""])

    def _field(self, row: float, column: str) -> str:
        text = str(self.entries[row, column])
        return bold(text) if self.bold(row, column) else Markdown(text)

    def show(self, console: Console) -> None:
        """Print it, whole at any width."""
        heads = ["max_lr", *(NAMES.get(arm, arm) for arm in self.columns)]
        rows = [
            [f"{lr:g}", *(str(self.entries[lr, arm]) for arm in self.columns)] for lr in self.rows
        ]
        best = {
            (i, j)
            for i, lr in enumerate(self.rows)
            for j, arm in enumerate(self.columns, start=1)
            if self.bold(lr, arm)
        }
        print_table(console, heads, rows, title=self.title, bold=best)
