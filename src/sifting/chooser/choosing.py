"""Choosing among a batch of candidates: score, check, choose, and have the choice audited now and then.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from sifting.autopilot.pilot import Pilot
from sifting.budget import Budget
from sifting.chooser.audits import ChoiceAudits
from sifting.chooser.by_ids import IdChooser
from sifting.chooser.finite import finite
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor
from sifting.measure.meter import Meter
from sifting.parallel.ranks import Ranks, Share, even_count, spread
from sifting.selection.budget import deal
from sifting.selection.choice import Choice, Rule
from sifting.selection.policies import Random
from sifting.selection.schedule import Schedule
from sifting.step import Selection, Step


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

    Attributes:
        audits: judges choices by exact losses.
        of_ids: chooses by IDs alone, where an exit needs no more.
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
        self.nonfinite, self.together = nonfinite, together
        self.budget = budget
        self.audits = ChoiceAudits(scorer, auditor, trim=rule.trim, together=together, pilot=pilot)
        self.of_ids = IdChooser(
            scorer,
            self.audits,
            rule=rule,
            meter=meter,
            generator=generator,
            drop=nonfinite == "drop",
            together=together,
        )

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
            made, choice = self._choose(batch, scores_B, rule, step, count)
        self.meter.counts["selections"] += 1
        if self.auditor.due(self.schedule.keep_at(step)):
            with self.meter.time("auditing", device):
                assert made.selection is not None
                scores_B = made.selection.scores
                self.audits.judge(batch, scores_B, choice.indices_K, step=step, ids=ids)
        return made

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
        counts: tuple[int, ...] = ()
        if together is not None and self.samples.documents(batch) is not None:
            # packed documents make rows of any length, so ranks need not have as many: keep= is kept
            count = max(count, len(sizes))
            counts = spread(count, len(sizes))
        elif together is not None:
            count = even_count(count, sizes)
        choice = rule(scores_B, count, self.generator)
        mine, kept, reuse = slice(None), batch, self.scorer.reuse
        if together is not None:
            share = Share(together.rank, sizes, choice.indices_K, counts)
            mine = share.mine
            if count < len(scores_B) or len(set(sizes)) > 1:
                kept = together.exchange(batch, share, self.samples)
        elif count < len(scores_B):
            source = batch if reuse is None else reuse.candidates(batch)
            kept = self.samples.take(source, choice.indices_K, size=len(scores_B))
        device = self.scorer.device
        selection = Selection(
            choice.indices_K[mine],
            choice.weights_K[mine].to(device, non_blocking=True),
            scores_B.to(device, non_blocking=True),
            kept,
            choice.explored_K[mine].to(device, non_blocking=True),
        )
        handed = None
        if reuse is not None and together is None and count < len(scores_B):
            handed = reuse.handed(kept, choice.indices_K, len(scores_B))
        made = Step(len(selection.indices), selection, choice.explored, count, handed=handed)
        return made, choice

    def _choose_within(
        self, budget: Budget, batch: Any, scores_B: Tensor, rule: Rule, step: int
    ) -> tuple[Step, Choice]:
        """Choose what a budget pays for; ranks that choose together divide it evenly."""
        size, together = len(scores_B), self.together
        if self.scorer.reuse is not None:
            self.scorer.reuse.give_up(
                "it does not go with budget=, which takes padding off the kept"
            )
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
