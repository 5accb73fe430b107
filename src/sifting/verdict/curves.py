"""Learning curves from run folders: what a run had cost, and how good it was, at each evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sifting.training.run_folder import Run

Floats = NDArray[np.float64]
LARGEST = 1e15  # count or seconds of a run
VAST = 1e100  # values beyond are as good as infinite, and their squares are
CONTROLS = ("random-keep", "random", "random keep")


class CurveError(ValueError):
    """A run whose log cannot be read as a learning curve; the message says which and why."""


def text(value: Any) -> str:
    """A setting as one plain string."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def arm_of(run: Run) -> str:
    """Name of the run's arm; the folder's own name where the settings have none."""
    return text(run.config["arm"]) if run.config.get("arm") is not None else run.path.name


def metric_of(run: Run) -> str:
    """Name of the run's metric."""
    return text(run.config.get("metric") or "accuracy")


def budget_of(run: Run) -> str:
    """The run's budget in words, or "" where the settings do not say.

    >>> from sifting.training.run_folder import Run
    >>> from pathlib import Path
    >>> config = {"budget": {"kind": "updates", "amount": 600}}
    >>> budget_of(Run(Path("r"), "finished", config, {}, [], None))
    '600 updates'
    """
    budget = run.config.get("budget")
    if isinstance(budget, Mapping) and _number(budget.get("amount")) is not None:
        return f"{float(budget['amount']):g} {text(budget.get('kind', 'updates'))}"
    updates = _number(run.config.get("updates"))
    return "" if updates is None else f"{updates:g} updates"


def is_baseline(run: Run) -> bool:
    """Whether the run trains on every sample."""
    return arm_of(run) == "baseline" or run.config.get("selector", "") is None


def is_control(run: Run) -> bool:
    """Whether the run keeps a random part: what a selection must beat to be worth anything."""
    selector = run.config.get("selector")
    policy = selector.get("policy") if isinstance(selector, Mapping) else None
    return arm_of(run) in CONTROLS or policy == "random"


def comparable(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """Runs by recipe, metric and budget: only those of one group are compared.

    Args:
        runs: in any order.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: str(run.path)):
        key = (text(run.config.get("recipe") or ""), metric_of(run), budget_of(run))
        groups.setdefault(key, []).append(run)
    return dict(sorted(groups.items()))


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run.

    Attributes:
        arm: name of its arm.
        seed: its seed.
        status: how the run ended; "failed", too, where its last evaluation has no finite metric.
        path: its folder.
        steps: updates.
        samples: samples back-propagated.
        seconds: training time, evaluations left out.
        reference: the same charged from a calibration table; None where evaluations are without.
        values: the metric that counts.
        lower_is_better: of the metric.
    """

    arm: str
    seed: int
    status: str
    path: str
    steps: Floats
    samples: Floats
    seconds: Floats
    reference: Floats | None
    values: Floats
    lower_is_better: bool = False

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def best(self) -> float:
        """The best metric that the run reached."""
        return float(self.values.min() if self.lower_is_better else self.values.max())

    def axis(self, name: str) -> Floats:
        """What had been spent at each evaluation: "steps", "samples", "seconds" or "reference"."""
        spent: Floats | None = getattr(self, name)
        if spent is None:
            raise ValueError(f"{self.path} has no {name}")
        return spent

    def reach(self, target: float, axis: str) -> float | None:
        """What was spent until the metric reached a target, None where it never did.

        Linear between the two evaluations around the crossing. A run that is past the target at its
        first evaluation is charged all that it had spent by then.

        >>> ones = np.array([1.0, 2.0])
        >>> run = Curve("sift", 0, "finished", "r", ones, ones, 10 * ones, None, np.array([0.6, 0.8]))
        >>> round(run.reach(0.7, "seconds"), 6), run.reach(0.9, "seconds")
        (15.0, None)
        """
        spent = self.axis(axis)
        sign = -1.0 if self.lower_is_better else 1.0
        there = np.flatnonzero(sign * self.values >= sign * target)
        if not len(there):
            return None
        i = int(there[0])
        if i == 0:
            return float(spent[0])
        part = (target - self.values[i - 1]) / (self.values[i] - self.values[i - 1])
        return float(spent[i - 1] + part * (spent[i] - spent[i - 1]))


def curve_of(run: Run) -> Curve:
    """The learning curve of a run; evaluations without a finite metric are passed over.

    Args:
        run: of `sifting.training.run_folder.read_run`.

    Raises:
        CurveError: where the log is not what docs/run-format.md says.
    """
    metric, rows, references, ends = metric_of(run), [], [], True
    try:
        for record in run.metrics:
            value = _number(record.get(metric))
            float(record.get("step", 0))  # of every record: curves of other metrics are drawn too
            if record.get("kind") != "eval":
                continue
            ends = value is not None
            if value is None:
                continue
            row = [float(record["step"]), float(record["samples_trained"])]
            rows.append([*row, training_seconds(record["seconds"]), value])
            reference = record.get("reference")
            references.append(None if reference is None else training_seconds(reference))
        seed = int(run.config.get("seed") or 0)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CurveError(
            f"{run.path} is damaged: {type(error).__name__} {error} in metrics.jsonl or config.json"
        ) from error
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    known = [value for value in references if value is not None]
    if not np.isfinite(table).all() or not np.isfinite(known).all():
        raise CurveError(f"{run.path} is damaged: metrics.jsonl has metrics that are not finite")
    if (np.diff(table[:, :3], axis=0) < 0).any():
        raise CurveError(f"{run.path} is damaged: the counts in metrics.jsonl go backwards")
    if (table[:, :3] < 0).any() or (table[:, :3] > LARGEST).any() or not _counts(known):
        raise CurveError(
            f"{run.path} is damaged: metrics.jsonl has counts or times below 0, or vast"
        )
    return Curve(
        arm=arm_of(run),
        seed=seed,
        # an earlier metric must not stand for the one at the budget, which is no number
        status="failed" if run.status == "finished" and not ends else run.status,
        path=str(run.path),
        steps=table[:, 0],
        samples=table[:, 1],
        seconds=table[:, 2],
        # none at all is no evidence that it has no such times: it has not come to an evaluation
        reference=np.array(known) if len(known) == len(rows) else None,
        values=table[:, 3],
        lower_is_better=bool(run.config.get("lower_is_better", False)),
    )


def training_seconds(clocks: Mapping[str, Any]) -> float:
    """The sum of a record's clocks, evaluation left out.

    >>> training_seconds({"forward": 1.0, "backward": 2.0, "evaluation": 9.0})
    3.0
    """
    return math.fsum(float(value) for name, value in clocks.items() if name != "evaluation")


def _counts(values: Sequence[float]) -> bool:
    return all(0 <= value <= LARGEST for value in values)


def _number(value: Any) -> float | None:
    """A finite number whose square is finite too, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if abs(value) < VAST else None
    except OverflowError:  # an integer that no float can hold
        return None
