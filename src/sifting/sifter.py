"""The `Sifter`: scores candidates at an exit, chooses among them, and watches how well it does.

loader ─ candidates ─▶ chooser: exit (truncated forward) ─▶ scores ─▶ choice ─▶ the user's step
                                                               │                    │
                                meter ◀── audits (exact losses) ┘      observer ◀───┘
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sifting.autopilot.pilot import Pilot
from sifting.autopilot.trial import Trial
from sifting.chooser import Chooser
from sifting.compose import (
    AUTO,
    check_auto,
    choose_mode,
    group_of,
    join_late,
    join_ranks,
    make_competing,
    make_pilot,
    make_rule,
    make_scorer,
    one_of,
    settings_of,
)
from sifting.cursor import Cursor
from sifting.data.joining import Pad
from sifting.data.samples import BatchSize, Take
from sifting.exits import make_exit
from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit, Setting
from sifting.loader import SiftedLoader
from sifting.measure.audit import Auditor
from sifting.measure.meter import Meter
from sifting.measure.stats import Stats, reduced
from sifting.model.by_sample import Losses
from sifting.model.call import Call, Forward, GetLabels, Ids
from sifting.model.objective import Score
from sifting.observer import Observer
from sifting.parallel.detect import in_use
from sifting.parallel.ranks import Ranks
from sifting.selection.policies import Policy
from sifting.selection.schedule import Schedule
from sifting.state import load_saved, saved
from sifting.step import Selection


class Sifter:
    """Hands a training loop only the samples of each batch that are worth a backward pass.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    >>> sifter = Sifter(model, exit=1, score="loss", keep=0.5)
    >>> [len(labels) for _, labels in sifter(DataLoader(data, batch_size=8))]
    [8, 8, 8]

    Here 16 candidates were scored for each step, and 8 of them trained.

    `Sifter(model)` is the autopilot: everything is trained until what it measures says that a
    part would do as well, and again where it does not any more; `trial=` tells it more. The
    paper's setting is `exit=1, score="loss"` (or "entropy"), `keep=0.5`.

    Args:
        model: the model that is trained, as it is: plain, compiled or wrapped for DDP.
        exit: block number from 1, "last" (the whole model, exact), a block's dotted path,
            "tuned", a `TunedExit`, an `AdditiveExit` or a `MemoryExit`; or "auto", scorers that
            compete. By default "auto" where `keep` is, else "tuned".
        score: "loss", "entropy", "margin", "grad_norm", or a function `(logits, labels) -> scores`.
            By default what suits the exit: entropy, and losses with a memory.
        keep: share of the candidates to train on, in (0, 1], a function of the step, or "auto".
            By default "auto", and 0.5 where an exit or a policy is named.
        policy: "top", "random", "percentile" or "proportional", an object such as
            `Percentile(beta=2)`, or a function `(scores, count, generator) -> indices`.
        trim: share of the candidates with the most extreme scores, as suspected label noise,
            that is never kept.
        explore: share of the kept that is drawn at random from the rest. By default 0.25 with
            a tuned exit and an autopilot (0 under "proportional") and 0, the paper's rule, with any other.
        warmup_steps: training steps before the first selection; until then candidates are all
            trained, in batches of the kept size.
        stop_step: step from which nothing is selected any more.
        every: of each `every` candidate batches, the first is sifted.
        loss_fn: per-sample loss `(logits, labels)`, where cross-entropy is not what is trained.
        losses: `losses(model, batch)`, one loss a sample, where no function of logits and labels gives
            it (diffusion, detection, sample weights). A contrastive loss is that within the batch
            given.
        forward: `forward(model, batch) -> logits`, where the model is called in its own way.
        labels: `labels(batch) -> labels`, where the batch keeps them in its own place.
        ids: key or position, in a batch, of the samples' numbers in the data set, or a function of
            the batch; for exits with memory. The sifter calls the model without them; so should
            your step.
        batch_size: how many samples a batch holds, where it cannot be told: a number, the key of the
            member that has one entry a sample, or a function of the batch.
        take: `take(batch, indices) -> batch`, where a batch cannot be divided member by member.
        stack: dotted path of the list of blocks, where it cannot be told.
        score_batch_size: candidates scored at a time; all at once by default.
        nonfinite: "raise" on scores that are not finite, or "drop" to rank them last.
        audit_every: selections between two audits of the choice against exact losses; 0 for
            none. By default as many as make audits cost 1 % of training.
        audit_log: a file to which each audit's early and exact losses are appended, as JSON
            lines, for the estimators of `sifting.theory`.
        draws: "samples": the loader's batch size is what is trained, and 1/keep times as many
            candidates are drawn from it; "batch": each batch of the loader is the candidates.
        epoch: "steps": as many steps as the loader has batches; "pass": one pass over the
            candidates.
        pad: what fills up shorter sequences where batches of an iterable are joined: a value, or
            one for each key. By default it is found in the batch.
        trial: what keep="auto" may use of your loop: held-out samples, its length, its step.
        scope: among which candidates to choose in a distributed run: those of this "rank", as in
            the paper, or "global", those of all ranks together. Samples then move, so that every
            rank trains as many.
        group: process group of the ranks that train on different data; by default DDP's own, or
            all ranks.
        seed: of the sifter's own random stream.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        exit: int | str | Exit | None = None,
        score: Score | None = None,
        keep: float | Callable[[int], float] | Literal["auto"] | None = None,
        policy: str | Policy | Callable[..., Tensor] = "top",
        trim: float = 0.0,
        explore: float | None = None,
        warmup_steps: int = 0,
        stop_step: int | None = None,
        every: int = 1,
        loss_fn: Callable[..., Tensor] | None = None,
        losses: Losses | None = None,
        forward: Forward | None = None,
        labels: GetLabels | None = None,
        ids: Ids | None = None,
        batch_size: BatchSize | None = None,
        take: Take | None = None,
        stack: str | None = None,
        score_batch_size: int | None = None,
        nonfinite: Literal["raise", "drop"] = "raise",
        audit_every: int | None = None,
        audit_log: str | Path | None = None,
        draws: Literal["samples", "batch"] = "samples",
        epoch: Literal["steps", "pass"] = "steps",
        pad: Pad | None = None,
        trial: Trial | None = None,
        scope: Literal["rank", "global"] = "rank",
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        one_of("nonfinite", nonfinite, "raise", "drop")
        one_of("draws", draws, "samples", "batch")
        one_of("epoch", epoch, "steps", "pass")
        exit, keep = choose_mode(exit, keep, policy)
        check_auto(keep, policy=policy, draws=draws, scope=scope, trial=trial)
        self.model, self.exit = model, make_competing(make_exit(exit), keep)
        self.draws, self.epoch, self.pad, self.seed = draws, epoch, pad, seed
        self.rule = make_rule(policy, self.exit, keep=keep, trim=trim, explore=explore)
        scored = self.rule.policy.scored and keep != 1.0
        self.meter, self.cursor = Meter(), Cursor()
        self.auditor = Auditor(
            self.meter,
            every=audit_every,
            log=audit_log,
            silent=not scored,
            remedy=self.exit.remedy,
            cheaper=self.exit.cheaper,
        )
        self._scorer = make_scorer(
            model,
            self.exit,
            score=score,
            call=Call(forward, labels, ids=ids, batch_size=batch_size, take=take),
            loss_fn=loss_fn,
            losses=losses,
            batch_size=score_batch_size,
            idle=not scored,
        )
        self.pilot: Pilot | None = None
        if isinstance(self.exit, AutoExit) and keep == AUTO:
            self.pilot = keep = make_pilot(
                self._scorer, self.exit, meter=self.meter, rule=self.rule, trial=trial, seed=seed
            )
        assert not isinstance(keep, str | None)
        self.schedule = Schedule(keep, warmup_steps, stop_step, every)
        if scored:  # what keeps everything, or chooses at random, needs no exit
            self.exit.suits(Setting(self._scorer.score, scope, self._scorer.call, trim))
            self.exit.bind(self._scorer.model, stack)
        settings = {"seed": seed, **self.settings(), "audit_every": audit_every}
        self._group, self._generator = group, torch.Generator().manual_seed(seed)
        join_ranks(self._scorer, self.auditor, scope, group, settings)
        shared: Any = {"meter": self.meter, "auditor": self.auditor, "pilot": self.pilot}
        self.chooser = Chooser(
            self._scorer,
            rule=self.rule,
            schedule=self.schedule,
            generator=self._generator,
            nonfinite=nonfinite,
            together=self.ranks if scope == "global" else None,
            **shared,
        )
        self.observer = Observer(
            self._scorer,
            self.exit,
            trims=trim > 0,
            idle=not scored,
            wrapped=weakref.WeakMethod(self.trained_in),
            **shared,
        )

    def __call__(self, loader: Iterable[Any]) -> SiftedLoader:
        """Wrap a loader as it is; iterating gives the batches to train on, of its batch size."""
        return SiftedLoader(self, loader)

    def __repr__(self) -> str:
        plan = self._scorer.plan
        objective = "found on the first batch" if plan is None else str(plan)
        return (
            f"Sifter(exit={self.exit!r}, score={self._scorer.score!r}, {self.schedule}, {self.rule},\n"
            f"       objective: {objective})"
        )

    def settings(self) -> dict[str, Any]:
        """What is selected by, in plain values: for logs, and for ranks to compare."""
        return settings_of(self._scorer, self.rule, self.schedule)

    def trained_in(self, model: nn.Module) -> None:
        """Take note that the model was wrapped for DDP, or sharded, since; in a loop, its steps tell."""
        join_late(self._scorer, model, self.auditor, self._group)

    def rehearse(self) -> None:
        """Sift and audit every batch from now on, silently: to measure what both cost."""
        self.schedule = replace(self.schedule, warmup_steps=0, stop_step=None, every=1)
        self.chooser.schedule = self.schedule
        if self.pilot is not None:
            self.pilot.rehearse()
        self.auditor.every, self.auditor.silent, self.auditor.log = 1, True, None

    @property
    def ranks(self) -> Ranks | None:
        """The ranks that this one stays in step with; None where it need not."""
        return self._scorer.ranks

    @property
    def step(self) -> int:
        """Training batches handed out so far."""
        return self.meter.counts["steps"]

    @property
    def weights(self) -> Tensor:
        """Weights of the batch that is being trained: `loss = (sifter.weights * losses).mean()`.

        All ones where nothing was selected: in warm-up, or under a policy without weights.
        """
        step = self.observer.current
        if step is None:
            raise RuntimeError("no batch was handed out yet, so there are no weights")
        if step.selection is not None:
            return step.selection.weights
        return torch.ones(step.size, device=self.device)

    def score(self, batch: Any) -> Tensor:
        """The score of every sample in a batch. Nothing is counted, and no exit learns from it."""
        scores_B = self._scorer.scores(batch, learn=False)
        if scores_B is None:
            return torch.zeros(self.chooser.samples.size(batch), device=self.device)
        return scores_B

    def select(self, batch: Any) -> Selection:
        """Score a batch of candidates and choose among them, whatever the schedule says.

        For loops that do not iterate over `sifter(loader)`; it counts as a step.
        """
        size = self.chooser.samples.size(batch)
        if size < 2:
            raise ValueError(
                f"a candidate batch of {size} leaves nothing to choose from: let the loader yield 1/keep "
                "times the batch you train on"
            )
        self.observer.end_step()
        if not self.meter.counts["steps"]:
            self.chooser.check(batch, divides=False)
        step = self.chooser(batch, size)
        assert step.selection is not None
        counts = self.meter.counts
        counts["candidates_seen"] += size
        counts["samples_trained"] += step.size
        counts["steps"] += 1
        self.observer.hand_out(step, step.selection.batch)
        return step.selection

    def observe(self, losses: Tensor) -> None:
        """Report the exact losses of the batch handed out last, as met in training.

        With `explore` they measure ρ_approx for free, and a `MemoryExit` remembers them. A loop
        over `sifter(loader)` need not call this: the model's own training forward is read there.
        """
        self.observer.observe(losses)

    def stats(self, *, reduce: bool = False) -> Stats:
        """What sifting cost, what it kept and how well it chose.

        Args:
            reduce: over all ranks instead of on this one; `meter.reduced` says how. All ranks
                must ask, or those that do wait in vain. The same as without in a plain run.
        """
        stats = self.meter.stats()
        if self.pilot is not None:
            stats = replace(stats, **self.pilot.summary())
        if not reduce or not in_use():
            return stats
        ranks = self.ranks or Ranks(lambda: self.device, group_of(self.model))
        return reduced(ranks.gather((stats, self.meter.explored_means)))

    def state_dict(self, *, epoch_over: bool = False) -> dict[str, Any]:
        """Everything needed to go on identically, as plain tensors and numbers.

        Args:
            epoch_over: whether the place in the loader is left out, so that whoever goes on
                begins an epoch anew.
        """
        return saved(self, epoch_over=epoch_over)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, in the middle of an epoch too.

        The next iteration goes on after the last batch handed out before the state was taken. A
        state that is refused changes nothing.
        """
        load_saved(self, state)

    @property
    def device(self) -> torch.device:
        """Where the model is, and candidates are scored."""
        return self._scorer.device

    @property
    def scoring(self) -> bool:
        """Whether the forward under way is one of the sifter's: for users' own hooks."""
        return self._scorer.active
