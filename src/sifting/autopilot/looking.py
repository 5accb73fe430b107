"""Looks at held-out samples: their losses at averaged weights, and where progress was made.

Shapes: M held-out samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.average import AveragedWeights
from sifting.autopilot.looks import LookPlan, plan_looks
from sifting.autopilot.options import LADDER, Option
from sifting.autopilot.trial import Trial, read_held_out
from sifting.exits.auto import MEMORY, AutoExit
from sifting.exits.scoring import Scorer
from sifting.measure.learning import Progress, progress
from sifting.measure.meter import Meter
from sifting.rng import RandomState

SETTLED = 0.08  # error of a share that later looks need not lower
MOST = 10_000  # held-out samples that are kept at most


class Looking:
    """Looks at held-out samples when it is time, and knows on which of them progress was made.

    Args:
        scorer: scores and examines batches.
        exit: the scorers that compete.
        meter: counts the samples that are looked at.
        trial: the held-out samples, and how long the run is.
    """

    def __init__(self, scorer: Scorer, exit: AutoExit, meter: Meter, trial: Trial) -> None:
        self.scorer, self.exit, self.meter, self.trial = scorer, exit, meter, trial
        self.plan: LookPlan | None = None
        self.batches: list[Any] = []
        self._average: AveragedWeights | None = None
        self._looks: list[tuple[int, Tensor]] = []  # steps, and the losses then
        self._progress: dict[Option, list[Progress]] = {}
        self._saved: tuple[Any, Any] | None = None  # plan and averaged weights of a state

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at; not known before `prepare`."""
        return self.plan is not None and bool(self.plan.steps)

    def prepare(self, size: int) -> None:
        """Plan the looks, and read what is looked at.

        Args:
            size: samples of a training step.
        """
        held_out, samples = self.trial.held_out, self.scorer.call.samples
        self.plan, self.batches = LookPlan((), 0), []
        if held_out is None or not self.exit.looks:
            return
        streams = RandomState.now()  # a loader of held-out samples may draw from them
        try:
            read = read_held_out(held_out, most=MOST, size=samples.size)
        finally:
            streams.restore()
        there = sum(map(samples.size, read))
        plan = plan_looks(self.trial.updates, batch=size, held_out=there)
        if self._saved is not None and self._saved[0] is not None:
            steps, count = self._saved[0]
            plan = LookPlan(tuple(map(int, steps)), int(count))
        if not plan.steps:
            return
        self.plan, seen = plan, 0
        for batch in read:
            count = samples.size(batch)
            wanted = min(count, plan.samples - seen)
            if wanted <= 0:
                break
            whole = wanted == count
            part = batch if whole else samples.take(batch, torch.arange(wanted), size=count)
            self.batches.append(part)
            seen += wanted
        horizon = max(10.0, 0.02 * (self.trial.updates or 2500))
        self._average = AveragedWeights(self.scorer.model, min(horizon, 100.0))
        if self._saved is not None and self._saved[1] is not None:
            self._average.load_state_dict(self._saved[1])
        self._saved = None

    def follow(self, step: int) -> None:
        """Take in the weights after a step; now and then, so that it costs next to nothing."""
        if self._average is None:
            return
        every = max(1, round(self._average.horizon / 5))
        if step % every == 0:
            self._average.update(every)

    def losses(self) -> Tensor | None:
        """Losses of all held-out samples as the weights are; None where there is none exact."""
        losses = []
        for batch in self.batches:
            found = self.scorer.examine(batch, early=False)
            if found is None:
                return None
            losses += [exact_B.float().cpu() for exact_B, *_ in found]
        losses_M = torch.cat(losses)
        self.meter.counts["held_out_seen"] += len(losses_M)
        return losses_M

    def look(self, step: int) -> None:
        """Held-out losses as the averaged weights have them, and where they fell."""
        assert self._average is not None
        with self._average.in_place():
            now_M = self.losses()
            if now_M is None:
                return
            scored = [self.scorer.rehearse(batch, None, learn=False) for batch in self.batches]
        scores_M = torch.cat([found[self.exit.looks].float().cpu() for found in scored])
        if self._looks:
            self._note(self.exit.looks, self._looks[-1][1], now_M, scores_M)
        if len(self._looks) > 1:
            # ranked by a look before the one that progress is counted from: else what was high by
            # chance, and falls back, would look like progress
            self._note(MEMORY, self._looks[-1][1], now_M, self._looks[-2][1])
        self._looks = [*self._looks[-1:], (step, now_M)]

    def _note(self, scorer: str, before_M: Tensor, now_M: Tensor, scores_M: Tensor) -> None:
        for ratio in LADDER:
            found = progress(before_M, now_M, scores_M, ratio)
            option = Option(scorer, ratio)
            self._progress[option] = [*self._progress.get(option, [])[-3:], found]

    def recent(self, option: Option) -> Progress | None:
        """Progress over the last look, and the ones before it while it says too little."""
        whole: Progress | None = None
        for found in reversed(self._progress.get(option, [])):
            whole = found if whole is None else whole + found
            if whole.error <= SETTLED:
                break
        return whole

    def last(self, option: Option) -> Progress | None:
        """Progress over the last look."""
        found = self._progress.get(option)
        return found[-1] if found else None

    def shares(self) -> list[dict[str, Any]]:
        """Learning shares of every scorer at every ratio, for the log."""
        found = []
        for option in self._progress:
            recent = self.recent(option)
            if recent is not None and recent.kept + recent.rest > 0:
                share = {"share": recent.share, "error": recent.error}
                found.append({"scorer": option.scorer, "ratio": option.ratio, **share})
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "looks": [[step, losses_M] for step, losses_M in self._looks],
            "progress": [
                [option.scorer, option.ratio, [list(vars(one).values()) for one in found]]
                for option, found in self._progress.items()
            ],
            "plan": None if self.plan is None else [list(self.plan.steps), self.plan.samples],
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; held-out samples are read again."""
        self._looks = [(int(step), losses_M) for step, losses_M in state["looks"]]
        self._progress = {
            Option(str(scorer), int(ratio)): [Progress(*map(float, one)) for one in found]
            for scorer, ratio, found in state["progress"]
        }
        self.plan = self._average = None
        self._saved = state["plan"], state["average"]
