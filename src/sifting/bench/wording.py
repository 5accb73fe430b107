"""The metrics of a task as a page says them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sifting.bench import protocol
from sifting.verdict.formats import ratio, short
from sifting.verdict.intervals import Estimate

Result = Mapping[str, Any]
NONE = "–"


def estimate(found: Mapping[str, Any] | None) -> Estimate | None:
    """An estimate from a file."""
    if found is None:
        return None
    return Estimate(*(found[name] for name in ("value", "low", "high", "p", "n")))


def better(result: Result, value: float) -> float:
    """A difference of the metric, so that more is better."""
    return -value if result["lower_is_better"] else value


def metric_shown(result: Result, value: float | None) -> str:
    """A value of the metric.

    >>> metric_shown({"percent": True}, 0.9123), metric_shown({"percent": False}, 0.01234)
    ('91.23 %', '0.01234')
    """
    if value is None:
        return NONE
    return f"{short(100 * value)} %" if result["percent"] else f"{value:.4g}"


def gap(result: Result, found: Mapping[str, Any] | None) -> str:
    """A difference of the metric with its interval.

    >>> gap({"percent": True}, {"value": 0.01, "low": -0.002, "high": 0.022, "p": 0.1, "n": 5})
    '+1.00 points (−0.20 to +2.20)'
    """
    if found is None:
        return NONE
    scale, unit, digits = (100.0, " points", 2) if result["percent"] else (1.0, "", 4)
    value, low, high = (
        None if found[key] is None else f"{scale * found[key]:+.{digits}f}".replace("-", "−")
        for key in ("value", "low", "high")
    )
    ends = "" if low is None else f" ({low} to {high})"
    return f"{value}{unit}{ends}"


def measured_of(result: Result, arm: str) -> Mapping[str, Any] | None:
    """What is known of an arm, or of a baseline of another length."""
    known: Mapping[str, Any] | None = result["arms"].get(arm)
    return result.get("lengths", {}).get(arm) if known is None else known


def planned_seconds(result: Result) -> float:
    """How long all runs of a task take by its table of costs, those that choose learning rates too.

    >>> plan = {"baseline": {"seconds": 10.0, "updates": 9}, "memory": {"seconds": 8.0, "updates": 8}}
    >>> arms, tried = {"baseline": {"runs": 2}, "memory": {"runs": 2}}, {"memory": {"0.1": 0.9, "0.3": 0.8}}
    >>> planned_seconds({"plan": plan, "arms": arms, "tried": tried, "tuned_at": 4})
    44.0
    """
    plan = result["plan"]
    compared = sum(
        of_arm["seconds"] * (measured_of(result, arm) or {"runs": 0})["runs"]
        for arm, of_arm in plan.items()
    )
    tuned_at = result.get("tuned_at") or result["asked"]["updates"]
    tuned = sum(
        len(rates) * tuned_at * plan[arm]["seconds"] / plan[arm]["updates"]
        for arm, rates in result["tried"].items()
        if arm in plan
    )
    return float(compared + tuned)


def time_cell(result: Result, arm: str) -> str:
    """The time until an arm was where the baseline ends, over the baseline's."""
    found = measured_of(result, arm)
    if found is None:
        return NONE
    measured = estimate(found["time_ratio"])
    if measured is None:
        return f"reached by {found['reached']} of {found['runs']}"
    return ratio(measured)


def rank(result: Result, arm: str) -> tuple[bool, float]:
    """By what arms are ordered: time where all seeds got there, else how far they are behind."""
    found = result["arms"][arm]
    if found["time_ratio"] is not None:
        return False, float(found["time_ratio"]["value"])
    gap = found["difference"]
    return True, float("inf") if gap is None else -better(result, gap["value"])


def best_of(result: Result, arms: tuple[str, ...]) -> str | None:
    """The best of some arms that were run."""
    there = [arm for arm in arms if arm in result["arms"]]
    return min(there, key=lambda arm: rank(result, arm), default=None)


def worst_harm(result: Result) -> str:
    """The arm that is furthest behind the baseline beyond its interval, and how far."""
    harms = []
    for arm, found in result["arms"].items():
        known = estimate(found["difference"])
        if known is None or found["role"] == "baseline":
            continue
        behind = known.above(0.0) if result["lower_is_better"] else known.below(0.0)
        if behind:
            harms.append((better(result, known.value), arm))
    if not harms:
        return "none measurable"
    arm = min(harms)[1]
    return f"`{arm}` {gap(result, result['arms'][arm]['difference'])}"


