"""A verdict in words: figures and sentences. Nothing here computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sifting.verdict.intervals import FEWEST_SEEDS, Estimate

if TYPE_CHECKING:
    from sifting.verdict import Verdict
    from sifting.verdict.pairing import ArmVerdict

ALPHA = 0.05


def short(value: float, digits: int = 2) -> str:
    """A number without trailing zeros.

    >>> short(78.0), short(77.964), short(-0.001)
    ('78', '77.96', '0')
    """
    shown = f"{value:.{digits}f}"
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def figure(verdict: Verdict, value: float) -> str:
    """A figure of merit with its unit."""
    if verdict.percent:
        return f"{short(100 * value)} %"
    return f"{verdict.metric} {value:.4g}"


def gap(verdict: Verdict, estimate: Estimate) -> str:
    """A difference of figures of merit with its interval."""
    scale, unit = (100.0, " points") if verdict.percent else (1.0, "")
    value, ends = estimate.value * scale, (estimate.low, estimate.high)
    digits = 2 if verdict.percent else 4
    if ends[0] is None or ends[1] is None:
        return f"{_signed(value, digits)}{unit}"
    low, high = (_signed(end * scale, digits) for end in ends if end is not None)
    return f"{_signed(value, digits)}{unit} ({low} to {high})"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval; digits enough to see on which side of 1 it lies.

    >>> ratio(Estimate(0.91, 0.86, 0.97, 0.01, 5)), ratio(Estimate(0.99, 0.97, 0.998, 0.01, 5))
    ('0.91 (0.86–0.97)', '0.990 (0.970–0.998)')
    """
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    ends = (estimate.low, estimate.high)
    digits = next((d for d in (2, 3) if all(abs(e - 1) > 0.5 * 10**-d for e in ends)), 4)
    if min(ends) < 1 < max(ends) or ends == (1.0, 1.0):
        digits = 2
    return f"{estimate.value:.{digits}f} ({ends[0]:.{digits}f}–{ends[1]:.{digits}f})"


def percent(share: float) -> str:
    """A share in per cent, whole where that says enough.

    >>> percent(0.083), percent(0.004)
    ('8 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def duration(seconds: float) -> str:
    """Seconds in the unit people say them in.

    >>> duration(0.5), duration(42.0), duration(7300.0)
    ('0.5 s', '42 s', '2.03 h')
    """
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def judged(arm: ArmVerdict) -> bool:
    """Whether the arm has enough seeds in common with the baseline."""
    return arm.difference is not None and arm.difference.judged


def ahead(verdict: Verdict, arm: ArmVerdict) -> bool:
    """Whether its final figure is measurably better than the baseline's."""
    d = arm.difference
    return d is not None and (d.below(0) if verdict.lower_is_better else d.above(0))


def behind(verdict: Verdict, arm: ArmVerdict) -> bool:
    """Whether its final figure is measurably worse than the baseline's."""
    d = arm.difference
    return d is not None and (d.above(0) if verdict.lower_is_better else d.below(0))


def worse(verdict: Verdict, arm: ArmVerdict) -> bool:
    """Whether the arm is measurably slower to the target, or measurably worse at the budget."""
    slower = arm.time_ratio is not None and arm.time_ratio.above(1)
    return not ahead(verdict, arm) and (slower or behind(verdict, arm))


def promising(verdict: Verdict, arm: ArmVerdict) -> bool:
    """Whether the arm, had it been the only one, would be better than baseline and control."""
    if arm.claim == "final":
        pairs = [arm.difference, arm.control_difference]
        lower, null = verdict.lower_is_better, 0.0
    else:
        pairs, lower, null = [arm.time_ratio, arm.over_control], True, 1.0
    return all(
        e is not None and e.p is not None and e.p < ALPHA and (e.value < null) == lower
        for e in pairs
    )


def reached(verdict: Verdict, arm: ArmVerdict) -> str:
    """How the arm got to the target: "reached 78 % in 0.91 (0.86–0.97) of the baseline's time"."""
    if verdict.target is None:
        return "has no target to reach"
    target = figure(verdict, verdict.target)
    if arm.time_ratio is not None:
        return f"reached {target} in {ratio(arm.time_ratio)} of the baseline's time"
    if arm.reached == arm.finished == arm.runs - arm.failed and not arm.failed:
        return f"reached {target} with all of its {arm.runs} seeds"
    if not arm.reached:
        return f"did not reach {target} with any of its {arm.runs} seeds"
    return f"reached {target} with {arm.reached} of {arm.runs} seeds"


