"""A verdict in words: what to do, and why. Nothing here decides or computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sifting.verdict.deciding import Ahead
from sifting.verdict.formats import count, gap, p_value, percent, ratio
from sifting.verdict.intervals import ALPHA, FEWEST_SEEDS, Estimate
from sifting.verdict.power import MOST_SEEDS
from sifting.verdict.prose import Prose, name, names, prose, strong
from sifting.verdict.wording import reached, seen, sentence

if TYPE_CHECKING:
    from sifting.verdict import Verdict
    from sifting.verdict.pairing import ArmVerdict, Claim


SAME = 0.02  # share by which two times may differ and be called the same


def overall(verdict: Verdict) -> Prose:
    """What to do, and why."""
    decision = verdict.decision
    if decision.reason == "no baseline":
        return strong("Cannot be judged: there is no baseline.") + " Run one under the same budget."
    if decision.reason == "no arms" or decision.best is None:
        return strong("Cannot be judged: there is no arm that selects beside the baseline.")
    if decision.reason == "too few seeds":
        needed = f"no arm has {FEWEST_SEEDS} finished seeds in common with the baseline."
        return strong(f"Cannot be judged yet: {needed}")
    best = verdict.arm(decision.best)
    if decision.outcome == "pays":
        return _pays(verdict, best)
    if decision.outcome == "harm":
        return _harm(verdict, best)
    if decision.outcome == "cannot judge":
        said = strong("Cannot be judged yet.") + " " + _won(verdict, best, decision.claim)
        said += _among(verdict) + ", but " + _lacking(verdict)
        return said + " before giving the credit to selection."
    if decision.outcome == "open":
        return _open(verdict, best) + _harmed(verdict)
    return _no_gain(verdict, best) + _others(verdict) + _harmed(verdict)


def _among(verdict: Verdict) -> str:
    arms = verdict.decision.arms
    return f", the best of {arms} arms" if arms > 1 else ""


def _won(verdict: Verdict, arm: ArmVerdict, claim: Claim) -> Prose:
    """What an arm came to, in the respect that is claimed."""
    if claim == "time" or arm.difference is None:
        return name(arm.name) + " " + reached(verdict, arm)
    said = name(arm.name) + f" ends {gap(verdict, arm.difference)} from the baseline"
    # an autopilot's time cannot be planned, and is what it came to
    as_planned = arm.cost is None or abs(arm.cost.value - 1) < SAME
    if verdict.equal_time and as_planned:
        return said + " in the same time"
    if verdict.equal_time and arm.cost is not None:
        return said + f" in {ratio(arm.cost)} of its time"
    cost = "" if arm.cost is None else f", in {ratio(arm.cost)} of its time"
    return said + " under the same budget" + cost


def _pays(verdict: Verdict, arm: ArmVerdict) -> Prose:
    """The claim, with the control beside it, and what speaks against it."""
    against, beside = arm.pair(verdict.decision.claim)
    assert verdict.control is not None
    assert against is not None
    assert beside is not None
    control = verdict.arm(verdict.control)
    if verdict.decision.claim == "final":
        said = strong(f"Selection is worth {gap(verdict, beside)}") + ": "
    else:
        # where random-keep never got there, all its time stands for it: what is saved may be more
        gained = beside if control.time_ratio is not None else max(against, beside, key=_value)
        said = strong(f"Selection pays {percent(1 - gained.value)}") + ": "
    said += _won(verdict, arm, verdict.decision.claim) + "; " + _beside(verdict, control)
    if verdict.decision.arms > 1:
        said += f"; the best of {verdict.decision.arms} arms, {p_value(arm.p)}"
    if verdict.decision.claim == "time" and _final_behind(verdict, arm):
        assert arm.difference is not None
        return said + f". But it ends {gap(verdict, arm.difference)} from the baseline."
    if verdict.decision.claim == "final" and arm.time_ratio and arm.time_ratio.above(1):
        return said + ". But it " + reached(verdict, arm) + "."
    return said + "."


def _value(estimate: Estimate) -> float:
    return estimate.value


def _final_behind(verdict: Verdict, arm: ArmVerdict) -> bool:
    d = arm.difference
    return d is not None and (d.above(0) if verdict.lower_is_better else d.below(0))


def _beside(verdict: Verdict, control: ArmVerdict) -> Prose:
    """How random-keep did in the respect that is claimed."""
    said = name(control.name)
    if verdict.decision.claim == "final" and control.difference is not None:
        return said + f" ends {gap(verdict, control.difference)} from it"
    if control.time_ratio is not None:
        return said + f" did the same in {ratio(control.time_ratio)}"
    return said + f" reached it with {control.reached} of {count(control.runs, 'seed')}"


def _open(verdict: Verdict, best: ArmVerdict) -> Prose:
    decision = verdict.decision
    said = strong("Not settled.") + " " + _won(verdict, best, decision.claim)
    said += _among(verdict) + "; " + _beside(verdict, verdict.arm(verdict.control or ""))
    alone = "Were it the only claim, it would be ahead of both"
    said += f". {alone}; among {decision.claims} claims it is not: {p_value(best.p)}."
    return said + _seeds(verdict, "settle it")


def _seeds(verdict: Verdict, what: str) -> str:
    seeds = verdict.decision.seeds
    if verdict.decision.too_many_seeds:
        return f" If the gain is what it looks like, even {MOST_SEEDS} seeds would not {what}."
    if seeds is None:
        return ""
    return f" If the gain is what it looks like, {seeds} seeds would {what}."


def _harm(verdict: Verdict, best: ArmVerdict) -> Prose:
    decision = verdict.decision
    said = strong("Selection does harm here: leave it off.") + " "
    if decision.arms == 1:
        return said + sentence(verdict, best)
    every = "Every arm" if len(decision.harmed) == decision.arms else "Every arm that can be judged"
    return (
        said
        + f"{every} is measurably worse than the baseline; the best: "
        + sentence(verdict, best)
    )


def _no_gain(verdict: Verdict, best: ArmVerdict) -> Prose:
    decision, won = verdict.decision, _won(verdict, best, verdict.decision.claim)
    if decision.reason == "control":
        control = verdict.arm(verdict.control or "")
        said = strong("No measurable gain from selection: leave it off.") + " " + won
        said += _among(verdict) + ", but " + _matched(verdict, best, control) + "."
        if best.p_baseline >= ALPHA:
            said += f" Nor is it ahead of the baseline for certain: {p_value(best.p_baseline)}."
        return said + seen(verdict, over=control.name) + _seeds(verdict, "show it")
    if decision.reason == "unequal time":
        said = strong(
            "No gain in time is shown: leave it off, or give the arms a budget in seconds."
        )
        said += " " + won + "; " + name(best.name) + " " + reached(verdict, best)
        return said + "."
    if decision.reason == "failed runs":
        said = strong("No measurable gain: leave it off.") + " " + won
        return said + f", but {best.failed} of its {count(best.runs, 'run')} failed."
    if decision.reason == "equal seeds":
        said = strong("No measurable gain: leave it off.") + " " + won
        return said + ", but by the same with every seed, and these are too few to rule out chance."
    said = strong("No measurable gain: leave it off.") + " " + won + _among(verdict)
    if best.time_ratio is None and decision.claim == "time" and best.difference is not None:
        said += f", and ends {gap(verdict, best.difference)} from the baseline"
    said += "." + seen(verdict)
    if decision.control_ahead and verdict.control is not None:
        control = verdict.arm(verdict.control)
        said += " " + _won(verdict, control, "final" if control.time_ratio is None else "time")
        said += ", without any selection."
    return said


def _matched(verdict: Verdict, best: ArmVerdict, control: ArmVerdict) -> Prose:
    """How random-keep did, where the best arm is not measurably better, and how the two compare."""
    against = best.pair(verdict.decision.claim)[1]
    assert against is not None
    said = _beside(verdict, control) + ": compared with it, "
    if verdict.decision.claim == "final":
        return said + name(best.name) + f" ends {gap(verdict, against)}"
    return said + name(best.name) + f" took {ratio(against)} of the time"


OBSTACLES = {
    "control": "not measurably ahead of random-keep",
    "correction": "not after the correction for so many arms",
    "equal seeds": "by the same with every seed, too few to rule out chance",
    "unequal time": "under a budget that is not one of time",
    "failed runs": "with runs that failed",
    "no control": "without random-keep to compare with",
    "control unfinished": "without random-keep to compare with",
    "control early": "with a random-keep that was past the target by its first evaluation",
}


def _others(verdict: Verdict) -> Prose:
    """Arms that the table shows ahead of the baseline, and why that is not enough."""
    others: dict[str, list[Ahead]] = {}
    for ahead in verdict.decision.ahead:
        if ahead.arm != verdict.best and ahead.obstacle is not None:
            others.setdefault(OBSTACLES[ahead.obstacle], []).append(ahead)
    said = prose("")
    for why, of in others.items():
        said += f" Ahead of the baseline too, but {why}: " + names([a.arm for a in of]) + "."
    return said


def _harmed(verdict: Verdict) -> Prose:
    """The arms that do harm, in a sentence of their own."""
    harmed = verdict.decision.harmed
    return " Measurably worse than the baseline: " + names(harmed) + "." if harmed else prose("")


def _lacking(verdict: Verdict) -> Prose:
    """What is missing to compare the best arm with random-keep."""
    if verdict.control is None:
        return prose("there is no random-keep to compare with: run it")
    control = verdict.arm(verdict.control)
    if verdict.decision.reason == "control early":
        said = (
            "it is not known when " + name(control.name) + " did, since it was there by its first "
        )
        return said + "evaluation: evaluate more often, or choose a higher target,"
    said = (
        name(control.name) + f" finished {control.finished} of {count(control.runs, 'run')}, and "
    )
    return said + f"{FEWEST_SEEDS} seeds in common are needed: make it finish"
