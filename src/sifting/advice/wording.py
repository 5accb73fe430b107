"""Advice as a table by phase, and a line for each trial. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sifting.advice.result import Advice, Phase, Row
from sifting.autopilot.saving import Saving

COLUMNS = ("phase", "keep", "saves", "learning share", "μ", "agreement", "cost")
FEW = 4  # phases that a table shows


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
