"""The metrics of each arm of a comparison, paired by seed with the baseline's and the control's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sifting.verdict.curves import Curve
from sifting.verdict.intervals import Estimate, holm, mean_of, ratio_of

Role = Literal["baseline", "control", "arm"]
Claim = Literal["time", "final"]
Curves = Mapping[int, Curve]  # by seed


@dataclass(frozen=True)
class ArmVerdict:
    """What one arm came to.

    Attributes:
        name: of the arm.
        role: "baseline", "control" (random-keep) or "arm".
        runs: how many there are.
        finished: how many of them finished, with a metric.
        failed: how many failed.
        final: metric at the budget, by seed, of the finished runs.
        mean: its mean.
        std: its standard deviation over seeds.
        difference: final metric minus the baseline's.
        reached: how many finished runs reached the target.
        time: geometric mean of the time until then; None unless all reached it.
        samples: the same of the samples back-propagated.
        time_ratio: time to the target over the baseline's; None unless all runs of both reached it,
            the baseline's after their first evaluation.
        samples_ratio: the same of the samples.
        cost: time of the whole run over the baseline's.
        over_control: time to the target over random-keep's. Where random-keep did not reach it, all
            the time that it had stands for it, so that the ratio is too large, never too small.
        control_difference: final metric minus random-keep's.
        p: of "better than the baseline and than random-keep", corrected for the number of claims.
        p_baseline: of "better than the baseline", corrected likewise.
        claim: what the p-values are of: "time" to the target or "final" metric.
    """

    name: str
    role: Role
    runs: int
    finished: int
    failed: int
    final: dict[int, float]
    mean: float | None = None
    std: float | None = None
    difference: Estimate | None = None
    reached: int = 0
    time: float | None = None
    samples: float | None = None
    time_ratio: Estimate | None = None
    samples_ratio: Estimate | None = None
    cost: Estimate | None = None
    over_control: Estimate | None = None
    control_difference: Estimate | None = None
    p: float = 1.0
    p_baseline: float = 1.0
    claim: Claim = "time"

    @property
    def judged(self) -> bool:
        """Whether it has enough seeds in common with the baseline."""
        return self.difference is not None and self.difference.judged

    def pair(self, claim: Claim) -> tuple[Estimate | None, Estimate | None]:
        """What a claim rests on: the estimates against the baseline and against random-keep."""
        if claim == "final":
            return self.difference, self.control_difference
        return self.time_ratio, self.over_control


@dataclass(frozen=True)
class Spent:
    """What a run spent until the target (None where it never reached it), and in all.

    Where it was past the target at its first evaluation (`early`), that is the most it can be.
    """

    time: float | None
    samples: float | None
    total: float
    early: bool = False

    @property
    def bound(self) -> float:
        """The time to the target, or the least that it can be."""
        return self.total if self.time is None else self.time


def finished(curves: Curves) -> dict[int, Curve]:
    """The curves of runs that finished and were evaluated."""
    return {seed: c for seed, c in curves.items() if c.status == "finished" and len(c)}


def measure(
    name: str,
    role: Role,
    curves: Curves,
    *,
    baseline: Curves,
    control: Curves,
    target: float | None,
    axis: str,
) -> ArmVerdict:
    """The metrics of one arm.

    Args:
        name: of the arm.
        role: what it is in the comparison.
        curves: its runs, by seed.
        baseline: the baseline's, by seed.
        control: random-keep's, by seed.
        target: metric whose time is compared.
        axis: "seconds" or "reference".
    """
    done = finished(curves)
    failed = sum(curve.status == "failed" for curve in curves.values())
    final = {seed: float(curve.values[-1]) for seed, curve in done.items()}
    arm = ArmVerdict(name, role, len(curves), len(done), failed, final)
    if not done:
        return arm
    spent = {seed: _spent(curve, target, axis) for seed, curve in done.items()}
    there = failed == 0 and all(s.time is not None for s in spent.values())
    arm = replace(
        arm,
        mean=statistics.fmean(final.values()),
        std=statistics.stdev(final.values()) if len(final) > 1 else None,
        reached=sum(s.time is not None for s in spent.values()),
        time=_geometric([s.time for s in spent.values()]) if there else None,
        samples=_geometric([s.samples for s in spent.values()]) if there else None,
    )
    if role != "baseline":
        other = {seed: _spent(curve, target, axis) for seed, curve in finished(baseline).items()}
        both = there and not any(curve.status == "failed" for curve in baseline.values())
        arm = replace(
            arm,
            difference=_difference(done, finished(baseline)),
            time_ratio=_ratio(spent, other, "time") if both else None,
            samples_ratio=_ratio(spent, other, "samples") if both else None,
            cost=_ratio(spent, other, "total"),
        )
    if role == "arm":
        other = {seed: _spent(curve, target, axis) for seed, curve in finished(control).items()}
        arm = replace(
            arm,
            control_difference=_difference(done, finished(control)),
            over_control=_ratio(spent, other, "time", bound=True) if there else None,
        )
    return arm


def corrected(
    arms: Sequence[ArmVerdict], *, lower_is_better: bool, equal_time: bool
) -> tuple[ArmVerdict, ...]:
    """The arms with their p-values, corrected by Holm for all the claims that could be made.

    Better than both is an intersection: its p-value is the larger of the two.

    Args:
        arms: of `measure`.
        lower_is_better: of the metric.
        equal_time: whether the budget is in seconds, so that the final metric is a claim as well.
    """
    alone: dict[tuple[str, Claim], float] = {}
    both: dict[tuple[str, Claim], float] = {}
    for arm in arms:
        if arm.role != "arm":
            continue
        pairs: dict[Claim, list[float]] = {
            "time": [p_better(e, null=1.0, lower=True) for e in arm.pair("time")]
        }
        if equal_time:
            gaps = () if arm.failed else arm.pair("final")
            pairs["final"] = [p_better(e, null=0.0, lower=lower_is_better) for e in gaps] or [1.0]
        for claim, ps in pairs.items():
            alone[arm.name, claim], both[arm.name, claim] = ps[0], max(ps)
    alone, both = (dict(zip(ps, holm([*ps.values()]), strict=True)) for ps in (alone, both))
    found = []
    for arm in arms:
        mine = [key for key in both if key[0] == arm.name]
        if mine:
            best = min(mine, key=lambda key: (both[key], alone[key]))
            arm = replace(arm, p=both[best], p_baseline=alone[best], claim=best[1])
        found.append(arm)
    return tuple(found)


def p_better(estimate: Estimate | None, *, null: float, lower: bool) -> float:
    """p-value of "better", 1 where the estimate points the other way or cannot be judged."""
    if estimate is None or estimate.p is None:
        return 1.0
    ahead = estimate.value < null if lower else estimate.value > null
    return estimate.p if ahead else 1.0


def _spent(curve: Curve, target: float | None, axis: str) -> Spent:
    time = None if target is None else curve.reach(target, axis)
    samples = None if target is None else curve.reach(target, "samples")
    spent = curve.axis(axis)
    return Spent(time, samples, float(spent[-1]), early=time == float(spent[0]))


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return statistics.geometric_mean(known) if len(known) == len(values) else None


def _difference(done: Curves, other: Curves) -> Estimate | None:
    seeds = sorted(set(done) & set(other))
    gaps = [float(done[s].values[-1] - other[s].values[-1]) for s in seeds]
    return mean_of(gaps) if gaps else None


def _ratio(
    done: Mapping[int, Spent], other: Mapping[int, Spent], what: str, *, bound: bool = False
) -> Estimate | None:
    """Ratio of what was spent; None where a run of either did not get there.

    None, too, where a run of the other arm was there by its first evaluation: when it was is not
    known, and a ratio to the time of that evaluation says how the arms are evaluated, no more.

    Args:
        bound: whether a run of the other arm that did not reach it counts with all its time.
    """
    seeds = sorted(set(done) & set(other))
    above = [getattr(done[s], what) for s in seeds]
    below = [other[s].bound if bound else getattr(other[s], what) for s in seeds]
    if not seeds or any(not value for value in (*above, *below)):
        return None
    if what != "total" and any(other[s].early for s in seeds):
        return None
    return ratio_of(above, below)
