"""Choosing among candidates: score, check, choose, and audit the choice now and then.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sifting.data import batch as batches
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor
from sifting.measure.meter import Meter
from sifting.parallel.ranks import Ranks, Share, even_count
from sifting.select.choice import Choice, Rule
from sifting.select.policies import Random
from sifting.select.schedule import Schedule


class NotFinite(ValueError):
    """Scores that are not finite: broken samples, or a model that has diverged."""


@dataclass(frozen=True)
class Selection:
    """What was chosen from one batch of candidates.

    Attributes:
        indices: the kept candidates, ascending.
        weights: what to multiply each kept loss by; all ones unless policy="proportional".
        scores: the score of every candidate.
        batch: the kept samples, of the same type and with the same keys as the candidates.
        explored: which of the kept were random picks.

    Where ranks choose together (scope="global"), candidates are those of all ranks, rank 0's
    first; the kept are the part of them that this rank trains.
    """

    indices: Tensor
    weights: Tensor
    scores: Tensor
    batch: Any
    explored: Tensor


@dataclass(frozen=True)
class Step:
    """One training batch, and what is known of it.

    Attributes:
        size: samples in it.
        selection: what was chosen; None where nothing was.
        explored: random picks among the kept, of all ranks that chose together.
        kept: how many those ranks keep in all.
        members: the batch, for an exit that observes what is trained.
    """

    size: int
    selection: Selection | None = None
    explored: int = 0
    kept: int = 0
    members: Any = None


class Chooser:
    """From a batch of candidates to a `Step`: scores, finite ones, a choice, at times an audit.

    Args:
        scorer: gives the scores.
        rule: chooses by them.
        schedule: how many to keep.
        meter: what is timed and counted.
        auditor: when a choice is judged by exact losses.
        generator: of every random choice.
        nonfinite: "raise" on scores that are not finite, or "drop" to rank them last.
        together: the ranks to choose with; None to choose alone.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        rule: Rule,
        schedule: Schedule,
        meter: Meter,
        auditor: Auditor,
        generator: torch.Generator,
        nonfinite: Literal["raise", "drop"],
        together: Ranks | None,
    ) -> None:
        self.scorer, self.rule, self.schedule = scorer, rule, schedule
        self.meter, self.auditor, self.generator = meter, auditor, generator
        self.nonfinite, self.together = nonfinite, together

    def __call__(self, batch: Any, size: int) -> Step:
        """Choose among the candidates, whatever the schedule says of whether to."""
        step = self.meter.counts["steps"]
        device = self.scorer.device
        with self.meter.time("scoring", device):
            found = self.scorer.scores(batch, learn=True) if self.rule.policy.scored else None
            rule = self.rule if found is not None else replace(self.rule, policy=Random())
            scores_B = torch.zeros(size, device=device) if found is None else found
            made, choice = self._choose(batch, scores_B, rule, step)
        self.meter.counts["selections"] += 1
        if self.auditor.due(self.schedule.keep_at(step)):
            with self.meter.time("auditing", device):
                self._audit(batch, made.selection, choice, step)
        return made

    def _choose(self, batch: Any, scores_B: Tensor, rule: Rule, step: int) -> tuple[Step, Choice]:
        """Choose among this rank's candidates or all ranks', and take what is trained here."""
        sizes: tuple[int, ...] = (len(scores_B),)
        together = self.together
        if together is not None:
            scores_B, sizes = together.join(scores_B, batch, self.generator)
        scores_B = finite(scores_B, drop=self.nonfinite == "drop")
        count = self.schedule.count(step=step, size=len(scores_B))
        if together is not None:
            count = even_count(count, sizes)
        choice = rule(scores_B, count, self.generator)
        mine, kept = slice(None), batch
        if together is not None:
            share = Share(together.rank, sizes, choice.indices_K)
            mine = share.mine
            if count < len(scores_B) or len(set(sizes)) > 1:
                kept = together.exchange(batch, share)
        elif count < len(scores_B):
            kept = batches.take(batch, choice.indices_K, size=len(scores_B))
        selection = Selection(
            choice.indices_K[mine], choice.weights_K[mine], scores_B, kept, choice.explored_K[mine]
        )
        return Step(len(selection.indices), selection, choice.explored, count), choice

    def _audit(self, batch: Any, selection: Selection | None, choice: Choice, step: int) -> None:
        assert selection is not None
        found: list[Any] | None = self.scorer.examine(batch, early=self.auditor.wants_early)
        if found is None:
            return
        if self.together is not None:
            here = [tuple(v if v is None else v.cpu() for v in piece) for piece in found]
            found = [piece for pieces in self.together.gather(here) for piece in pieces]
        wrong = [flags for _, flags, _ in found if flags is not None]
        early = [losses for *_, losses in found if losses is not None]
        self.auditor.judge(
            step=step,
            scores_B=selection.scores,
            exact_B=torch.cat([losses for losses, *_ in found]).float(),
            wrong_B=torch.cat(wrong) if wrong else None,
            indices_K=choice.indices_K.to(found[0][0].device),
            early_B=torch.cat(early) if early else None,
        )

    def check(self, batch: Any) -> None:
        """Find out how the model is scored, so that what cannot work fails on the first batch."""
        keep = self.schedule.keep
        if self.together is not None and not callable(keep):
            sizes = [batches.batch_size(batch)] * self.together.world
            count = self.schedule.count(step=0, size=sum(sizes))
            if count != even_count(count, sizes):
                raise ValueError(
                    f"keep={keep} of {sizes[0]} candidates on each of {len(sizes)} ranks makes "
                    f"{count}, which does not divide among them: choose a candidate batch whose kept part "
                    "is a whole number on every rank"
                )
        if self.rule.policy.scored:
            self.scorer.check(batch)


def finite(scores_B: Tensor, *, drop: bool) -> Tensor:
    """The scores, those that are not finite ranked last where they are to be dropped.

    >>> finite(torch.tensor([1.0, float("nan")]), drop=True)
    tensor([1., -inf])
    """
    broken_B = ~scores_B.isfinite()
    if not bool(broken_B.any()):
        return scores_B
    if drop:
        return scores_B.masked_fill(broken_B, -math.inf)
    rows = broken_B.nonzero().squeeze(1).tolist()
    shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
    raise NotFinite(
        f"the scores of {len(rows)} of {len(scores_B)} candidates are not finite (rows {shown}): look "
        "at these samples and at the model's weights; nonfinite='drop' ranks such samples last"
    )