def final(verdict: Verdict, arm: ArmVerdict) -> str:
    """The final figure beside the baseline's."""
    assert arm.difference is not None
    shown = gap(verdict, arm.difference)
    if ahead(verdict, arm):
        return f"at the budget it is ahead of the baseline, {shown}"
    if behind(verdict, arm):
        return f"at the budget it is behind the baseline, {shown}"
    return f"at the budget there is no measurable difference to the baseline, {shown}"


def sentence(verdict: Verdict, arm: ArmVerdict) -> str:
    """One plain sentence on an arm."""
    ended = f"{arm.finished} of {arm.runs} runs finished" if arm.finished < arm.runs else ""
    ended += f", {arm.failed} failed" if arm.failed else ""
    if arm.mean is None:
        return f"{arm.name}: cannot be judged, {ended or 'its runs have no figure of merit'}."
    if arm.role == "baseline":
        spread = "" if arm.std is None else f", standard deviation {_spread(verdict, arm.std)}"
        seeds = f"{arm.finished} seed{'s' * (arm.finished != 1)}"
        time = "" if arm.time is None else f"; {duration(arm.time)} to the target"
        said = f"{figure(verdict, arm.mean)} at the budget over {seeds}{spread}{time}"
        return f"{arm.name}: {said}{f' ({ended})' if ended else ''}."
    if not judged(arm):
        n = 0 if arm.difference is None else arm.difference.n
        return (
            f"{arm.name}: cannot be judged, {n} seed{'s' * (n != 1)} in common with the baseline; "
            f"{FEWEST_SEEDS} are needed."
        )
    parts = [f"{arm.name} {reached(verdict, arm)}"]
    if arm.samples_ratio is not None:
        parts[0] += f" and {ratio(arm.samples_ratio)} of its samples"
    parts.append(final(verdict, arm))
    return "; ".join(parts) + (f" ({ended})" if ended else "") + "."


def _spread(verdict: Verdict, value: float) -> str:
    return f"{100 * value:.2f} points" if verdict.percent else f"{value:.3g}"


def overall(verdict: Verdict) -> str:
    """What to do, in one sentence."""
    if verdict.baseline is None:
        return "Cannot be judged: there is no baseline. Run one under the same budget."
    if verdict.best is None:
        return "Cannot be judged: there is no arm that selects beside the baseline."
    best = verdict.arm(verdict.best)
    arms = [arm for arm in verdict.arms if arm.role == "arm"]
    picked = f" (the best of {len(arms)} arms; {_p(best.p)})" if len(arms) > 1 else ""
    if verdict.outcome == "pays":
        return f"{_paid(verdict, best)}{picked}.{_but(verdict, best)}"
    if not any(judged(arm) for arm in arms):
        return f"Cannot be judged yet: no arm has {FEWEST_SEEDS} finished seeds in common with the baseline."
    if verdict.outcome == "cannot judge":
        return (
            f"{best.name} {_won(verdict, best)}, but {_lacking(verdict, best)} before giving the credit to "
            "selection."
        )
    if verdict.outcome == "open":
        among = f", the best of {len(arms)} arms" if len(arms) > 1 else ""
        beside = f"; {verdict.control} {_beside(verdict, verdict.arm(verdict.control or ''))}"
        return (
            f"Not settled: {best.name} {_won(verdict, best)}{among}{beside}; but {_p(best.p)} for the claim "
            f"that selection pays. Add seeds before you rely on it.{_bad(verdict, best)}"
        )
    if verdict.outcome == "harm":
        many = "every arm is" if len(arms) > 1 else "it is"
        return f"Selection does harm here: {many} measurably worse than the baseline. Leave it off."
    if best.p_baseline < ALPHA:
        return (
            f"No measurable gain from selection: leave it off. {best.name} {_won(verdict, best)}, but "
            f"{_matched(verdict, best)}: what it gains is not due to the choice of samples."
        )
    among = f", the best of {len(arms)} arms" if len(arms) > 1 else ""
    return (
        f"No measurable gain: leave it off. {best.name} {reached(verdict, best)}{among}."
        f"{_bad(verdict, best)}"
    )


def _bad(verdict: Verdict, best: ArmVerdict) -> str:
    """The arms that do harm, in a sentence of their own."""
    arms = [arm for arm in verdict.arms if arm.role == "arm" and arm is not best]
    bad = " and ".join(arm.name for arm in arms if worse(verdict, arm))
    return f" Measurably worse than the baseline: {bad}." if bad else ""


