"""Advice in words: a table by phase, and one sentence to act on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sifting.advice.result import Advice, Phase, Row
from sifting.autopilot.saving import Saving

COLUMNS = ("phase", "keep", "saves", "learning share", "μ", "agreement", "cost")
FEW = 4  # phases that a table shows


def sentence(advice: Advice) -> str:
    """What to do, and what to expect of it."""
    if not advice.phases:
        return "Nothing can be said: the run was too short, or no scorer fits the model."
    if not advice.pays:
        why = advice.phases[-1].why
        if advice.auto.value > 0:
            why = f"what might be saved, {advice.auto}, is within its error"
        return f"Leave it off: {why}. Plan {advice.updates} updates.{_chance(advice)}"
    low, high = (round(advice.updates * (1 - x)) for x in (advice.auto.high, advice.auto.low))
    return (
        f"Train with Sifter(model, trial=Trial(held_out=…, updates={advice.updates}, schedule=…)): expect it to "
        f"end with the result of {advice.updates} plain updates in the time of about {advice.planned} ({low} to "
        f"{high}), a saving of {advice.auto}{_begun(advice)}.{_chance(advice)}"
    )


def _begun(advice: Advice) -> str:
    """What it would keep, from when on, and why."""
    for phase in advice.phases:
        if phase.speedup.value > 1:
            return f"; it would keep {phase.option} from {phase.last:.0%} of the run on, since {phase.why}"
    return ""


def _chance(advice: Advice) -> str:
    """How much hangs on the held-out samples that it can afford to look at."""
    if advice.chance is None or advice.chance in (0.0, 1.0):
        return ""
    count = max(len(phase.others) for phase in advice.phases)
    return (
        f" Much hangs on which held-out samples it looks at: with {round(advice.chance * count)} of {count} sets "
        "of as many as it can afford it would select."
    )


def shown(phases: tuple[Phase, ...]) -> list[Phase]:
    """Some phases, spread over the run, the last among them; those without any number left out."""
    known = [phase for phase in phases if any(_known(row) for row in phase.rows)]
    if len(known) <= FEW:
        return known
    return [known[round(i * (len(known) - 1) / (FEW - 1))] for i in range(FEW)]


def _known(row: Row) -> bool:
    return row.kept_loss is not None or row.speedup is not None


def rows(advice: Advice) -> list[list[str]]:
    """The table's rows, phase by phase."""
    found = []
    for phase in shown(advice.phases):
        for row in filter(_known, phase.rows):
            share = "–" if row.share is None else f"{row.share:.0%} ± {row.error:.0%}"
            found.append(
                [
                    f"{phase.first:.0%} to {phase.last:.0%}",
                    f"1 in {row.ratio} by {row.scorer}",
                    "–" if row.saving is None else str(row.saving),
                    share,
                    "–" if row.kept_loss is None else f"{row.kept_loss:.2f}",
                    "–" if row.agreement is None else f"{row.agreement:.2f}",
                    f"{row.cost:.1%}",
                ]
            )
    return found


def trial_lines(advice: Advice) -> list[str]:
    """A line for each trial."""
    return [
        f"trial after {trial['batch']} batches, {trial['draws']} × {trial['updates']} updates each way: 1 in "
        f"{trial['ratio']} by {trial['scorer']} ends {trial['difference']:+.4f} ± {trial['error']:.4f} nats from "
        f"plain ({trial['loss']:.4f}){_worth(trial)}"
        for trial in advice.trials
    ]


def _worth(trial: Mapping[str, Any]) -> str:
    """What a trial's difference means: harm, or time saved."""
    if trial["harms"]:
        return ": harm"
    found = trial.get("saving")
    return "" if found is None else f": {Saving(**found)} there"
