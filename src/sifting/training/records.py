"""What the log and the summary of a run say, from the state of its sifter. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sifting.measure.clocks import charged
from sifting.measure.stats import QUALITY, TOKENS, Stats

__all__ = ["QUALITY", "clocks", "counts", "is_new", "log_record", "warnings_in"]


def clocks(own: Mapping[str, float], stats: Stats) -> dict[str, float]:
    """Seconds by what they were spent on; loading and scoring are the sifter's to tell.

    Args:
        own: the loop's own clocks.
        stats: of the sifter.
    """
    return {
        **own,
        "data": stats.seconds_loading,
        "scoring": stats.seconds_scoring,
        "auditing": stats.seconds_auditing,
        "observing": stats.seconds_observing,
    }


def counts(stats: Stats) -> dict[str, int]:
    """What a sifter is charged for."""
    found = {
        name: stats[name]
        for name in ("candidates_seen", "audits", "held_out_seen", "trial_updates", "losses_read")
    }
    # a rehearsal scores no more samples than a selection does
    return {**found, "selections": stats.selections + stats.rehearsals}


def log_record(
    kind: str,
    update: int,
    *,
    everyone: Stats,
    own: Stats,
    seconds: Mapping[str, float],
    table: Mapping[str, float] | None,
) -> dict[str, Any]:
    """What every line of the log has.

    Args:
        kind: "train" or "eval".
        update: updates made.
        everyone: stats of all ranks.
        own: of this rank, by which it is charged.
        seconds: by clock.
        table: what each operation costs, where time by it is recorded too.
    """
    record: dict[str, Any] = {
        "kind": kind,
        "step": update,
        "candidates_seen": everyone.candidates_seen,
        "samples_trained": everyone.samples_trained,
        **({name: everyone[name] for name in TOKENS} if everyone.tokens_seen else {}),
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
    }
    if table is not None:
        record["reference"] = charged(table, update, counts(own))
    if hasattr(os, "getloadavg"):
        record["load"] = round(os.getloadavg()[0], 2)
    return record


def warnings_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The library's warnings among the records of a log.

    >>> warnings_in([{"kind": "train"}, {"kind": "warning", "step": 3, "message": "too dear"}])
    ['too dear']
    """
    found = [record.get("message") for record in records if record.get("kind") == "warning"]
    return [message for message in found if isinstance(message, str)]


def is_new(message: str, said: Iterable[str]) -> bool:
    """Whether a warning says something that none before it did; other numbers in it are nothing new.

    >>> is_new("step 40: recall is 0.4", ["step 2: recall is 0.3"]), is_new("recall", ["precision"])
    (False, True)
    """
    return _without_figures(message) not in map(_without_figures, said)


def _without_figures(message: str) -> str:
    return re.sub(r"[\d.]+", "", message)