def cut_short(result: Result) -> str:
    """What a baseline that was cut short says of a saving, in words; nothing where none was run.

    >>> level = {"value": -0.1, "low": -0.9, "high": 0.7, "p": 0.7, "n": 5}
    >>> known = {"difference": level, "time_ratio": None, "reached": 1, "runs": 5}
    >>> result = {"percent": True, "lower_is_better": False, "arms": {}, "lengths": {"baseline-75": known}}
    >>> cut_short(result).split(": ")[1]
    'ending sooner without selection costs nothing measurable here, so compare a saving with that.'
    """
    lengths = result.get("lengths", {})
    arm = next((arm for arm in protocol.SHORTER if arm in lengths), None)
    known = lengths.get(arm)
    change = None if known is None else estimate(known["difference"])
    if arm is None or change is None:
        return ""
    costs = change.above(0.0) if result["lower_is_better"] else change.below(0.0)
    when = (
        f"got to where it ends in {time_cell(result, arm)} of its time"
        if known["time_ratio"] is not None
        else f"got there with {known['reached']} of {known['runs']} seeds"
    )
    said = f"`{arm}`, the baseline cut short, {when} and ends {gap(result, known['difference'])} from it: "
    if costs:
        return said + "ending sooner without selection makes the result measurably worse."
    return (
        said
        + "ending sooner without selection costs nothing measurable here, so compare a saving with that."
    )


def row(name: str, result: Result) -> list[str]:
    """A task's line in the table of all."""
    fixed, paper = best_of(result, protocol.FIXED), best_of(result, protocol.PAPER)
    auto = best_of(result, (protocol.AUTO,))
    base = result["arms"][protocol.BASELINE]
    return [
        f"[{name}](bench/{name}.md)",
        f"{metric_shown(result, base['mean'])}",
        NONE if auto is None else time_cell(result, auto),
        NONE if fixed is None else f"`{fixed}` {time_cell(result, fixed)}",
        NONE if paper is None else f"`{paper}` {time_cell(result, paper)}",
        worst_harm(result),
        str(base["finished"]),
    ]


COLUMNS = [
    "task",
    "baseline ends at",
    "autopilot",
    "best fixed arm",
    "the paper's arm",
    "worst harm",
    "seeds",
]


def worth_cell(result: Result, arm: str) -> str:
    """What an arm is worth by baselines of other lengths."""
    found = result["worth"].get(arm)
    if found is None:
        return NONE
    known = estimate(found)
    assert known is not None
    edge = f", {found['at_the_end']} of {found['n']} at the end of the scale"
    return ratio(known) + (edge if found["at_the_end"] else "")


def arm_rows(result: Result) -> list[list[str]]:
    """A line for each arm of a task."""
    lines = []
    for arm in [*result["arms"], *sorted(set(result["finals"]) - set(result["arms"]))]:
        known = measured_of(result, arm)
        finals = list(result["finals"].get(arm, {}).values())
        mean = sum(finals) / len(finals) if finals else None
        rate = protocol.with_baseline(result["rates"], (arm,)).get(arm)
        lines.append(
            [
                f"`{arm}`",
                metric_shown(result, mean),
                NONE if known is None else gap(result, known["difference"]),
                NONE if known is None or arm == protocol.BASELINE else time_cell(result, arm),
                worth_cell(result, arm),
                NONE if known is None or known["cost"] is None else f"{known['cost']['value']:.2f}",
                f"{result['plan'][arm]['made'] or result['plan'][arm]['updates']:,.0f}",
                NONE if rate is None else f"{rate:g}",
                str(len(finals)),
            ]
        )
    return lines


ARM_COLUMNS = [
    "arm",
    "ends at",
    "to the baseline",
    "time to the baseline's end ÷ baseline",
    "÷ a baseline that ends as well",
    "time in all ÷ baseline",
    "updates",
    "learning rate",
    "seeds",
]
SHOWN = {
    "rho_approx": "ρ_approx",
    "kept_loss": "μ, the share of the loss that is kept",
    "agreement": "agreement of gradients",
    "learning_share": "learning share ν",
    "recall": "recall",
}


def quality_rows(result: Result) -> list[list[str]]:
    """What the audits said, in four parts of the run."""
    lines = []
    for arm, found in result["quality"].items():
        for key, words in SHOWN.items():
            values = found.get(key)
            if values and any(value is not None for value in values):
                cells = [NONE if value is None else f"{value:.2f}" for value in values]
                lines.append([f"`{arm}`", words, *cells])
    return lines
