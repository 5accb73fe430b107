"""What a trainer knows of its run, told to an autopilot: held-out samples, and how long it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from sifting.autopilot.trial import Trial
from sifting.sifter import Sifter


def tell(sifter: Sifter, *, held_out: Iterable[Any] | None, updates: int | None) -> None:
    """Give an autopilot what it looks at; a `Trial` of the user's own goes before.

    Args:
        sifter: with or without an autopilot.
        held_out: batches of held-out samples, like those of the loader.
        updates: batches that the run trains.
    """
    pilot = sifter.pilot
    if pilot is None or pilot.held_out.trial != Trial():
        return
    pilot.held_out.trial = Trial(held_out=held_out, updates=updates)
    pilot.pacing.steps = updates


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
