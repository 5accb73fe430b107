"""What an autopilot decided, from a run's log: decisions and trials, as far as they can be read. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sifting.report.reading import Entry
from sifting.report.sanitize import clip
from sifting.report.tables import Table

RATIO = 2  # at which shares, kept loss and agreement are shown
HIGHEST = 64  # ratio that is shown


@dataclass(frozen=True)
class Decided:
    """A decision of a run.

    Attributes:
        update: after which it was made.
        option: what is kept from then on, in words.
        ratio: candidates for each that is trained.
        changed: whether that is something else than before.
        why: in words.
        share, kept_loss, agreement: of the scorer in use, or of the first where none is; not a number
            where they are not known.
    """

    update: float
    option: str
    ratio: float
    changed: bool
    why: str
    share: float
    kept_loss: float
    agreement: float


@dataclass(frozen=True)
class Tried:
    """A trial of a run: how far an option ended from plain training on held-out samples."""

    update: float
    option: str
    ratio: float
    difference: float
    error: float
    harms: bool


def read_decisions(entry: Entry) -> tuple[list[Decided], list[Tried]]:
    """The decisions and trials of a run; what is damaged is left out."""
    decided, tried = [], []
    for record in entry.run.metrics:
        kind, update, ratio = (
            record.get("kind"),
            _number(record.get("step")),
            _number(record.get("ratio")),
        )
        if kind not in ("decision", "trial") or not (update >= 0 and 1 <= ratio <= HIGHEST):
            continue
        scorer = clip(str(record.get("scorer", "")), 40)
        option = "everything" if ratio == 1 else f"1 in {ratio:g} by {scorer}"
        if kind == "trial":
            difference, error = (_number(record.get(name)) for name in ("difference", "error"))
            harms = record.get("harms") is True
            tried.append(Tried(update, option, ratio, difference, error, harms))
            continue
        judged = _judged(record.get("judged"), scorer)
        values = [_number(judged.get(name)) for name in ("share", "kept_loss", "agreement")]
        why = clip(str(record.get("why", "")), 200)
        decided.append(Decided(update, option, ratio, record.get("changed") is True, why, *values))
    return decided, tried


def _judged(found: Any, scorer: str) -> Mapping[str, Any]:
    """What was known of the scorer in use, or of the first, at the lowest ratio."""
    known = [
        one
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, Mapping) and one.get("ratio") == RATIO
    ]
    own = [one for one in known if one.get("scorer") == scorer]
    return (own or known or [{}])[0]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def decision_table(name: str, decided: list[Decided], tried: list[Tried]) -> Table:
    """Decisions and trials in the order in which they were made."""
    rows: list[tuple[float, list[str]]] = []
    for one in decided:
        shares = [_shown(value) for value in (one.share, one.kept_loss, one.agreement)]
        what = "decision" if one.changed else "look"
        rows.append((one.update, [f"{one.update:g}", what, one.option, *shares, one.why]))
    for trial in tried:
        found = (
            f"{trial.difference:+.4f} ± {trial.error:.4f} nats from plain" + ": harm" * trial.harms
        )
        rows.append(
            (trial.update, [f"{trial.update:g}", "trial", trial.option, "–", "–", "–", found])
        )
    rows.sort(key=lambda row: row[0])
    return Table(
        f"What the autopilot of {name} looked at, tried and decided",
        ["updates", "what", "keeps", "learning share", "μ", "agreement", "why"],
        [row for _, row in rows],
    )


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
