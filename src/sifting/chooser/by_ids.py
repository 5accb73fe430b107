"""Choosing by the samples' IDs alone, before anything of them is read; and the step, once it is.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sifting.chooser.audits import ChoiceAudits
from sifting.chooser.finite import finite
from sifting.data.stream import plain_indices
from sifting.exits.base import ids_in
from sifting.exits.scoring import Scorer
from sifting.measure.meter import Meter
from sifting.parallel.ranks import Ranks, Share
from sifting.selection.choice import Rule
from sifting.step import IdChoice, Selection, Step

CPU = torch.device("cpu")  # where choices by IDs are made
# From what a sampler draws to the IDs of its samples.
Name = Callable[[Sequence[Any]], list[Any]]


class IdChooser:
    """Chooses among samples whose IDs are all that an exit, or a random policy, needs.

    Args:
        scorer: whose exit scores by IDs.
        audits: judges a choice whose candidates were all read for it.
        rule: chooses by the scores.
        meter: what is timed and counted.
        generator: of every random choice.
        drop: whether scores that are not finite rank last; else they raise.
        together: the ranks to choose with; None to choose alone.
    """

    def __init__(
        self,
        scorer: Scorer,
        audits: ChoiceAudits,
        *,
        rule: Rule,
        meter: Meter,
        generator: torch.Generator,
        drop: bool,
        together: Ranks | None,
    ) -> None:
        self.scorer, self.audits, self.rule, self.meter = scorer, audits, rule, meter
        self.generator, self.drop, self.together = generator, drop, together

    def choose(self, drawn: list[Any], size: int, *, name: Name = plain_indices) -> IdChoice:
        """Choose among candidates.

        Args:
            drawn: this rank's candidates, as its sampler draws them.
            size: how many this rank is to train.
            name: gives their IDs.
        """
        drawn = plain_indices(drawn)
        with self.meter.time("scoring", CPU):
            scored = self.rule.policy.scored
            scores_B = torch.zeros(len(drawn))
            if scored:
                scores_B = self.scorer.exit.score_ids(name(drawn))
            sizes: tuple[int, ...] = (len(drawn),)
            everyones = drawn
            if self.together is not None:
                parts = self.together.gather((drawn, scores_B))
                everyones = [one for theirs, _ in parts for one in theirs]
                scores_B = torch.cat([theirs for _, theirs in parts])
                sizes = tuple(len(theirs) for theirs, _ in parts)
            scores_B = finite(scores_B, drop=self.drop)
            count = min(size * len(sizes), len(scores_B))
            choice = self.rule(scores_B, count, self.generator)
            mine, chosen_K, first = slice(None), None, 0
            if self.together is not None:
                chosen_K, first = choice.indices_K, sum(sizes[: self.together.rank])
                mine = Share(self.together.rank, sizes, choice.indices_K).mine
            indices_K = choice.indices_K[mine]
        return IdChoice(
            [everyones[i] for i in indices_K.tolist()],
            indices_K,
            choice.weights_K[mine],
            scores_B,
            choice.explored_K[mine],
            choice.explored,
            count,
            chosen_K,
            first,
        )

    def read(
        self,
        made: IdChoice,
        batch: Any,
        *,
        candidates: int | None,
        drawn: Sequence[Any] = (),
        name: Name = plain_indices,
    ) -> Step:
        """The step of a choice, now that its samples are read.

        Args:
            made: the choice.
            batch: the samples.
            candidates: how many of this rank's candidates come first among them, where they were
                all read for an audit; None where only what is trained was.
            drawn: those candidates, as the sampler drew them.
            name: gives their IDs.
        """
        ids = name(made.ids)
        self.meter.counts["selections"] += 1
        if candidates is not None:
            batch = self._audited(made, batch, candidates, name(drawn) if drawn else None)
        if self.scorer.reference is not None:  # by IDs nothing was seen of them yet
            self._check_names(batch, ids)
            self.scorer.reference.check(self.scorer.call, batch, ids)
        selection = Selection(made.indices, made.weights, made.scores, batch, made.explored)
        explored, drawn = made.explored_count, made.ids
        return Step(len(drawn), selection, explored, made.kept, ids=ids, drawn=drawn)

    def _check_names(self, batch: Any, ids: list[Any]) -> None:
        """Raise where the user calls samples otherwise than they were looked up in the reference."""
        call = self.scorer.call
        if self.scorer.exit.reference is None or call.ids is None:
            return
        found = plain_indices(ids_in(call, batch, "a reference"))
        if found != ids:
            raise ValueError(
                f"ids={call.ids!r} calls the samples {found[:3]}…, and this {self.scorer.exit!r} has chosen them "
                f"before they were read, by their indices {ids[:3]}…: leave out ids=, here and where the "
                "reference is made"
            )

    def _audited(
        self, made: IdChoice, batch: Any, candidates: int, ids: Sequence[Any] | None
    ) -> Any:
        """What is trained of a batch that holds all candidates, after an audit of the choice."""
        samples, rows = self.scorer.call.samples, made.rows(candidates)
        size = max(candidates, max(rows, default=0) + 1)
        own = batch
        if size > candidates:
            own = samples.take(batch, torch.arange(candidates), size=size)
        chosen_K = made.indices if made.chosen is None else made.chosen
        with self.meter.time("auditing", self.scorer.device):
            step = self.meter.counts["steps"]
            self.audits.judge(own, made.scores, chosen_K, step=step, ids=ids)
        return samples.take(batch, torch.tensor(rows), size=size)
