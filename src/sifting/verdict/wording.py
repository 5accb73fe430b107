"""A verdict in words: a sentence for each arm, and notes. Nothing here decides or computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sifting.verdict.formats import (
    count,
    duration,
    gap,
    percent,
    points,
    ratio,
    shown_metric,
    spread,
)
from sifting.verdict.intervals import FEWEST_SEEDS
from sifting.verdict.prose import Prose, name, prose

if TYPE_CHECKING:
    from sifting.verdict import Verdict
    from sifting.verdict.pairing import ArmVerdict


def sentence(verdict: Verdict, arm: ArmVerdict) -> Prose:
    """One plain sentence on an arm."""
    ended = f"{arm.finished} of {arm.runs} runs finished" if arm.finished < arm.runs else ""
    ended += f", {arm.failed} failed" if arm.failed else ""
    if arm.mean is None:
        why = ended or "its runs have no metric"
        return name(arm.name) + f" cannot be judged: {why}."
    if arm.role == "baseline":
        deviation = "" if arm.std is None else f", standard deviation {spread(verdict, arm.std)}"
        time = "" if arm.time is None else f"; {duration(arm.time)} to the target"
        said = name(arm.name) + ": " + shown_metric(verdict, arm.mean)
        said += f" at the budget over {count(arm.finished, 'seed')}{deviation}{time}"
        return said + (f" ({ended})." if ended else ".")
    if not arm.judged:
        n = 0 if arm.difference is None else arm.difference.n
        return name(arm.name) + (
            f" cannot be judged: it has {count(n, 'seed')} in common with the baseline, and "
            f"{FEWEST_SEEDS} are needed."
        )
    said = name(arm.name) + " " + reached(verdict, arm)
    if arm.samples_ratio is not None:
        said += f" and {ratio(arm.samples_ratio)} of its samples"
    return said + "; " + _final(verdict, arm) + (f" ({ended})." if ended else ".")


def reached(verdict: Verdict, arm: ArmVerdict) -> Prose:
    """How the arm got to the target: "reached 78 % in 0.91 (0.86–0.97) of the baseline's time"."""
    if verdict.target is None:
        return prose("has no target to reach")
    target = shown_metric(verdict, verdict.target)
    if arm.time_ratio is not None:
        return "reached " + target + f" in {ratio(arm.time_ratio)} of the baseline's time"
    if arm.reached == arm.runs and not arm.failed:
        return "reached " + target + f" with all of its {count(arm.runs, 'seed')}"
    if not arm.reached:
        return "did not reach " + target + f" with any of its {count(arm.runs, 'seed')}"
    return "reached " + target + f" with {arm.reached} of {count(arm.runs, 'seed')}"


def _final(verdict: Verdict, arm: ArmVerdict) -> str:
    assert arm.difference is not None
    shown = gap(verdict, arm.difference)
    if arm.difference.alike and arm.difference.value:
        few = "too few seeds to rule out chance where they show no spread"
        return f"at the budget it ends {shown} from the baseline, {few}"
    if not arm.difference.measurable:
        return f"at the budget there is no measurable difference to the baseline, {shown}"
    side = "ahead of" if (arm.difference.value < 0) == verdict.lower_is_better else "behind"
    return f"at the budget it is {side} the baseline, {shown}"


def seen(verdict: Verdict, *, over: str | None = None) -> Prose:
    """What the comparison could have seen, in the respects in which a claim can be made."""
    decision, found = verdict.decision, []
    if decision.detectable_time is not None and decision.claim == "time":
        found.append(f"{percent(decision.detectable_time)} of the time")
    if decision.detectable_final is not None and (
        verdict.equal_time or decision.detectable_time is None
    ):
        found.append(points(verdict, decision.detectable_final))
    if not found:
        return prose("")
    beside = prose("") if over is None else " over " + name(over)
    return f" The comparison would have seen a gain of {' or '.join(found)}" + beside + "."


def notes(verdict: Verdict) -> list[Prose]:
    """What the reader should know of the metrics."""
    found = [
        "Time is reference time: each operation's calibrated cost times how often it was done, so that "
        "other work on the machine does not disturb it. Evaluations are left out."
        if verdict.axis == "reference"
        else "Time is measured training time, evaluations left out; other work on the machine disturbs it.",
        "Intervals are 95 %, by Student's t over seeds paired with the baseline's; those of ratios are taken "
        "on their logarithms.",
    ]
    said = [prose(note) for note in found]
    if verdict.decision.outcome == "no gain" and seen(verdict):
        said.append(
            prose(
                "A gain of the size that would have been seen is found four times in five, if seeds differ "
                "as much as they did here."
            )
        )
    if verdict.control is None:
        said.append(
            prose("There is no random-keep arm: a gain could not be attributed to selection.")
        )
    left = [arm for arm in verdict.arms if arm.finished < arm.runs]
    if left:
        shown = prose("Not all runs finished, and those that did not are not judged: ")
        for i, arm in enumerate(left):
            shown += (", " if i else "") + name(arm.name) + f" ({arm.finished} of {arm.runs})"
        said.append(shown + ".")
    if verdict.early:
        said.append(
            prose(
                f"{count(verdict.early, 'run')} had passed the target by the first evaluation and count with "
                "all the time until then; no ratio to the time of such runs is given. Evaluate more often, "
                "or choose a higher target."
            )
        )
    return said
