"""What a sifter does outside a loop over `sifter(loader)`: a batch that somebody else drew, and timing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sifting.budget import tokens_in
from sifting.data.documents import nothing_to_choose
from sifting.step import Selection

if TYPE_CHECKING:
    from sifting.sifter import Sifter


def rehearse(sifter: Sifter) -> None:
    """Sift and audit every batch from now on; see `Sifter.rehearse`."""
    sifter.schedule = replace(sifter.schedule, warmup_steps=0, stop_step=None, every=1)
    sifter.chooser.schedule = sifter.schedule
    sifter.exit.rehearse()
    if sifter.pilot is not None:
        sifter.pilot.rehearse()
    sifter.auditor.every, sifter.auditor.silent, sifter.auditor.log = 1, True, None


def select(sifter: Sifter, batch: Any) -> Selection:
    """Choose among a batch of candidates that somebody else drew; see `Sifter.select`."""
    size = sifter.chooser.samples.size(batch)
    if size < 2:
        raise nothing_to_choose(batch, size)
    sifter.observer.end_step()
    if not sifter.meter.counts["steps"]:
        sifter.chooser.check(batch, divides=False)
    step = sifter.chooser(batch, size)
    assert step.selection is not None
    counts = sifter.meter.counts
    counts["candidates_seen"] += size
    counts["samples_trained"] += step.size
    counts["tokens_seen"] += tokens_in(batch)
    counts["tokens_trained"] += tokens_in(step.selection.batch)
    counts["steps"] += 1
    sifter.observer.hand_out(step, step.selection.batch)
    if step.handed is not None and sifter._scorer.reuse is not None:
        sifter._scorer.reuse.give_up(
            "what select() gives is trained outside a loop over sifter(loader)"
        )
    return step.selection
