"""Does it pay? The statistical verdict on runs of several arms and seeds, under one budget.

    curves → target → paired ratios and differences over seeds → decision → words

Arms are compared seed by seed with the baseline and with random-keep, the control: what random-keep
achieves as well is not due to selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sifting.verdict import advice, layout, wording
from sifting.verdict.curves import (
    CONTROLS,
    Curve,
    arm_of,
    comparable,
    curve_of,
    is_baseline,
    is_control,
)
from sifting.verdict.deciding import Decision, Outcome, decide
from sifting.verdict.pairing import ArmVerdict, Role, corrected, finished, measure

if TYPE_CHECKING:
    from sifting.training.run_folder import Run


@dataclass(frozen=True)
class Verdict:
    """The verdict on one comparison: `overall` in a sentence, `arms` in numbers.

    Attributes:
        metric: name of the metric.
        lower_is_better: of the metric.
        percent: whether it is a share, shown in per cent and points.
        budget: in words, "" where the runs do not say.
        target: metric whose time is compared.
        axis: what is called time: "reference" (calibrated seconds) or "seconds" (measured).
        baseline: name of the baseline's arm, if there is one.
        control: name of random-keep's arm, if there is one.
        arms: baseline and control first.
        decision: the outcome and its reasons, as data.
        early: runs that had passed the target by their first evaluation.
    """

    metric: str
    lower_is_better: bool
    percent: bool
    budget: str
    target: float | None
    axis: str
    baseline: str | None
    control: str | None
    arms: tuple[ArmVerdict, ...]
    decision: Decision
    early: int = 0

    @property
    def equal_time(self) -> bool:
        """Whether the budget is in seconds, so that final metrics can be compared as they are."""
        return in_seconds(self.budget)

    @property
    def outcome(self) -> Outcome:
        """The outcome as a word."""
        return self.decision.outcome

    @property
    def best(self) -> str | None:
        """The arm that `overall` speaks of."""
        return self.decision.best

    @property
    def overall(self) -> str:
        """What to do, and why, as plain text."""
        return advice.overall(self).plain()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of the metrics, as plain text."""
        return tuple(note.plain() for note in wording.notes(self))

    def sentence(self, name: str) -> str:
        """One arm in a sentence of plain text."""
        return wording.sentence(self, self.arm(name)).plain()

    def arm(self, name: str) -> ArmVerdict:
        """One arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and a row of strings for each arm; the numbers are in `arms`."""
        return layout.table(self)

    def markdown(self) -> str:
        """The verdict as text: the overall sentence, the table, a line for each arm, notes."""
        return layout.markdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        columns, rows = self.table()
        content = asdict(self)
        content["arms"] = [
            {
                **asdict(arm),
                "final": {str(seed): value for seed, value in arm.final.items()},
                "sentence": self.sentence(arm.name),
            }
            for arm in self.arms
        ]
        spoken = {
            "outcome": self.outcome,
            "best": self.best,
            "headline": advice.overall(self).strong(),
            "overall": self.overall,
            "notes": list(self.notes),
        }
        return {**content, **spoken, "table": {"columns": columns, "rows": rows}}


def in_seconds(budget: str) -> bool:
    """Whether a budget in words is one of time.

    >>> in_seconds("60 seconds"), in_seconds("600 updates")
    (True, False)
    """
    return budget.endswith(" seconds")