def _beside(verdict: Verdict, control: ArmVerdict) -> str:
    if control.time_ratio is not None:
        return f"took {ratio(control.time_ratio)}"
    return f"reached it with {control.reached} of {control.runs} seeds"


def _lacking(verdict: Verdict, best: ArmVerdict) -> str:
    """What is missing to compare the best arm with random-keep."""
    if verdict.control is None:
        return "there is no random-keep to compare with: run it"
    control = verdict.arm(verdict.control)
    if best.over_control is None and best.claim == "time" and control.finished >= FEWEST_SEEDS:
        return (
            f"when {control.name} did is not known, as it was there by its first evaluation: evaluate more "
            "often, or choose a higher target,"
        )
    return (
        f"{control.name} finished {control.finished} of {control.runs} runs, and {FEWEST_SEEDS} seeds in "
        "common are needed: make it finish"
    )


def _matched(verdict: Verdict, best: ArmVerdict) -> str:
    """How random-keep did, where the best arm is not measurably better."""
    control = verdict.arm(verdict.control or "")
    if best.claim == "final" and control.difference is not None:
        return f"{control.name} ends {gap(verdict, control.difference)} from it"
    if control.time_ratio is not None:
        return f"{control.name} {reached(verdict, control)}"
    return f"in time it is not measurably ahead of {control.name}"


def _p(value: float) -> str:
    shown = "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
    return f"{shown} after Holm's correction"


def _won(verdict: Verdict, arm: ArmVerdict) -> str:
    if arm.claim == "final" and arm.difference is not None:
        return f"ends {gap(verdict, arm.difference)} from the baseline in the same time"
    return reached(verdict, arm)


def _paid(verdict: Verdict, arm: ArmVerdict) -> str:
    """The claim, with the control beside it."""
    control = verdict.arm(verdict.control or "")
    if arm.claim == "final":
        assert arm.difference is not None
        assert arm.control_difference is not None
        beside = (
            "" if control.difference is None else f"; {control.name} {_won_final(verdict, control)}"
        )
        return (
            f"{arm.name} {_won(verdict, arm)}{beside}: selection is worth "
            f"{gap(verdict, arm.control_difference)}"
        )
    assert arm.time_ratio is not None
    assert arm.over_control is not None
    if control.time_ratio is not None:
        beside = f"{control.name} did the same in {ratio(control.time_ratio)}"
        gained = 1 - arm.over_control.value
    else:
        beside = f"{control.name} reached it with {control.reached} of {control.runs} seeds"
        gained = 1 - max(arm.over_control.value, arm.time_ratio.value)
    return f"{arm.name} {reached(verdict, arm)}; {beside}: selection pays {percent(gained)}"


def _won_final(verdict: Verdict, arm: ArmVerdict) -> str:
    assert arm.difference is not None
    return gap(verdict, arm.difference)


def _but(verdict: Verdict, arm: ArmVerdict) -> str:
    """What speaks against the arm that won."""
    if arm.claim == "time" and behind(verdict, arm):
        assert arm.difference is not None
        return f" But it ends {gap(verdict, arm.difference)} from the baseline at the budget."
    if arm.claim == "final" and arm.time_ratio is not None and arm.time_ratio.above(1):
        return f" But it {reached(verdict, arm)}."
    return ""


def notes(verdict: Verdict, *, coarse: list[str]) -> list[str]:
    """What the reader should know of the figures.

    Args:
        coarse: runs that were past the target at their first evaluation.
    """
    found = []
    if verdict.axis == "reference":
        found.append(
            "Time is reference time: each operation's calibrated cost times how often it was done, so that "
            "no neighbour on the machine disturbs it. Evaluations are left out."
        )
    else:
        found.append(
            "Time is measured training time, evaluations left out; other work on the machine disturbs it."
        )
    found.append(
        "Intervals are 95 %, by Student's t over seeds paired with the baseline's; those of ratios are taken "
        "on their logarithms."
    )
    if verdict.control is None:
        found.append("There is no random-keep arm: a gain could not be put down to selection.")
    left = [arm for arm in verdict.arms if arm.finished < arm.runs]
    if left:
        shown = ", ".join(f"{arm.name} ({arm.finished} of {arm.runs})" for arm in left)
        found.append(f"Not all runs finished, and those that did not are not judged: {shown}.")
    if coarse:
        found.append(
            f"{len(coarse)} run{'s' * (len(coarse) > 1)} had passed the target by the first evaluation and "
            "count with all the time until then; no ratio to the time of such runs is given. Evaluate more "
            "often, or choose a higher target."
        )
    return found
