"""Choosing among candidates: score, check, choose, and audit the choice now and then.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from sifting.autopilot.pilot import Pilot
from sifting.budget import Budget
from sifting.data.lengths import token_counts
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor
from sifting.measure.meter import Meter
from sifting.parallel.ranks import Ranks, Share, even_count
from sifting.selection.budget import deal
from sifting.selection.choice import Choice, Rule
from sifting.selection.policies import Random
from sifting.selection.schedule import Schedule
from sifting.step import IdChoice, Selection, Step

CPU = torch.device("cpu")  # where choices by IDs are made


class NotFinite(ValueError):
    """Scores that are not finite: broken samples, or a model that has diverged."""


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
        pilot: is told of audits, where what is kept is left to it.
        budget: what is kept, where that is no number of samples.
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
        pilot: Pilot | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.scorer, self.rule, self.schedule = scorer, rule, schedule
        self.samples = scorer.call.samples
        self.meter, self.auditor, self.generator = meter, auditor, generator
        self.nonfinite, self.together, self.pilot = nonfinite, together, pilot
        self.budget = budget

    def __call__(
        self,
        batch: Any,
        size: int,
        count: int | None = None,
        *,
        ids: Sequence[Any] | None = None,
    ) -> Step:
        """Choose among the candidates, whatever the schedule says of whether to.

        Args:
            batch: the candidates.
            size: how many they are.
            count: how many to keep on this rank; by default what the schedule says.
            ids: of the candidates, where the sifter drew them itself.
        """
        step = self.meter.counts["steps"]
        device = self.scorer.device
        with self.meter.time("scoring", device):
            scored = self.rule.policy.scored
            found = self.scorer.scores(batch, learn=True, ids=ids) if scored else None
            rule = self.rule if found is not None else replace(self.rule, policy=Random())
            # the one wait for the device: everything after it is a few numbers on the host
            scores_B = torch.zeros(size) if found is None else found.cpu()
            self._tell_auditor()
            made, choice = self._choose(batch, scores_B, rule, step, count)
        self.meter.counts["selections"] += 1
        if self.auditor.due(self.schedule.keep_at(step)):
            with self.meter.time("auditing", device):
                self._audit(batch, made.selection, choice, step, ids)
        return made

    def _tell_auditor(self) -> None:
        """What is selected by is only known for certain once something was scored."""
        self.auditor.reducible = self.scorer.reference is not None
        self.auditor.by_loss = self.scorer.score == "loss" and not self.auditor.reducible

    def _choose(
        self, batch: Any, scores_B: Tensor, rule: Rule, step: int, wanted: int | None
    ) -> tuple[Step, Choice]:
        """Choose among this rank's candidates or all ranks', and take what is trained here."""
        if self.budget is not None:
            return self._choose_within(self.budget, batch, scores_B, rule, step)
        sizes: tuple[int, ...] = (len(scores_B),)
        together = self.together
        if together is not None:
            scores_B, sizes = together.join(scores_B, batch, self.generator, self.samples)
        scores_B = finite(scores_B, drop=self.nonfinite == "drop")
        if wanted is not None:
            count = min(wanted * len(sizes), len(scores_B))
        else:
            count = self.schedule.count(step=step, size=len(scores_B))
        if together is not None:
            count = even_count(count, sizes)
        choice = rule(scores_B, count, self.generator)
        mine, kept = slice(None), batch
        if together is not None:
            share = Share(together.rank, sizes, choice.indices_K)
            mine = share.mine
            if count < len(scores_B) or len(set(sizes)) > 1:
                kept = together.exchange(batch, share, self.samples)
        elif count < len(scores_B):
            kept = self.samples.take(batch, choice.indices_K, size=len(scores_B))
        device = self.scorer.device
        selection = Selection(
            choice.indices_K[mine],
            choice.weights_K[mine].to(device, non_blocking=True),
            scores_B.to(device, non_blocking=True),
            kept,
            choice.explored_K[mine].to(device, non_blocking=True),
        )
        handed = None
        if self.scorer.reuse is not None and together is None and count < len(scores_B):
            handed = self.scorer.reuse.handed(kept, choice.indices_K, len(scores_B))
        made = Step(len(selection.indices), selection, choice.explored, count, handed=handed)
        return made, choice

    def _choose_within(
        self, budget: Budget, batch: Any, scores_B: Tensor, rule: Rule, step: int
    ) -> tuple[Step, Choice]:
        """Choose what a budget pays for; ranks that choose together divide it evenly."""
        size, together = len(scores_B), self.together
        costs_B = budget.costs(batch, size)
        sizes: tuple[int, ...] = (size,)
        if rule.policy.scored:
            scores_B = budget.per_cost(scores_B, costs_B, batch, self.scorer.call)
        if together is not None:
            scores_B, sizes = together.join(scores_B, batch, self.generator, self.samples)
            costs_B = torch.cat(together.gather(costs_B))
        scores_B = finite(scores_B, drop=self.nonfinite == "drop")
        choice = budget.choose(
            scores_B,
            costs_B,
            self.schedule.keep_at(step),
            rule=rule,
            generator=self.generator,
            ranks=len(sizes),
        )
        indices_K, explored_K = choice.indices_K, choice.explored_K
        if together is None:
            kept = self.samples.take(batch, indices_K, size=size)
        else:
            hands = deal(costs_B[indices_K.cpu()], len(sizes))
            order_K = torch.tensor([i for hand in hands for i in hand], device=indices_K.device)
            counts = tuple(map(len, hands))
            share = Share(together.rank, sizes, indices_K[order_K], counts)
            kept = together.exchange(batch, share, self.samples)
            own_K = order_K[share.mine]
            indices_K, explored_K = indices_K[own_K], explored_K[own_K]
        device = self.scorer.device
        selection = Selection(
            indices_K,
            torch.ones(len(indices_K), device=device),
            scores_B.to(device, non_blocking=True),
            budget.ready(kept),
            explored_K.to(device, non_blocking=True),
        )
        # nothing is told of random picks: whose turn it is depends on what fits
        return Step(len(indices_K), selection, 0, len(choice.indices_K)), choice

    def _audit(
        self,
        batch: Any,
        selection: Selection | None,
        choice: Choice,
        step: int,
        ids: Sequence[Any] | None,
    ) -> None:
        assert selection is not None
        early_too = self.auditor.wants_early
        found: list[Any] | None = self.scorer.examine(batch, early=early_too, ids=ids)
        if self.together is not None:
            here = [tuple(v if v is None else v.cpu() for v in piece) for piece in found or ()]
            parts: list[list[Any]] = self.together.gather(here)  # empty where nothing has a label
            found = [piece for pieces in parts for piece in pieces] if all(parts) else None
        if found is None:
            return
        wrong = [flags for _, flags, *_ in found if flags is not None]
        early = [losses for _, _, losses, _ in found if losses is not None]
        sums = [losses for *_, losses in found if losses is not None]
        lengths_B = token_counts(batch) if sums and self.scorer.reference is None else None
        if self.together is not None and sums:
            everyones = self.together.gather(lengths_B)
            known = all(one is not None for one in everyones)
            lengths_B = torch.cat([one for one in everyones if one is not None]) if known else None
        exact_B = torch.cat([losses for losses, *_ in found]).float()
        scores_B = selection.scores.to(exact_B.device)
        # what was trimmed has no part in the judgement: as a score that was dropped
        trimmed = math.floor(self.rule.trim * len(scores_B) + 1e-9)
        if trimmed:
            highest = scores_B.argsort(descending=True, stable=True)[:trimmed]
            scores_B = scores_B.index_fill(0, highest, -math.inf)
        if self.pilot is not None:
            self.pilot.audited(scores_B, exact_B)
        self.auditor.judge(
            step=step,
            scores_B=scores_B,
            exact_B=exact_B,
            wrong_B=torch.cat(wrong) if wrong else None,
            indices_K=choice.indices_K.to(exact_B.device),
            early_B=torch.cat(early) if early else None,
            sums_B=torch.cat(sums) if sums else None,
            lengths_B=lengths_B,
        )

    def by_ids(self, ids: list[Any], size: int) -> IdChoice:
        """Choose among samples by their IDs alone, before anything of them is read.

        Args:
            ids: of this rank's candidates.
            size: how many this rank is to train.
        """
        with self.meter.time("scoring", CPU):
            rule = self.rule
            scores_B = (
                self.scorer.exit.score_ids(ids) if rule.policy.scored else torch.zeros(len(ids))
            )
            sizes: tuple[int, ...] = (len(ids),)
            everyones = ids
            if self.together is not None:
                parts = self.together.gather((ids, scores_B))
                everyones = [one for theirs, _ in parts for one in theirs]
                scores_B = torch.cat([theirs for _, theirs in parts])
                sizes = tuple(len(theirs) for theirs, _ in parts)
            scores_B = finite(scores_B, drop=self.nonfinite == "drop")
            count = min(size * len(sizes), len(scores_B))
            choice = rule(scores_B, count, self.generator)
            indices_K, weights_K, explored_K = choice.indices_K, choice.weights_K, choice.explored_K
            chosen_K, first = None, 0
            if self.together is not None:
                chosen_K, first = indices_K, sum(sizes[: self.together.rank])
                mine = Share(self.together.rank, sizes, indices_K).mine
                indices_K, weights_K, explored_K = (
                    indices_K[mine],
                    weights_K[mine],
                    explored_K[mine],
                )
        kept = [everyones[i] for i in indices_K.tolist()]
        made = (kept, indices_K, weights_K, scores_B, explored_K, choice.explored, count)
        return IdChoice(*made, chosen_K, first)

    def read(
        self,
        made: IdChoice,
        batch: Any,
        *,
        candidates: int | None,
        ids: Sequence[Any] | None = None,
    ) -> Step:
        """The step of a choice that was made by IDs, now that its samples are read.

        Args:
            made: the choice.
            batch: the samples.
            candidates: how many of this rank's candidates come first among them, where they were
                all read for an audit; None where only what is trained was.
            ids: of those candidates.
        """
        self.meter.counts["selections"] += 1
        if candidates is not None:
            chosen_K = made.indices if made.chosen is None else made.chosen
            whole = Selection(made.indices, made.weights, made.scores, batch, made.explored)
            choice = Choice(chosen_K, made.weights, made.explored, made.explored_count)
            rows = made.rows(candidates)
            size = max(candidates, max(rows, default=0) + 1)
            own = batch
            if size > candidates:
                own = self.samples.take(batch, torch.arange(candidates), size=size)
            self._tell_auditor()
            with self.meter.time("auditing", self.scorer.device):
                self._audit(own, whole, choice, self.meter.counts["steps"], ids)
            batch = self.samples.take(batch, torch.tensor(rows), size=size)
        if self.scorer.reference is not None:  # by IDs nothing was seen of them yet
            self.scorer.reference.check(self.scorer.call, batch, made.ids)
        selection = Selection(made.indices, made.weights, made.scores, batch, made.explored)
        return Step(len(made.ids), selection, made.explored_count, made.kept, ids=made.ids)

    def check(self, batch: Any, *, divides: bool = True) -> None:
        """Find out how the model is scored, so that what cannot work fails on the first batch.

        Args:
            divides: whether what is kept has yet to be divided among the ranks; where they are
                told how many each trains, it is.
        """
        keep = self.schedule.keep
        if self.budget is not None:
            self.budget.costs(batch, self.samples.size(batch))
        elif self.together is not None and divides and not callable(keep):
            sizes = [self.samples.size(batch)] * self.together.world
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
    if math.isfinite(scores_B.sum().item()):  # of one that is not, the sum is not either
        return scores_B
    broken_B = ~scores_B.isfinite()
    if not bool(broken_B.any()):
        return scores_B  # they were only too large to be added
    if drop:
        return scores_B.masked_fill(broken_B, -math.inf)
    rows = broken_B.nonzero().squeeze(1).tolist()
    shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
    raise NotFinite(
        f"the scores of {len(rows)} of {len(scores_B)} candidates are not finite (rows {shown}): look "
        "at these samples and at the model's weights; nonfinite='drop' ranks such samples last"
    )
