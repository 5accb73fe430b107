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

from sifting import by_hand, compose
from sifting.autopilot.pilot import Pilot
from sifting.autopilot.trial import Trial, say_if_trained
from sifting.budget import checked_budget
from sifting.chooser import Chooser
from sifting.cursor import Cursor
from sifting.data.filling import Filling, Pad
from sifting.data.samples import BatchSize, Take
from sifting.exits import make_competing, make_exit
from sifting.exits.base import Exit, Setting
from sifting.exits.economy import Precision
from sifting.exits.options import make_beside, make_reuse
from sifting.exits.reference import Reference, make_reference
from sifting.loader import SiftedLoader
from sifting.measure.audit import Auditor
from sifting.measure.costs import Costs
from sifting.measure.meter import Meter
from sifting.measure.stats import Stats
from sifting.model.by_sample import Losses
from sifting.model.call import Call, Forward, GetLabels, Ids
from sifting.model.parts import Score
from sifting.model.sampling import RowCount
from sifting.model.viewing import ViewSize
from sifting.observer import Observer
from sifting.selection.policies import Policy
from sifting.selection.schedule import Schedule
from sifting.selection.tokens import Tokens
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

    `Sifter(model)` is the autopilot: everything is trained until its measurements say that a part
    would do as well, and again once they no longer do; `trial=` gives it more to go by. The
    paper's setting is `exit=1, score="loss"` (or "entropy"), `keep=0.5`.

    Args:
        model: the model that is trained, as it is: plain, compiled or wrapped for DDP.
        exit: block number from 1, "last" (the whole model, exact), a block's dotted path,
            "tuned", a `TunedExit`, an `AdditiveExit` or a `MemoryExit`; or "auto", scorers that
            compete: with a fixed `keep`, by what each costs and tells here. By default "auto" where
            `keep` is, else "tuned".
        score: "loss", "entropy", "margin", "grad_norm", "reducible" (the loss less that of a
            `reference`), or a function `(logits, labels) -> scores`. By default what suits the exit.
        reference: of score="reducible": a file of `sift reference`, or another `Reference`.
        keep: share of the candidates to train on, in (0, 1], a function of the step, or "auto".
            By default "auto", and 0.5 where an exit or a policy is named.
        tokens: how a document's score is made of its tokens': "mean", "sum", "share" (above 1) or
            "hardest" (the mean of the highest tenth), an object such as `HardestTokens(0.2)`, or a
            function `(scores, mask) -> scores`. So is its loss.
        budget: what `keep` is a share of: "samples", or "tokens", by which a document costs its
            length and is chosen by its worth per token; or a function `(batch) -> costs`.
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
        losses: `losses(model, batch)`, one loss per sample, where no function of logits and labels gives
            it (diffusion, detection, sample weights). A contrastive loss is that within the batch.
        forward: `forward(model, batch) -> logits`, where the model is called in its own way.
        labels: `labels(batch) -> labels`, where the batch keeps them in its own place.
        ids: key or position, in a batch, of the samples' IDs, or a function of the batch; for exits
            with memory. The sifter calls the model without them; so should your step.
        batch_size: how many samples a batch holds, where that cannot be determined: the number of
            candidates in the first one, the key of the member that has one entry per sample, or a function of it.
        take: `take(batch, indices) -> batch`, where a batch cannot be divided member by member.
        stack: dotted path of the list of blocks, where it cannot be determined.
        score_batch_size: candidates scored at a time; all at once by default.
        rows: how many labelled positions of each sequence are scored, redrawn each time; or
            "labelled": all, and the exit's block only there, which gives the same scores but for rounding.
        view: what is scored of each sample: how many positions from the start of a sequence, a range
            (first, end) of them, how many pixels of an image's shorter side, or `view(batch) -> batch`.
        precision: "bf16", or "auto" to score in bf16 if it is measured to be faster here; by default
            the precision of your training step.
        nonfinite: "raise" on scores that are not finite, or "drop" to rank them last.
        audit_every: selections between two audits of the choice against exact losses; 0 for
            none. By default as many as make audits cost 1 % of training, and of reading.
        audit_log: a file that each audit's early and exact losses are appended to (`sifting.theory`).
        draws: "samples": the loader's batch size is what is trained, and 1/keep times as many
            candidates are drawn from it; "batch": each batch of the loader is the candidates.
        epoch: "steps": as many steps as the loader has batches; "pass": one pass over the
            candidates.
        pad: what fills up shorter sequences where batches of an iterable are joined: a value for the
            inputs, or one for each key. By default it is found in the batches.
        trial: what keep="auto" may use of your loop: held-out samples, its length, its step.
        ahead: 1 to draw and score the next step's candidates while this one is trained, in a thread (on
            CUDA with a stream of its own) and with weights that are one update old.
        reuse: where nothing before the exit is trained, your forward begins with what scoring computed.
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
        reference: str | Path | Reference | None = None,
        keep: float | Callable[[int], float] | Literal["auto"] | None = None,
        tokens: str | Tokens | Callable[..., Tensor] = "mean",
        budget: str | Callable[..., Any] = "samples",
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
        rows: RowCount | None = None,
        view: ViewSize | None = None,
        precision: Precision | None = None,
        nonfinite: Literal["raise", "drop"] = "raise",
        audit_every: int | None = None,
        audit_log: str | Path | None = None,
        draws: Literal["samples", "batch"] = "samples",
        epoch: Literal["steps", "pass"] = "steps",
        pad: Pad | None = None,
        trial: Trial | None = None,
        ahead: int = 0,
        reuse: bool = False,
        scope: Literal["rank", "global"] = "rank",
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        compose.one_of("nonfinite", nonfinite, "raise", "drop")
        compose.one_of("draws", draws, "samples", "batch")
        compose.one_of("epoch", epoch, "steps", "pass")
        exit, keep = compose.choose_mode(exit, keep, policy)
        compose.check_auto(keep, policy=policy, draws=draws, scope=scope, trial=trial)
        competing = make_competing(exit) if keep == compose.AUTO else None
        self.model, self.exit, self._group = model, competing or make_exit(exit), group
        self.draws, self.epoch, self.filling, self.seed = draws, epoch, Filling(pad), seed
        self.rule = compose.make_rule(policy, self.exit, keep=keep, trim=trim, explore=explore)
        scored = self.rule.policy.scored and keep != 1.0
        score, found = make_reference(score, reference, self.exit, keep=keep, rule=self.rule)
        self._generator = torch.Generator().manual_seed(seed)
        economy = compose.make_economy(
            self.exit, self._generator, rows=rows, view=view, precision=precision
        )
        self.meter, self.cursor = Meter(), Cursor()
        self.auditor = Auditor(
            self.meter,
            every=audit_every,
            log=audit_log,
            silent=not scored,
            advice=self.exit,
            explore=self.rule.explore,
            trim=trim,
        )
        self._scorer = compose.make_scorer(
            model,
            self.exit,
            score=score,
            call=Call(forward, labels, ids=ids, batch_size=batch_size, take=take),
            loss_fn=loss_fn,
            losses=losses,
            batch_size=score_batch_size,
            idle=not scored,
            reference=found,
            tokens=tokens,
            economy=economy,
        )
        self.tokens, self.reference = self._scorer.tokens, self._scorer.reference
        self.budget = checked_budget(budget, self.tokens, self.rule, keep)
        self.pilot: Pilot | None = None
        if competing is not None:
            self.pilot = keep = compose.make_pilot(
                self._scorer, competing, meter=self.meter, rule=self.rule, trial=trial, seed=seed
            )
        assert not isinstance(keep, str | None)
        self.schedule = Schedule(keep, warmup_steps, stop_step, every)
        if scored:  # what keeps everything, or chooses at random, needs no exit
            self.exit.suits(Setting(self._scorer.score, scope, self._scorer.call, trim))
            self.exit.bind(self._scorer.model, stack)
        self._scorer.beside = self.beside = make_beside(self._scorer, ahead, auto=bool(self.pilot))
        self._scorer.reuse = make_reuse(self._scorer, reuse, scope=scope, ahead=ahead)
        self.asked = self.settings()  # before a batch has shown what fits
        settings = {"seed": seed, **self.asked, "audit_every": audit_every}
        compose.join_ranks(self._scorer, self.auditor, scope, group, settings)
        shared: Any = {"meter": self.meter, "auditor": self.auditor, "pilot": self.pilot}
        self.chooser = Chooser(
            self._scorer,
            rule=self.rule,
            schedule=self.schedule,
            generator=self._generator,
            nonfinite=nonfinite,
            together=self._scorer.ranks if scope == "global" else None,
            budget=self.budget,
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
        say_if_trained(self.pilot and self.pilot.held_out.trial.held_out, loader)
        return SiftedLoader(self, loader)

    def __repr__(self) -> str:
        return compose.described(self._scorer, self.schedule, self.rule)

    def settings(self) -> dict[str, Any]:
        """What is selected by, in plain values: for logs, and for ranks to compare."""
        return compose.settings_of(self._scorer, self.rule, self.schedule, self.budget)

    def trained_in(self, model: nn.Module) -> None:
        """Take note that the model was wrapped for DDP, or sharded, since; in a loop, its steps tell."""
        compose.join_late(self._scorer, model, self.auditor, self._group)

    def rehearse(self) -> None:
        """Sift and audit every batch from now on, silently: to measure what both cost."""
        by_hand.rehearse(self)

    @property
    def step(self) -> int:
        """Training batches handed out so far."""
        return self.meter.counts["steps"]

    @property
    def weights(self) -> Tensor:
        """Weights of the batch that is being trained: `loss = (sifter.weights * losses).mean()`.

        All ones where nothing was selected, or under a policy without weights.
        """
        return self.observer.weights

    def score(self, batch: Any) -> Tensor:
        """The score of every sample in a batch; nothing is counted, and no exit learns from it."""
        found = self._scorer.scores(batch, learn=False)
        size = self.chooser.samples.size
        return torch.zeros(size(batch), device=self.device) if found is None else found

    def select(self, batch: Any) -> Selection:
        """Score a batch of candidates and choose among them, whatever the schedule says.

        For loops that do not iterate over `sifter(loader)`; it counts as a step.
        """
        return by_hand.select(self, batch)

    def observe(self, losses: Tensor) -> None:
        """Report the exact losses of the batch handed out last, as met in training.

        With `explore` they measure ρ_approx for free, and a `MemoryExit` remembers them. A loop
        over `sifter(loader)` need not call this: the model's own training forward is read there.
        """
        self.observer.observe(losses)

    def wait(self) -> None:
        """With ahead=1: wait until nothing is scored; before you write parameters without an optimizer."""
        if self.beside is not None:
            self.beside.wait()

    def stats(self, *, reduce: bool = False) -> Stats:
        """What sifting cost, what it kept and how well it chose.

        Args:
            reduce: over all ranks, which must all call it: those that do wait for the others.
        """
        stats = replace(self.meter.stats(), economy=str(self._scorer.economy))
        if self.pilot is not None:
            stats = replace(stats, **self.pilot.summary())
        return compose.of_all_ranks(stats, self.meter, self._scorer) if reduce else stats

    def costs(self) -> Costs:
        """What ways of scoring cost beside the step, and how well each ranks: prints as a table.

        With exit="auto" and a fixed `keep`, all that were compared; else the exit in use, by its audits.
        """
        return compose.costs_of(self._scorer, self.stats(), keep=self.schedule.keep_at(self.step))

    def state_dict(self, *, epoch_over: bool = False) -> dict[str, Any]:
        """Everything needed to continue identically, as plain tensors and numbers.

        Args:
            epoch_over: whether the place in the loader is left out: whoever resumes begins an epoch.
        """
        return saved(self, epoch_over=epoch_over)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, after the last batch that was handed out before it was taken.

        A state that is refused changes nothing.
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