def judge(
    runs: Sequence[Run],
    *,
    target: float | None = None,
    baseline: str | None = None,
    control: str | None = None,
    curves: Sequence[Curve] | None = None,
) -> Verdict:
    """Compare the arms of one experiment.

    >>> from pathlib import Path
    >>> from sifting.training.run_folder import Run
    >>> def run(arm, seed, pace):
    ...     log = [{"kind": "eval", "step": n, "samples_trained": n, "seconds": {"forward": n * pace},
    ...             "accuracy": 0.2 * n} for n in (1, 2, 3, 4)]
    ...     return Run(Path(f"{arm}-{seed}"), "finished", {"arm": arm, "seed": seed}, {}, log, None)
    >>> runs = [run("baseline", s, 1 + 0.02 * s) for s in range(3)]
    >>> runs += [run("random-keep", s, 1 + 0.01 * s) for s in range(3)]
    >>> judge(runs + [run("sift", s, 0.8) for s in range(3)]).overall
    "Selection pays 21 %: `sift` reached 80 % in 0.78 (0.75–0.82) of the baseline's time; `random-keep`
    did the same in 0.99 (0.97–1.01)."

    Args:
        runs: of `sifting.training.run_folder.read_run`, one for each arm and seed, under one budget.
        target: metric whose time is compared; by default the best that every baseline run
            reached.
        baseline: name of the baseline's arm; by default "baseline", or the one without a selector.
        control: name of random-keep's; by default the one whose policy is "random".
        curves: those of the runs, where they have been read already.

    Raises:
        ValueError: where the runs cannot be compared: two of one arm and seed, several budgets,
            metrics or recipes, an arm that is not there.
    """
    if not runs:
        raise ValueError("no runs to judge: give at least a baseline and one arm")
    groups = comparable(runs)
    if len(groups) > 1:
        shown = "; ".join(" / ".join(part or "not said" for part in key) for key in groups)
        raise ValueError(
            f"runs of {len(groups)} experiments (recipe / metric / budget) cannot be compared: {shown}. "
            "Give those of one"
        )
    ((_, metric, budget),) = groups
    arms = _by_arm(curves if curves is not None else [curve_of(run) for run in runs])
    base = _named(arms, baseline, {arm_of(run) for run in runs if is_baseline(run)}, ("baseline",))
    controls = {arm_of(run) for run in runs if is_control(run)} - {base}
    keep = _named(arms, control, controls, CONTROLS)
    usable = [curve for of_arm in arms.values() for curve in of_arm.values() if len(curve)]
    lower = any(curve.lower_is_better for curve in usable)
    target = _target(arms.get(base or "", {}), given=target)
    axis = "reference" if usable and all(c.reference is not None for c in usable) else "seconds"
    first = [name for name in (base, keep) if name is not None]
    measured = []
    for name in [*first, *sorted(set(arms) - set(first))]:
        role: Role = "baseline" if name == base else "control" if name == keep else "arm"
        beside: dict[str, Any] = {k: arms.get(n or "", {}) for k, n in _pair(base, keep)}
        measured.append(measure(name, role, arms[name], **beside, target=target, axis=axis))
    equal_time = in_seconds(budget)
    compared = corrected(measured, lower_is_better=lower, equal_time=equal_time)
    return Verdict(
        metric=metric,
        lower_is_better=lower,
        percent="acc" in metric.lower() and all(abs(c.values).max() <= 1 for c in usable),
        budget=budget,
        target=target,
        axis=axis,
        baseline=base,
        control=keep,
        arms=compared,
        decision=decide(compared, lower_is_better=lower, equal_time=equal_time),
        early=_early(usable, target, axis),
    )


def _pair(base: str | None, keep: str | None) -> list[tuple[str, str | None]]:
    return [("baseline", base), ("control", keep)]


def _by_arm(curves: Sequence[Curve]) -> dict[str, dict[int, Curve]]:
    arms: dict[str, dict[int, Curve]] = {}
    for curve in sorted(curves, key=lambda curve: (curve.arm, curve.seed, curve.path)):
        twin = arms.setdefault(curve.arm, {}).setdefault(curve.seed, curve)
        if twin is not curve:
            raise ValueError(
                f"{twin.path} and {curve.path} are both of arm {curve.arm!r} and seed {curve.seed}: give one"
            )
    return arms


def _named(
    arms: Mapping[str, Any], given: str | None, found: set[str], usual: Sequence[str]
) -> str | None:
    """The arm asked for, or the one with the usual name, or the first that plays the part."""
    if given is not None and given not in arms:
        raise ValueError(f"no run is of arm {given!r}; the arms are {', '.join(sorted(arms))}")
    return given or next((name for name in usual if name in found), min(found, default=None))


def _target(baseline: Mapping[int, Curve], *, given: float | None) -> float | None:
    """The best metric that every finished run of the baseline reached."""
    if given is not None:
        return given
    done = [*finished(baseline).values()]
    if not done:
        return None
    best = [curve.best for curve in done]
    return max(best) if done[0].lower_is_better else min(best)


def _early(curves: Sequence[Curve], target: float | None, axis: str) -> int:
    """Runs that were past the target at their first evaluation: when they were is not known."""
    if target is None:
        return 0
    return sum(c.reach(target, axis) == float(c.axis(axis)[0]) for c in curves)
