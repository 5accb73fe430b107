"""What a run's time is spent on, and what it is charged by a table of costs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# what a sifter counts, by the operation that is done as often
COUNTED = {
    "data": "candidates_seen",
    "scoring": "selections",
    "auditing": "audits",
    "looking": "held_out_seen",
    "trials": "trial_updates",
    "observing": "losses_read",
}
UPDATE = ("forward", "backward", "optimizer")  # once an update, and the same work for every arm
OPERATIONS = (*COUNTED, *UPDATE)
CLOCKS = (*OPERATIONS, "evaluation")


def repetitions(updates: int, counts: Mapping[str, float]) -> dict[str, float]:
    """How often each operation was done.

    >>> repetitions(3, {"candidates_seen": 100, "selections": 2})["scoring"]
    2

    Args:
        updates: that were made.
        counts: candidates_seen, selections, audits, held_out_seen, trial_updates and losses_read of the
            sifter; 0 where one is missing.
    """
    counted = {name: counts.get(count, 0) for name, count in COUNTED.items()}
    return {**counted, **dict.fromkeys(UPDATE, updates)}


def charged(
    table: Mapping[str, float], updates: int, counts: Mapping[str, float]
) -> dict[str, float]:
    """Seconds by a table of what each operation costs, for what was done so far.

    >>> table = {"data": 0.01, "scoring": 2.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    >>> charged(table, 3, {"candidates_seen": 100, "selections": 2, "audits": 0})
    {'data': 1.0, 'scoring': 4.0, 'auditing': 0.0, 'looking': 0.0, 'trials': 0.0,
     'observing': 0.0, 'forward': 3.0, 'backward': 6.0, 'optimizer': 1.5}

    Args:
        table: seconds of loading one candidate, of scoring a batch, of an audit, of looking at a
            held-out sample, of a trial's update, of reading the losses of a step, and of an update's
            forward, backward and optimizer step.
        updates, counts: see `repetitions`.
    """
    done = repetitions(updates, counts)
    return {name: round(table.get(name, 0.0) * done[name], 6) for name in OPERATIONS}


def of_update(table: Mapping[str, float]) -> float:
    """Seconds of an update's forward, backward and optimizer step by a table of costs.

    >>> of_update({"forward": 1.0, "backward": 2.0, "scoring": 9.0})
    3.0
    """
    return sum(table.get(name, 0.0) for name in UPDATE)
