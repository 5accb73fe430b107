"""Does it pay? The statistical verdict on runs of several arms and seeds, under one budget.

    curves → target → paired ratios and differences over seeds → a sentence each → one for all

Arms are compared seed by seed with the baseline and with random-keep, the control: what random-keep
achieves as well is not due to selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sifting.verdict import layout, wording
from sifting.verdict.curves import (
    CONTROLS,
    Curve,
    arm_of,
    comparable,
    curve_of,
    is_baseline,
    is_control,
)
from sifting.verdict.pairing import ArmVerdict, Role, corrected, finished, measure

if TYPE_CHECKING:
    from sifting.training.run_folder import Run


@dataclass(frozen=True)
class Verdict:
    """The verdict on one comparison: `overall` in a sentence, `arms` in figures.

    Attributes:
        metric: name of the figure of merit.
        lower_is_better: of the figure of merit.
        percent: whether it is a share, shown in per cent and points.
        budget: in words, "" where the runs do not say.
        target: figure of merit whose time is compared.
        axis: what is called time: "reference" (calibrated seconds) or "seconds" (measured).
        baseline: name of the baseline's arm, if there is one.
        control: name of random-keep's arm, if there is one.
        arms: baseline and control first.
        outcome: "pays", "open" (better, but not beyond the noise of so few seeds and so many arms),
            "no gain", "harm" or "cannot judge".
        best: the arm that `overall` speaks of.
        overall: what to do, in a sentence.
        notes: what the reader should know of the figures.
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
    outcome: str = "cannot judge"
    best: str | None = None
    overall: str = ""
    notes: tuple[str, ...] = ()

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
        content["notes"] = list(self.notes)
        content["arms"] = [
            {**asdict(arm), "final": {str(seed): value for seed, value in arm.final.items()}}
            for arm in self.arms
        ]
        return {**content, "table": {"columns": columns, "rows": rows}}


def judge(
    runs: Sequence[Run],
    *,
    target: float | None = None,
    baseline: str | None = None,
    control: str | None = None,
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
    "sift reached 80 % in 0.78 (0.75–0.82) of the baseline's time; random-keep did the same in 0.99
    (0.97–1.01): selection pays 21 %."

    Args:
        runs: of `sifting.training.run_folder.read_run`, one for each arm and seed, under one budget.
        target: figure of merit whose time is compared; by default the best that every baseline run
            reached.
        baseline: name of the baseline's arm; by default "baseline", or the one without a selector.
        control: name of random-keep's; by default the one whose policy is "random".

    Raises:
        ValueError: where the runs cannot be compared: two of one arm and seed, several budgets,
            figures of merit or recipes, an arm that is not there.
    """
    if not runs:
        raise ValueError("no runs to judge: give at least a baseline and one arm")
    groups = comparable(runs)
    if len(groups) > 1:
        shown = "; ".join(" / ".join(part or "not said" for part in key) for key in groups)
        raise ValueError(
            f"runs of {len(groups)} experiments (recipe / figure / budget) cannot be compared: {shown}. "
            "Give those of one"
        )
    ((_, metric, budget),) = groups
    arms = _by_arm([curve_of(run) for run in runs])
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
    equal_time = budget.endswith(" seconds")
    verdict = Verdict(
        metric=metric,
        lower_is_better=lower,
        percent="acc" in metric.lower() and all(abs(c.figures).max() <= 1 for c in usable),
        budget=budget,
        target=target,
        axis=axis,
        baseline=base,
        control=keep,
        arms=corrected(measured, lower_is_better=lower, equal_time=equal_time),
    )
    spoken = tuple(replace(arm, sentence=wording.sentence(verdict, arm)) for arm in verdict.arms)
    best, outcome = _outcome(verdict)
    verdict = replace(verdict, arms=spoken, best=best, outcome=outcome)
    notes = wording.notes(verdict, coarse=_coarse(usable, target, axis))
    return replace(verdict, overall=wording.overall(verdict), notes=tuple(notes))


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
    """The best figure that every finished run of the baseline reached."""
    if given is not None:
        return given
    done = [*finished(baseline).values()]
    if not done:
        return None
    best = [curve.best for curve in done]
    return max(best) if done[0].lower_is_better else min(best)


def _coarse(curves: Sequence[Curve], target: float | None, axis: str) -> list[str]:
    """Runs that were past the target at their first evaluation: when they were is not known."""
    if target is None:
        return []
    return sorted(c.path for c in curves if c.reach(target, axis) == c.axis(axis)[0])


def _outcome(verdict: Verdict) -> tuple[str | None, str]:
    """The arm that the overall sentence speaks of, and the outcome as a word."""
    arms = [arm for arm in verdict.arms if arm.role == "arm"]
    judged = [arm for arm in arms if wording.judged(arm)]
    if not judged:
        return (arms[0].name if arms else None), "cannot judge"
    alpha = wording.ALPHA
    sign = 1.0 if verdict.lower_is_better else -1.0
    best = min(judged, key=lambda arm: (arm.p, arm.p_baseline, *_promise(arm, sign), arm.name))
    if best.p < alpha:
        return best.name, "pays"
    if best.p_baseline < alpha and not best.beside_control:
        return best.name, "cannot judge"
    if wording.promising(verdict, best):
        return best.name, "open"
    worse = [wording.worse(verdict, arm) for arm in judged]
    return best.name, "harm" if all(worse) else "no gain"


def _promise(arm: ArmVerdict, sign: float) -> tuple[float, float]:
    """Which of several arms without a claim did best: the smaller."""
    pace = float("inf") if arm.time_ratio is None else arm.time_ratio.value
    return pace, sign * (0.0 if arm.difference is None else arm.difference.value)
