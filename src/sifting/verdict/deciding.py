"""What decides: from the metrics of the arms to an outcome and its reasons. Nothing here words it.

An arm is *ahead* where, were it the only one compared, it is measurably better than the baseline in time
to the target or in its final metric. What keeps it from paying is its obstacle:

    ahead of the baseline → at equal time, without failed runs → beside random-keep → ahead of it →
    beyond Holm's correction: it pays
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sifting.verdict.intervals import ALPHA, FEWEST_SEEDS, Estimate
from sifting.verdict.pairing import ArmVerdict, Claim, p_better
from sifting.verdict.power import detectable, seeds_to_settle

Outcome = Literal["pays", "open", "no gain", "harm", "cannot judge"]
Obstacle = Literal[
    "correction",  # better than both, but not beyond the correction for so many claims
    "no control",  # there is no random-keep
    "control unfinished",  # it has too few finished seeds in common
    "control early",  # it was past the target by its first evaluation
    "control",  # not measurably better than random-keep
    "equal seeds",  # the same gap with every seed: nothing to measure chance by
    "unequal time",  # a better final metric, but the budget is not one of time
    "failed runs",  # a better final metric, of the runs that did not fail
]
Reason = Literal[
    Obstacle, "better than both", "noise", "worse", "no baseline", "no arms", "too few seeds"
]
CLAIMS: tuple[Claim, ...] = ("time", "final")
TOLERATED = 1.05  # of the baseline's time: an arm that ends as well does no harm up to it
UNJUDGED: tuple[Obstacle, ...] = ("no control", "control unfinished", "control early")


@dataclass(frozen=True)
class Ahead:
    """An arm that is ahead of the baseline, and what keeps that from being a gain of selection.

    Attributes:
        arm: its name.
        claim: in what it is ahead: "time" to the target, or "final" metric.
        obstacle: what stands in the way; None where nothing does.
    """

    arm: str
    claim: Claim
    obstacle: Obstacle | None


@dataclass(frozen=True)
class Decision:
    """An outcome and its reasons.

    Attributes:
        outcome: "pays", "open" (better, but not beyond the noise of so few seeds and so many arms),
            "no gain", "harm" or "cannot judge".
        reason: what decided.
        best: the arm that it is about.
        claim: of the best arm: "time" to the target, or "final" metric.
        arms: how many were compared.
        claims: how many could have been made, which Holm corrects for.
        ahead: every arm that is ahead of the baseline, were it the only one; the best first.
        harmed: arms that are measurably worse than the baseline, and in nothing better.
        control_ahead: whether random-keep is measurably better than the baseline.
        detectable_time: the least gain, as a share of the time, that the best arm's runs would have
            shown with a power of 0.8; None where they have no ratio.
        detectable_final: the same of the final metric, in its own unit.
        seeds: with so many the best arm's gain, were it what it looks like, would be settled; None
            where there is none to settle, or more than `power.MOST_SEEDS` are needed.
        too_many_seeds: whether there is one, and more than those are needed.
    """

    outcome: Outcome
    reason: Reason
    best: str | None = None
    claim: Claim = "time"
    arms: int = 0
    claims: int = 0
    ahead: tuple[Ahead, ...] = ()
    harmed: tuple[str, ...] = ()
    control_ahead: bool = False
    detectable_time: float | None = None
    detectable_final: float | None = None
    seeds: int | None = None
    too_many_seeds: bool = False


def decide(
    arms: Sequence[ArmVerdict],
    *,
    lower_is_better: bool,
    equal_time: bool,
) -> Decision:
    """The decision.

    Args:
        arms: of `pairing.corrected`.
        lower_is_better: of the metric.
        equal_time: whether the budget is in seconds, so that the final metric is a claim as well.
    """
    roles = {arm.role: arm for arm in arms if arm.role != "arm"}
    control, compared = roles.get("control"), [arm for arm in arms if arm.role == "arm"]
    first = compared[0].name if compared else None
    if "baseline" not in roles:
        return Decision("cannot judge", "no baseline", first, arms=len(compared))
    if first is None:
        return Decision("cannot judge", "no arms")
    judged = [arm for arm in compared if arm.judged]
    if not judged:
        return Decision("cannot judge", "too few seeds", first, arms=len(compared))
    lower = {"time": True, "final": lower_is_better}
    claims = len(compared) * (2 if equal_time else 1)

    def obstacles(arm: ArmVerdict) -> Iterator[Ahead]:
        for claim in CLAIMS:
            against, _ = arm.pair(claim)
            if not _outside(against, claim, lower=lower[claim]):
                continue
            yield Ahead(
                arm.name,
                claim,
                _obstacle(arm, claim, control, lower=lower[claim], equal_time=equal_time),
            )

    ahead = {
        # of two claims with the same obstacle, the one that the p-values are of
        arm.name: sorted(obstacles(arm), key=lambda a: (_weight(a), a.claim != arm.claim))
        for arm in judged
    }
    best = min(
        judged,
        key=lambda arm: (
            *(arm.p, arm.p_baseline),
            min(map(_weight, ahead[arm.name]), default=len(get_args(Obstacle)) + 1),
            *_promise(arm, sign=1.0 if lower_is_better else -1.0),
            arm.name,
        ),
    )
    mine = ahead[best.name][0] if ahead[best.name] else None
    harmed = [arm.name for arm in judged if not ahead[arm.name] and _behind(arm, lower_is_better)]
    claim = mine.claim if mine is not None else best.claim
    outcome, reason = _outcome(best, mine, harm=len(harmed) == len(judged))
    unsettled = reason in SETTLED and _promises(best, claim, lower=lower[claim])
    seeds = _seeds(best, claim, claims) if unsettled else None
    return Decision(
        outcome=outcome,
        reason=reason,
        best=best.name,
        claim=best.claim if outcome == "pays" else claim,
        arms=len(compared),
        claims=claims,
        ahead=tuple(
            of[0] for name, of in sorted(ahead.items(), key=lambda i: i[0] != best.name) if of
        ),
        harmed=tuple(harmed),
        control_ahead=control is not None and _leads(control, lower_is_better, equal_time),
        detectable_time=_detectable(best, "time", claims),
        detectable_final=_detectable(best, "final", claims),
        seeds=seeds,
        too_many_seeds=unsettled and seeds is None,
    )


SETTLED: tuple[Reason, ...] = ("correction", "control")  # by more seeds


def _outcome(best: ArmVerdict, mine: Ahead | None, *, harm: bool) -> tuple[Outcome, Reason]:
    if best.p < ALPHA:
        return "pays", "better than both"
    if mine is None:
        return ("harm", "worse") if harm else ("no gain", "noise")
    assert mine.obstacle is not None, "nothing in its way, and yet it does not pay"
    if mine.obstacle in UNJUDGED:
        return "cannot judge", mine.obstacle
    return ("open" if mine.obstacle == "correction" else "no gain"), mine.obstacle


def _obstacle(
    arm: ArmVerdict, claim: Claim, control: ArmVerdict | None, *, lower: bool, equal_time: bool
) -> Obstacle | None:
    against, beside = arm.pair(claim)
    null = _null(claim)
    if claim == "final" and not equal_time:
        return "unequal time"
    if claim == "final" and arm.failed:
        return "failed runs"
    if p_better(against, null=null, lower=lower) >= ALPHA:
        return "equal seeds"
    if control is None:
        return "no control"
    if beside is None or not beside.judged:
        enough = arm.control_difference is not None and arm.control_difference.n >= FEWEST_SEEDS
        return "control early" if enough and claim == "time" else "control unfinished"
    if p_better(beside, null=null, lower=lower) >= ALPHA:
        return "control"
    return None if arm.p < ALPHA else "correction"


def _weight(ahead: Ahead) -> int:
    """How far an arm is from paying."""
    return 0 if ahead.obstacle is None else 1 + get_args(Obstacle).index(ahead.obstacle)


def _null(claim: Claim) -> float:
    return 1.0 if claim == "time" else 0.0


def _outside(estimate: Estimate | None, claim: Claim, *, lower: bool) -> bool:
    """Whether a table shows a gain: the whole interval on the better side."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return False
    null = _null(claim)
    return estimate.high < null if lower else estimate.low > null


