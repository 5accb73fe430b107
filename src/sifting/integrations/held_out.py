"""What a trainer knows of its run, told to an autopilot: held-out samples, how long it is, its step."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from sifting.autopilot.trial import Trial
from sifting.sifter import Sifter


def tell(sifter: Sifter, trial: Trial, *, before: Trial | None = None) -> None:
    """Give an autopilot what a trainer knows; a `Trial` of the user's own goes before.

    Args:
        sifter: with or without an autopilot.
        trial: held-out batches, how many batches the run trains, and its step where that is known.
        before: what it was told of this trainer already.
    """
    pilot = sifter.pilot
    if pilot is None or pilot.held_out.trial not in (Trial(), before):
        return
    pilot.tell(trial)


@contextmanager
def untouched(owner: object) -> Iterator[None]:
    """While open, an object may change its counts, figures and lists of them; they are put back.

    >>> from types import SimpleNamespace
    >>> trainer = SimpleNamespace(tokens=5, figures={"train": [0.5]})
    >>> with untouched(trainer):
    ...     trainer.tokens += 1
    ...     trainer.figures["train"].append(0.7)
    >>> trainer
    namespace(tokens=5, figures={'train': [0.5]})

    Trainers keep figures of every loss that they compute. What an attribute holds beside plain values
    is not looked into.
    """
    kept = {name: copy.deepcopy(v) for name, v in vars(owner).items() if _is_plain(v)}
    try:
        yield
    finally:
        vars(owner).update(kept)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(member) for member in (*value, *value.values()))
    if isinstance(value, list | tuple | set | deque):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


class EvaluationBatches:
    """Batches of a Hugging Face Trainer's evaluation data, read when they are asked for.

    By a loader beside the Trainer's own: one that Accelerate prepared, and that is left before its end,
    would pass for the one that is trained.

    Args:
        trainer: with an `eval_dataset` of samples.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    @staticmethod
    def of(trainer: Any) -> EvaluationBatches | None:
        """Of a trainer; None where it has no evaluation data, several, or a stream of it."""
        data = trainer.eval_dataset
        several = data is None or isinstance(data, dict | str | IterableDataset)
        known = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        return EvaluationBatches(trainer) if known and not several else None

    def __iter__(self) -> Iterator[Any]:
        trainer, data, collate = self.trainer, self.trainer.eval_dataset, self.trainer.data_collator
        if hasattr(data, "column_names"):
            data = trainer._remove_unused_columns(data, description="evaluation")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="evaluation")
        yield from DataLoader(data, trainer.args.eval_batch_size, collate_fn=collate)
