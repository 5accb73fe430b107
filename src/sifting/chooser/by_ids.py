"""Choosing by the samples' IDs alone, before anything of them is read; and the step, once it is.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sifting.chooser.audits import ChoiceAudits
from sifting.chooser.finite import finite
from sifting.exits.scoring import Scorer
from sifting.measure.meter import Meter
from sifting.parallel.ranks import Ranks, Share
from sifting.selection.choice import Rule
from sifting.step import IdChoice, Selection, Step

CPU = torch.device("cpu")  # where choices by IDs are made


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

    def choose(self, ids: list[Any], size: int) -> IdChoice:
        """Choose among candidates.

        Args:
            ids: of this rank's candidates.
            size: how many this rank is to train.
        """
        with self.meter.time("scoring", CPU):
            scored = self.rule.policy.scored
            scores_B = self.scorer.exit.score_ids(ids) if scored else torch.zeros(len(ids))
            sizes: tuple[int, ...] = (len(ids),)
            everyones = ids
            if self.together is not None:
                parts = self.together.gather((ids, scores_B))
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
        ids: Sequence[Any] | None = None,
    ) -> Step:
        """The step of a choice, now that its samples are read.

        Args:
            made: the choice.
            batch: the samples.
            candidates: how many of this rank's candidates come first among them, where they were
                all read for an audit; None where only what is trained was.
            ids: of those candidates.
        """
        self.meter.counts["selections"] += 1
        if candidates is not None:
            batch = self._audited(made, batch, candidates, ids)
        if self.scorer.reference is not None:  # by IDs nothing was seen of them yet
            self.scorer.reference.check(self.scorer.call, batch, made.ids)
        selection = Selection(made.indices, made.weights, made.scores, batch, made.explored)
        return Step(len(made.ids), selection, made.explored_count, made.kept, ids=made.ids)

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