def _behind(arm: ArmVerdict, lower_is_better: bool) -> bool:
    """Whether it is measurably slower to the target, and by much; or measurably worse at the budget."""
    ratio = arm.time_ratio
    slower = ratio is not None and ratio.above(1) and ratio.value > TOLERATED
    d = arm.difference
    return slower or (d is not None and (d.above(0) if lower_is_better else d.below(0)))


def _leads(control: ArmVerdict, lower_is_better: bool, equal_time: bool) -> bool:
    ratio, gap = control.time_ratio, control.difference
    faster = ratio is not None and ratio.below(1)
    better = gap is not None and (gap.below(0) if lower_is_better else gap.above(0))
    return faster or (better and equal_time and not control.failed)


def _detectable(arm: ArmVerdict, claim: Claim, claims: int) -> float | None:
    """The larger of what would have been seen against the baseline and against random-keep."""
    against, beside = (detectable(e, log=claim == "time", claims=claims) for e in arm.pair(claim))
    if against is None:
        return None
    return against if beside is None else max(against, beside)


def _promises(arm: ArmVerdict, claim: Claim, *, lower: bool) -> bool:
    """Whether it is on the better side of both, if not measurably."""
    return all(p_better(e, null=_null(claim), lower=lower) < 1.0 for e in arm.pair(claim))


def _seeds(arm: ArmVerdict, claim: Claim, claims: int) -> int | None:
    found = [seeds_to_settle(e, log=claim == "time", claims=claims) for e in arm.pair(claim)]
    known = [seeds for seeds in found if seeds is not None]
    return max(known) if len(known) == len(found) else None


def _promise(arm: ArmVerdict, *, sign: float) -> tuple[float, float]:
    """Which of several arms without a claim did best: the smaller."""
    pace = float("inf") if arm.time_ratio is None else arm.time_ratio.value
    return pace, sign * (0.0 if arm.difference is None else arm.difference.value)
