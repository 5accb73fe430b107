"""The `Sifter`: scores candidates at an exit, chooses among them, and watches how well it does.

loader ─ candidates ─▶ exit (truncated forward) ─▶ scores ─▶ selection ─▶ the user's step
                                                                 │
                                 meter ◀── audits (exact losses) ┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sifting.data import batch as batches
from sifting.exits.base import Exit
from sifting.exits.block import BlockExit
from sifting.exits.scoring import Scorer
from sifting.exits.tuned import TunedExit
from sifting.loader import SiftedLoader
from sifting.measure.audit import Auditor, explored_means
from sifting.measure.meter import SPAN, Meter, Stats, reduced
from sifting.model.by_sample import Losses
from sifting.model.call import Call, Forward, GetLabels, Ids
from sifting.model.objective import PerSampleLoss, Score
from sifting.parallel.detect import data_parallel, in_use
from sifting.parallel.ranks import Ranks, Share, even_count
from sifting.rng import Streams
from sifting.select import scores
from sifting.select.policies import Choice, Policy, Rule
from sifting.select.schedule import Schedule

EXPLORE = 0.25  # default share of random picks with a tuned exit
VOCABULARY_EVERY = 16  # a pass over a vocabulary is not free: read training losses this seldom


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


# What is known of a batch handed out: its selection, random picks and kept of all ranks, its members.
Handout = tuple[Selection | None, int, int, Any]


class Sifter:
    """Hands a training loop only the samples of each batch that are worth a backward pass.

    >>> data = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)]
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    >>> sifter = Sifter(model, exit=1, score="loss", keep=0.5)
    >>> [len(labels) for _, labels in sifter(data)]
    [4, 4, 4]

    The paper's setting is `exit=1, score="loss"` (or "entropy"), `keep=0.5`. The defaults are
    what has held up best in our measurements: entropy at a tuned exit, a quarter of the kept
    samples picked at random.

    Args:
        model: the model that is trained, as it is: plain, compiled or wrapped for DDP.
        exit: block number from 1, "last" (the whole model, exact), a block's dotted path,
            "tuned", a `TunedExit`, an `AdditiveExit` or a `MemoryExit`.
        score: "loss", "entropy", "margin", "grad_norm", or a function `(logits, labels) -> scores`.
        keep: share of the candidates to train on, in (0, 1], or a function of the step.
        policy: "top", "random", "percentile" or "proportional"; see `selection.choose`.
        beta: exponent of "percentile".
        trim: share of the candidates with the most extreme scores, as suspected label noise,
            that is never kept.
        explore: share of the kept that is drawn at random from the rest. By default 0.25 with
            a tuned exit (0 under "proportional") and 0, the paper's rule, with any other.
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
        stack: dotted path of the list of blocks, where it cannot be told.
        score_batch_size: candidates scored at a time; all at once by default.
        nonfinite: "raise" on scores that are not finite, or "drop" to rank them last.
        audit_every: selections between two audits of the choice against exact losses; 0 for
            none. By default as many as make audits cost 1 % of training.
        audit_log: a file to which each audit's early and exact losses are appended, as JSON
            lines, for the estimators of `sifting.theory`.
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
        exit: int | str | Exit = "tuned",
        score: Score = "entropy",
        keep: float | Callable[[int], float] = 0.5,
        policy: Policy = "top",
        beta: float = 1.0,
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
        stack: str | None = None,
        score_batch_size: int | None = None,
        nonfinite: Literal["raise", "drop"] = "raise",
        audit_every: int | None = None,
        audit_log: str | Path | None = None,
        scope: Literal["rank", "global"] = "rank",
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not callable(score) and score not in scores.BY_NAME:
            raise ValueError(
                f"score={score!r} is unknown: choose one of {', '.join(scores.BY_NAME)}, or pass a "
                "function (logits, labels) -> scores"
            )
        if nonfinite not in ("raise", "drop"):
            raise ValueError(f"nonfinite={nonfinite!r}: choose 'raise' or 'drop'")
        if scope not in ("rank", "global"):
            raise ValueError(f"scope={scope!r}: choose 'rank' or 'global'")
        if score_batch_size is not None and (
            not isinstance(score_batch_size, int) or score_batch_size < 1
        ):
            raise ValueError(
                f"score_batch_size={score_batch_size!r}: give a whole number from 1, or None for all"
            )
        self.model = model
        self.schedule = Schedule(keep, warmup_steps, stop_step, every)
        self.exit = make_exit(exit)
        if explore is None:
            # "proportional" corrects for its own choice, and needs no insurance
            insured = isinstance(self.exit, TunedExit) and policy != "proportional"
            explore = EXPLORE if insured else 0.0
        self.rule = Rule(policy, beta, trim, explore)
        if not callable(keep) and trim + keep > 1:
            raise ValueError(
                f"trim={trim} and keep={keep} add up to more than all candidates: lower one of them"
            )
        self.scored_by = score
        self.nonfinite = nonfinite
        self.meter = Meter()
        self.auditor = Auditor(
            self.meter,
            every=audit_every,
            log=audit_log,
            by_loss=score == "loss",
            silent=policy == "random",
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.last: Selection | None = None
        self.handed = 0  # samples in the batch handed out last
        self.batches_met = 0  # candidate batches since warm-up ended
        self.position: dict[str, Any] | None = None  # in the loader, while one is iterated
        self.resuming = False
        self.scorer = Scorer(
            model,
            self.exit,
            score=score,
            call=Call(forward, labels, ids=ids),
            loss_fn=None if loss_fn is None else PerSampleLoss(loss_fn),
            losses=losses,
            batch_size=score_batch_size,
            idle=policy == "random",
        )
        # on every rank, though one writes: they have to run the model equally often
        self._logs_early = audit_log is not None and policy != "random" and score != "loss"
        self._explored = self._kept = 0  # random picks and kept of the last choice, of all ranks
        self._given: Any = None  # the batch handed out last, for an exit that observes
        self._heard = False  # whether its losses were reported
        self._observing = self.exit.observes and policy != "random" and keep != 1.0
        if policy != "random":
            self.exit.suits(score=score, scope=scope, call=self.scorer.call, trim=trim)
            self.exit.bind(self.scorer.model, stack)
        self.scope = scope
        self._group = group
        self.ranks = self.scorer.ranks = self._find_ranks()
        if self.ranks is not None:
            self._join_ranks(self.ranks, seed)

    def _find_ranks(self) -> Ranks | None:
        """The ranks that scoring has to stay in step with; None where it has to with none."""
        wrapper = data_parallel(self.model)
        if self._group is None and wrapper is not None:
            self._group = wrapper.process_group
        learns = isinstance(self.exit, TunedExit) and wrapper is not None
        if self.scope == "global" or (in_use() and (self.scorer.sharded or learns)):
            return Ranks(lambda: self.device, self._group)
        return None

    def _join_ranks(self, ranks: Ranks, seed: int) -> None:
        scored = self.rule.policy != "random" and self.exit.runs
        scored = scored and not isinstance(self.exit, BlockExit)
        if self.scorer.sharded and scored and getattr(self.exit, "stack", None) is None:
            raise ValueError(
                f"{self.exit!r} leaves the model's forward in the middle, which sharded parameters do not "
                "survive (fully_shard gathers and frees them around it): choose exit=k, exit='last' or a "
                "TunedExit at a block of the stack, or train with DDP"
            )
        if isinstance(self.exit, TunedExit):
            self.exit.average = ranks.average
        if self.scope != "global":
            return
        keep = self.schedule.keep
        ranks.agree(
            {
                "seed": seed,
                "keep": "a function" if callable(keep) else keep,
                "score": "a function" if callable(self.scored_by) else self.scored_by,
                "exit": repr(self.exit),
                **asdict(self.rule),
                "warmup_steps": self.schedule.warmup_steps,
                "stop_step": self.schedule.stop_step,
                "every": self.schedule.every,
                "audit_every": self.auditor.every,
            }
        )
        if ranks.rank > 0:  # all ranks judge the same choice: one of them tells
            self.auditor.silent, self.auditor.log = True, None

    def __call__(self, loader: Iterable[Any]) -> SiftedLoader:
        """Wrap a loader of candidates; iterating gives the batches to train on."""
        return SiftedLoader(self, loader)

    def __repr__(self) -> str:
        plan = "found on the first batch" if self.scorer.plan is None else str(self.scorer.plan)
        return (
            f"Sifter(exit={self.exit!r}, score={self.scored_by!r}, {self.schedule}, {self.rule},\n"
            f"       objective: {plan})"
        )

    @property
    def step(self) -> int:
        """Training batches handed out so far."""
        return self.meter.counts["steps"]

    @property
    def weights(self) -> Tensor:
        """Weights of the batch handed out last: `loss = (sifter.weights * losses).mean()`.

        All ones where nothing was selected: in warm-up, or under a policy without weights.
        """
        if self.last is not None:
            return self.last.weights
        if not self.handed:
            raise RuntimeError("no batch was handed out yet, so there are no weights")
        return torch.ones(self.handed, device=self.device)

    def score(self, batch: Any) -> Tensor:
        """The score of every sample in a batch. Nothing is counted, and no exit learns from it."""
        scores_B = self.scorer.scores(batch, learn=False)
        if scores_B is None:
            return torch.zeros(batches.batch_size(batch), device=self.device)
        return scores_B

    def select(self, batch: Any) -> Selection:
        """Score a batch of candidates and choose among them, whatever the schedule says.

        For loops that do not iterate over `sifter(loader)`; it counts as a step.
        """
        size = batches.batch_size(batch)
        if size < 2:
            raise ValueError(
                f"a candidate batch of {size} leaves nothing to choose from: let the loader yield 1/keep "
                "times the batch you train on"
            )
        self.end_step()
        selection = self.sift(batch, size)
        self.meter.counts["candidates_seen"] += size
        self.meter.counts["samples_trained"] += len(selection.indices)
        self.meter.counts["steps"] += 1
        self.hand_out(selection.batch)
        return selection

    def sift(self, batch: Any, size: int) -> Selection:
        """What `select` does, without counting a step: the loader counts its own."""
        device = self.device
        keep = self.schedule.keep_at(self.step)
        with self.meter.time("scoring", device):
            rule = self.rule
            found = None if rule.policy == "random" else self.scorer.scores(batch, learn=True)
            if found is None:  # nothing to go by
                scores_B, rule = torch.zeros(size, device=device), replace(rule, policy="random")
            else:
                scores_B = found
            choice = self._choose(batch, scores_B, rule)
        self.meter.counts["selections"] += 1
        if self.auditor.due(keep):
            with self.meter.time("auditing", device):
                self._audit(batch, choice)
        assert self.last is not None
        return self.last

    def hand_out(self, batch: Any) -> None:
        """Take note of a batch that is about to be trained."""
        self.handed = batches.batch_size(batch)
        self._heard = False
        if self._observing:
            self._given = batches.shell(batch)  # the user may take members out of theirs
            if self.last is None:
                self.scorer.check(batch)  # not selected, so nobody has asked yet how it is scored

    def end_step(self) -> None:
        """The batch handed out last is trained: its losses have been reported by now, or are lost."""
        if self._given is not None and not self._heard:
            self.exit.unheard()

    @property
    def handout(self) -> Handout:
        """What is known of the batch handed out last.

        For loops that fetch several batches before they train the first: keep it with each, and
        set it before its step.
        """
        return self.last, self._explored, self._kept, self._given

    @handout.setter
    def handout(self, value: Handout) -> None:
        self.last, self._explored, self._kept, self._given = value
        self._heard = False

    def _choose(self, batch: Any, scores_B: Tensor, rule: Rule) -> Choice:
        """Choose among this rank's candidates or all ranks', and take what is trained here."""
        sizes: tuple[int, ...] = (len(scores_B),)
        together = self.ranks if self.scope == "global" else None
        if together is not None:
            scores_B, sizes = together.join(scores_B, batch, self.generator)
        scores_B = self._finite(scores_B)
        count = self.schedule.count(step=self.step, size=len(scores_B))
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
        self.last = Selection(
            choice.indices_K[mine], choice.weights_K[mine], scores_B, kept, choice.explored_K[mine]
        )
        self._explored, self._kept = choice.explored, count
        return choice

    def check(self, batch: Any) -> None:
        """Find out how the model is scored, so that what cannot work fails on the first batch."""
        if self.ranks is not None and self.scope == "global" and not callable(self.schedule.keep):
            sizes = [batches.batch_size(batch)] * self.ranks.world
            count = self.schedule.count(step=0, size=sum(sizes))
            if count != even_count(count, sizes):
                raise ValueError(
                    f"keep={self.schedule.keep} of {sizes[0]} candidates on each of {len(sizes)} ranks makes "
                    f"{count}, which does not divide among them: choose a candidate batch whose kept part "
                    "is a whole number on every rank"
                )
        if self.rule.policy == "random":
            return
        self.scorer.check(batch)

    def stats(self, *, reduce: bool = False) -> Stats:
        """What sifting cost, what it kept and how well it chose.

        Args:
            reduce: over all ranks instead of on this one; `meter.reduced` says how. All ranks
                must ask, or those that do wait in vain. The same as without in a plain run.
        """
        own = self.meter.stats()
        if not reduce or not in_use():
            return own
        ranks = self.ranks or Ranks(lambda: self.device, self._group)
        return reduced(ranks.gather((own, self.meter.explored_means)))

    def observe(self, losses: Tensor) -> None:
        """Report the exact losses of the batch handed out last, as met in training.

        With `explore` they measure ρ_approx for free, and a `MemoryExit` remembers them. A loop
        over `sifter(loader)` need not call this: the model's own training forward is read there.
        """
        selection = self.last
        if selection is None and self._given is None:
            return
        count = batches.batch_size(self._given) if selection is None else len(selection.indices)
        if losses.shape != (count,):
            raise ValueError(
                f"observe() takes one loss for each of the {count} samples handed out last, "
                f"got a tensor of shape {tuple(losses.shape)}"
            )
        self._heard = True
        if self._given is not None:
            self.exit.observe(self.scorer.call, self._given, losses)
        if selection is None:
            return
        # where samples were trimmed, no random pick stands for them
        if not 0 < self._explored < self._kept or self.rule.trim > 0:
            return
        means = explored_means(
            losses,
            selection.explored,
            explored=self._explored,
            candidates=len(selection.scores),
            kept=self._kept,
        )
        self.meter.observe(means)
        if self.meter.observed % SPAN == 0:
            self.auditor.speak_up(self.step)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on identically, as plain tensors and numbers."""
        return {
            "version": 1,
            "generator": self.generator.get_state(),
            "batches_met": self.batches_met,
            "autocast": self.scorer.autocast,
            "position": None if self.position is None else _plain(self.position),
            "meter": self.meter.state_dict(),
            "exit": self.exit.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, in the middle of an epoch too.

        The next iteration goes on after the last batch handed out before the state was taken.
        """
        if state.get("version") != 1:
            raise ValueError(
                f"this sifter state has version {state.get('version')!r}; this release reads version 1"
            )
        self.generator.set_state(state["generator"].cpu())
        self.batches_met = int(state["batches_met"])
        self.scorer.autocast = int(state["autocast"])
        self.position = None if state["position"] is None else _from_plain(state["position"])
        self.resuming = self.position is not None
        self.meter.load_state_dict(state["meter"])
        self.exit.load_state_dict(state["exit"])
        self.last = self._given = None

    @property
    def device(self) -> torch.device:
        """Where the model is, and candidates are scored."""
        return self.scorer.device

    @property
    def scoring(self) -> bool:
        """Whether the forward under way is one of the sifter's: for users' own hooks."""
        return self.scorer.active

    def _finite(self, scores_B: Tensor) -> Tensor:
        broken_B = ~scores_B.isfinite()
        if not bool(broken_B.any()):
            return scores_B
        if self.nonfinite == "drop":
            return scores_B.masked_fill(broken_B, -math.inf)
        rows = broken_B.nonzero().squeeze(1).tolist()
        shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
        raise NotFinite(
            f"the scores of {len(rows)} of {len(scores_B)} candidates are not finite (rows {shown}): look "
            "at these samples and at the model's weights; nonfinite='drop' ranks such samples last"
        )

    def _audit(self, batch: Any, choice: Choice) -> None:
        found: list[Any] | None = self.scorer.examine(batch, early=self._logs_early)
        if found is None:
            return
        if self.ranks is not None and self.scope == "global":
            here = [tuple(v if v is None else v.cpu() for v in piece) for piece in found]
            found = [piece for pieces in self.ranks.gather(here) for piece in pieces]
        wrong = [flags for _, flags, _ in found if flags is not None]
        early = [losses for *_, losses in found if losses is not None]
        assert self.last is not None
        self.auditor.judge(
            step=self.step,
            scores_B=self.last.scores,
            exact_B=torch.cat([losses for losses, *_ in found]).float(),
            wrong_B=torch.cat(wrong) if wrong else None,
            indices_K=choice.indices_K.to(found[0][0].device),
            early_B=torch.cat(early) if early else None,
        )

    def read_training_forward(self, output: Any) -> None:
        """Learn from the model's forward in the user's step: its autocast, and its exact losses.

        From the first that fits the batch: a second may be of other weights (SAM), of other
        inputs, or a recomputation.
        """
        if self.scoring or not torch.is_grad_enabled():
            return
        self.scorer.note_autocast()
        if self._heard:
            return
        plan, selection, given = self.scorer.plan, self.last, self._given
        if plan is None:
            return
        if given is None:
            if selection is None or self._explored == 0:
                return
            if plan.heads and self.meter.counts["selections"] % VOCABULARY_EVERY:
                return
            given = selection.batch
        losses_K = self.scorer.losses(output, given)
        if losses_K is not None and losses_K.shape == (batches.batch_size(given),):
            self.observe(losses_K)


def _plain(position: Mapping[str, Any]) -> dict[str, Any]:
    """A position in a loader as tensors and numbers."""
    return {
        name: value.to_plain() if isinstance(value, Streams) else value
        for name, value in position.items()
    }


def _from_plain(position: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: Streams.from_plain(value) if isinstance(value, Mapping) else value
        for name, value in position.items()
    }


def make_exit(exit: int | str | Exit) -> Exit:
    """The exit that the argument `exit=` stands for."""
    if isinstance(exit, Exit):
        return exit
    return TunedExit() if exit == "tuned" else BlockExit(exit)
