"""Looking at held-out samples: on which of them progress is made as training goes on.

Shapes: M held-out samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.average import AveragedWeights
from sifting.autopilot.looks import BUDGET, FORWARD, LookPlan, plan_looks, why_none, why_slow
from sifting.autopilot.looks import FEWEST as FEWEST_SAMPLES
from sifting.autopilot.noted import Noted
from sifting.autopilot.options import Judged, Option
from sifting.autopilot.others import Others
from sifting.autopilot.trial import NO_BATCH, Trial, naming_held_out, read_held_out
from sifting.data.by_index import seeded_alike
from sifting.exits.auto import MEMORY, PREDICTED, AutoExit
from sifting.exits.scoring import Scorer
from sifting.log import say
from sifting.measure.learning import Progress
from sifting.measure.meter import Meter
from sifting.parallel.detect import reshard

MOST = 10_000  # held-out samples that are kept at most
AVERAGED = 0.02  # share of the run whose weights are averaged
UNPLANNED, FEWEST, LONGEST = 50.0, 10.0, 100.0  # steps of it: where the end is not known, limits


class HeldOut:
    """Held-out samples, looked at from time to time at averaged weights.

    Args:
        scorer: scores and examines batches.
        exit: the scorers that compete.
        meter: what is counted.
        trial: where the samples are, and how long the run is.

    Attributes:
        progress: of the last looks, by scorer and ratio.
        at_work: the looks that an autopilot at work can afford.
        others: who go by other samples of as many, where there are more than it goes by itself.
        budget: share of the run's updates that looks, and trials beside them, may take; above that of
            an autopilot at work, more samples are told of than it goes by.
    """

    def __init__(self, scorer: Scorer, exit: AutoExit, *, meter: Meter, trial: Trial) -> None:
        self.scorer, self.exit, self.meter, self.trial = scorer, exit, meter, trial
        self.progress = Noted()
        self._own: int | None = None  # samples that it goes by, the first ones; None for all
        self._told = Noted()  # of all samples, where they are more
        self.others: Others | None = None  # who go by others of them, then
        self.budget = BUDGET
        self._plan: LookPlan | None = None
        self.why_not = ""  # there are no looks, in words, though there are samples
        self.at_work = LookPlan((), 0)  # what it can afford at work, whatever the budget is
        self._average: AveragedWeights | None = None
        self._batches: list[Any] = []
        self._read: list[Any] | None = None  # as read, once
        self._seen: list[Tensor] = []  # losses at the last two looks
        self._lost = 0  # losses that are not a number, as far as that was said
        self._predicted: Tensor | None = None  # losses that were predicted at the last look
        self._saved: Mapping[str, Any] | None = None  # of a state, until it is used

    def plan_with(self, size: int, there: int) -> LookPlan:
        """When to look, given the size of a step and how many held-out samples there are."""
        return plan_looks(self.trial.updates, batch=size, held_out=there, budget=self.budget)

    @property
    def looks(self) -> bool:
        """Whether there are samples to look at, and looks can be afforded."""
        return self._plan is not None and bool(self._plan.steps)

    def due(self, before: float, after: float) -> bool:
        """Whether to look after a step that goes from a place in the run to another."""
        return self._plan is not None and self._plan.due(before, after)

    def follow(self, step: int, size: int) -> None:
        """A step is over: keep up the averaged weights.

        Args:
            step: how many are over.
            size: samples that it trained.
        """
        if self._plan is None:
            self._prepare(size)
        average = self._average
        if average is not None and step % (every := max(1, round(average.horizon / 5))) == 0:
            with self.meter.time("observing", self.scorer.device):
                average.update(every)

    def _prepare(self, size: int) -> None:
        self._plan = LookPlan((), 0)
        samples, saved = self.scorer.call.samples, self._saved
        given = self.trial.held_out is not None and bool(self.exit.looks)
        batches = self._held_out(self.plan_with(size, MOST).samples) if given else []
        there = sum(map(samples.size, batches))
        if self.scorer.ranks is not None:  # all look at as many, at the same steps, or none does
            found = self.scorer.ranks.gather((size, there))
            size, there = (min(values) for values in zip(*found, strict=True))
        if not given:
            return
        if not batches:
            raise ValueError(NO_BATCH)
        if saved is None:
            plan = self.plan_with(size, there)
        else:
            plan = LookPlan(tuple(map(int, saved["steps"])), int(saved["samples"]))
        if not plan.steps:
            self.why_not = why_none(there, self.trial.updates)
            say(f"held_out= of the Trial is not looked at: {self.why_not}")
            return
        self.at_work = plan_looks(self.trial.updates, batch=size, held_out=there)
        if self.at_work.steps and self.at_work.samples < plan.samples:
            self._own = self.at_work.samples
            self.others = Others(self._own, of=plan.samples)
        if told := why_slow(len(batches), there=there, size=size):
            say(f"held_out= of the Trial {told}")
        left = plan.samples
        for batch in batches:
            count = samples.size(batch)
            part = torch.arange(min(count, left))
            if len(part):
                whole = len(part) == count
                self._batches.append(batch if whole else samples.take(batch, part, size=count))
            left -= len(part)
        if not self._can_be_examined():
            self.why_not = "without labels there are no exact losses"
            say(f"held_out= of the Trial is not looked at: {self.why_not}")
            self._batches = []
            return
        steps = self.trial.updates
        horizon = UNPLANNED if steps is None else min(max(FEWEST, AVERAGED * steps), LONGEST)
        average = AveragedWeights(self.scorer.model, horizon)
        if saved is not None and saved["average"] is not None:
            average.load_state_dict(saved["average"])
        self._plan, self._average, self._saved = plan, average, None

    def _can_be_examined(self) -> bool:
        """Try two samples, so that batches of another kind fail now, and not at the first look.

        Returns whether they have exact losses.
        """
        samples, plan = self.scorer.call.samples, self.scorer.plan
        first = self._batches[0]
        with naming_held_out(first, 1):
            size = samples.size(first)
            some = samples.take(first, torch.arange(min(size, 2)), size=size)
            known = self.scorer.examine(some, early=False) is not None
            if (
                not known
                and plan is not None
                and all(part.labels is not None for part in plan.parts)
            ):
                raise ValueError("it has no labels, and batches that are trained have")
        if not self.scorer.sharded:
            with self.scorer.busy():
                self.trial.try_loss(self.scorer.model, self.scorer.moved(some))
        reshard(self.scorer.model)  # a forward leaves the outermost parameters gathered
        self.scorer.plan = plan
        return known

    def _held_out(self, most: int) -> list[Any]:
        """The samples, read once: without a trace in the random streams, and alike on resuming."""
        assert self.trial.held_out is not None
        if self._read is None:
            with seeded_alike(self.trial.held_out):  # so that one that shuffles does it alike
                self._read = read_held_out(
                    self.trial.held_out,
                    most=max(FEWEST_SAMPLES, min(most, MOST)),
                    size=self.scorer.call.samples.size,
                )
        return self._read

    def look(self, step: int) -> None:
        """Take the losses as the averaged weights have them, and note where they fell."""
        assert self._average is not None
        with self._average.in_place():
            now_M = self.losses()
            if now_M is None:
                return
            scored = [self.scorer.rehearse(batch, None, learn=False) for batch in self._batches]
            scores = [found[self.exit.looks].float().cpu() for found in scored]
            predicted_M = self._predict(scores)
        scores_M = torch.cat(scores)
        lost = int(now_M.isnan().sum())
        if lost > self._lost:
            self._lost = lost
            say(
                f"{lost} of {len(now_M)} held-out losses are not a number: these samples tell nothing"
            )
        # a loss above that of guessing says that a label is wrong, or rare, and by chance how much
        now_M = now_M.clamp_max(self.guessing())
        # a sample whose loss is not a number says nothing, at this look and the next ones
        scores_M = scores_M.nan_to_num(0.0)
        if self._seen:
            self._note(self.exit.looks, self._seen[-1], now_M, scores_M)
            if self._predicted is not None:
                self._note(PREDICTED, self._seen[-1], now_M, self._predicted)
        self._predicted = predicted_M
        if len(self._seen) > 1:
            # ranked by a look before the one that progress is counted from: else what was high by
            # chance, and falls back, would look like progress
            self._note(MEMORY, self._seen[-1], now_M, self._seen[-2])
        self._seen = [*self._seen[-1:], now_M]

    def _predict(self, scores: list[Tensor]) -> Tensor | None:
        """What the loss predictor says of the samples, as though they had been trained at the last look."""
        assert self.scorer.plan is not None
        whole_M = torch.cat(scores)
        known_M = self._seen[-1] if self._seen else torch.full_like(whole_M, math.nan)
        found = []
        parts = torch.split(known_M, [len(scores_B) for scores_B in scores])
        for batch, scores_B, known_B in zip(self._batches, scores, parts, strict=True):
            moved = self.scorer.moved(batch)
            with torch.no_grad():
                found_B = self.exit.predicted_from(
                    self.scorer.plan, self.scorer.model, moved, scores_B, known_B
                )
            if found_B is None:
                return None
            found.append(found_B.nan_to_num(0.0))
        return torch.cat(found)

    def losses(self) -> Tensor | None:
        """Losses of the samples as the weights are; None where they have no exact ones."""
        losses = []
        for number, batch in enumerate(self._batches, 1):
            with naming_held_out(batch, number):
                found = self.scorer.examine(batch, early=False)
            if found is None:
                return None
            losses += [exact_B.float().cpu() for exact_B, *_ in found]
        losses_M = torch.cat(losses)
        self.meter.counts["held_out_seen"] += len(losses_M)
        return losses_M

    def guessing(self) -> float:
        """The loss of guessing among all classes; infinite where there are none."""
        plan = self.scorer.plan
        if plan is None or plan.kind != "parts" or len(plan.parts) != 1:
            return math.inf
        shape = plan.shapes.get(plan.parts[0].logits, ())
        return math.log(shape[-1]) if plan.parts[0].has_classes and shape else math.inf

    @property
    def tells(self) -> bool:
        """Whether progress says what selecting gains: where classes are predicted.

        Squared errors are so unequal that nearly all of the progress is made on the largest, whether
        training on those helps or not.
        """
        plan = self.scorer.plan
        return plan is None or any(part.kind != "squares" for part in plan.parts)

    def _note(self, scorer: str, before_M: Tensor, now_M: Tensor, scores_M: Tensor) -> None:
        own = len(now_M) if self._own is None else self._own
        self.progress.add(scorer, before_M[:own], now_M[:own], scores_M[:own])
        if own < len(now_M):
            self._told.add(scorer, before_M, now_M, scores_M)
        for one in () if self.others is None else self.others.sets:
            drawn_N = one.drawn_N
            one.progress.add(scorer, before_M[drawn_N], now_M[drawn_N], scores_M[drawn_N])

    def spent(self, step: int, size: int) -> tuple[float, float]:
        """Steps' worth of time that looks take in all, those to come too; and that of one look.

        Args:
            step: how many are over.
            size: samples of a step.
        """
        assert self._plan is not None
        one = self._plan.samples * FORWARD / size
        last = self.trial.updates or step
        to_come = sum(step < due <= last for due in self._plan.steps)
        return self.meter.counts["held_out_seen"] * FORWARD / size + to_come * one, one

    def shares(self) -> list[dict[str, Any]]:
        """Learning shares of every scorer at every ratio, by all samples, for the log; none where they
        do not tell."""
        found: list[dict[str, Any]] = []
        if not self.tells:
            return found
        for option in self.progress:
            recent = (self._told if option in self._told else self.progress).recent(option)
            if recent is not None and recent.told:
                share = {"share": recent.share, "error": recent.error}
                found.append({"scorer": option.scorer, "ratio": option.ratio, **share})
        return found

    def told(self, judge: Callable[[Noted], Sequence[Judged]]) -> dict[str, Any]:
        """What the log has of the looks: shares, and what other samples would decide for, where there
        are some.

        Args:
            judge: what is known of every option, given the progress on some samples.
        """
        by_others = [] if self.others is None else self.others.decide(judge)
        plain = [[option.scorer, option.ratio] for option in by_others]
        return {"shares": self.shares(), **({"others": plain} if plain else {})}

    def recent(self, option: Option) -> Progress | None:
        """Progress of late, by what an option would keep."""
        return self.progress.recent(option)

    def state_dict(self) -> dict[str, Any]:
        if self._plan is None:
            return dict(self._saved or {})
        return {
            "steps": list(self._plan.steps),
            "samples": self._plan.samples,
            "average": None if self._average is None else self._average.state_dict(),
            "seen": list(self._seen),
            "predicted": self._predicted,
            "progress": [
                [option.scorer, option.ratio, [list(vars(one).values()) for one in found]]
                for option, found in self.progress.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; the samples are read again."""
        progress = Noted()
        for scorer, ratio, found in state.get("progress", []):
            progress[Option(str(scorer), int(ratio))] = [
                Progress(*map(float, one)) for one in found
            ]
        seen = list(state.get("seen", []))
        predicted = state.get("predicted")
        if state:
            steps, count = tuple(map(int, state["steps"])), int(state["samples"])
            looked = seen if predicted is None else [*seen, predicted]
            if any(not isinstance(one, Tensor) or one.shape != (count,) for one in looked):
                raise ValueError(f"the state is damaged: its looks are of {count} samples each")
            if state["average"] is not None:
                AveragedWeights(self.scorer.model, 1.0).load_state_dict(state["average"])
            state = {**state, "steps": steps, "samples": count}
        self._seen, self._predicted, self.progress = seen, predicted, progress
        self._plan, self._average, self._batches = None, None, []
        self._saved = state or None
