"""Running a model to score candidates: by a plan, without a trace, under the user's autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
<<<<<<< HEAD
from contextlib import AbstractContextManager, contextmanager, nullcontext
=======
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
>>>>>>> main
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import to_device
from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit
from sifting.exits.beside import Beside
from sifting.exits.block import BlockExit
from sifting.exits.checks import check_count
from sifting.exits.economy import Economy
from sifting.exits.planning import Planner
from sifting.exits.reuse import Reuse
from sifting.log import say
from sifting.model.by_sample import Losses
from sifting.model.call import Call
<<<<<<< HEAD
from sifting.model.evidence import MOST_CHECKS, Evidence
from sifting.model.in_step import in_step
from sifting.model.no_trace import no_trace
from sifting.model.objective import PerSampleLoss, Score
from sifting.model.plan import Plan, probe_rows, signature
=======
from sifting.model.no_trace import no_trace
from sifting.model.objective import PerSampleLoss, Score
from sifting.model.plan import Plan
from sifting.model.replica import changing_hooks
>>>>>>> main
from sifting.parallel.detect import first_rank, sharded, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import StreamWatch

DTYPES = (None, torch.bfloat16, torch.float16)  # of autocast, by their number in the state

Examined = tuple[Tensor, Tensor | None, Tensor | None]


class Scorer(Planner):
    """Scores batches at an exit, and examines them by the whole model.

    Args:
        model: the model, wrapped or not.
        exit: where to score; bound by the caller.
        score: by what; None for what suits the exit and the objective.
        call: how the model is called.
        loss_fn: the user's loss.
        losses: the user's losses of model and batch.
        batch_size: candidates that go through the model at a time; None for all.
        idle: whether the exit is not used at all (random choice).
        economy: how much of each candidate is scored; all of it by default.
    """

    def __init__(
        self,
        model: nn.Module,
        exit: Exit,
        *,
        score: Score | None,
        call: Call,
        loss_fn: PerSampleLoss | None,
        losses: Losses | None = None,
        batch_size: int | None,
        idle: bool,
        economy: Economy | None = None,
    ) -> None:
        super().__init__()
        self.whole, self.model = model, unwrap(model)
        self.economy = Economy() if economy is None else economy
        self.exit, self.call, self.loss_fn = exit, call, loss_fn
        self.score: Score = exit.default_score if score is None else score
        self._by_default = score is None
        self.losses_fn, self.batch_size, self.idle = losses, batch_size, idle
        self.sharded = sharded(self.model)
        self.ranks: Ranks | None = None  # those that have to run the model in step with this one
        self._busy = threading.local()
        self.beside: Beside | None = None  # scores the next candidates while a step is trained
        self.reuse: Reuse | None = None  # hands a frozen prefix's states to the training forward
        self.autocast = 0  # of the user's training forward, as a place in DTYPES
        self._exact = BlockExit("last")

    @property
    def device(self) -> torch.device:
        """Where the model is, and candidates are scored."""
        for parameter in self.model.parameters():
            return parameter.device
        return torch.device("cpu")

    @property
    def active(self) -> bool:
        """Whether this thread runs the model to score; the user's own may train it meanwhile."""
        return getattr(self._busy, "now", False)

    def scores(self, batch: Any, *, learn: bool) -> Tensor | None:
        """Scores of a batch; None where none of its samples has a label."""
        beside = self.beside if learn else None
        found_B = None if beside is None else beside.take(batch)
        if found_B is None:
            return self.score_here(batch, learn=learn, beside=beside)
        self.check(batch)  # in a run that was resumed, the plan is not known yet
        if self.plan is not None:
            with torch.no_grad():
                self.exit.learn(self.plan)
        return found_B

    def score_here(self, batch: Any, *, learn: bool, beside: Beside | None = None) -> Tensor | None:
        """Scores of a batch, made now.

        Args:
            learn: whether an exit with weights of its own learns from it.
            beside: holds its copy of the model against this, where it has not yet.
        """
        moved, still = self._given(batch)
        with torch.no_grad() if still else self._pass():
            plan = self._planned(moved, batch)
            if plan is None:
                return None
            plan = plan.trusting(batch)
            if learn and self.economy.low is None:
                self._measure_precision(plan, moved)
            proves = beside is not None and not still and beside.wants_proof(moved)
            with ExitStack() as stack:
                hooks = stack.enter_context(changing_hooks(self.model)) if proves else []
                if self.reuse is not None and learn:
                    stack.enter_context(self.reuse.watching(moved))
                streams = StreamWatch(self.device) if proves else None
                scores_B = self.scored(plan, moved, learn=learn)
                random = streams is not None and streams.drawn
            if proves:
                assert beside is not None
                beside.prove(moved, plan, scores_B.float(), random, hooks)
            if learn:
                self.exit.learn(plan)  # after all of them, so that their scores can be compared
        return scores_B.float().to(self.device)

<<<<<<< HEAD
    def _scored(self, plan: Plan, batch: Any, *, learn: bool) -> Tensor:
        """Scores of a batch at the exit, piece by piece."""
        with self.economy.drawing(advance=learn):
            pieces = self._pieces(batch)
            return torch.cat([self._at_exit(plan, one, self.score, learn=learn) for one in pieces])
=======
    def scored(
        self,
        plan: Plan,
        batch: Any,
        *,
        learn: bool,
        exit: Exit | None = None,
        model: nn.Module | None = None,
        economy: Economy | None = None,
    ) -> Tensor:
        """Scores of a batch at the exit, piece by piece.

        Args:
            exit, model, economy: those of a copy of the model, whose positions are drawn already.
        """
        with nullcontext() if economy is not None else self.economy.drawing(advance=learn):
            found = [
                self._at_exit(plan, piece, self.score, learn, exit, model, economy)
                for piece in self.pieces(batch)
            ]
        check_count(self.call.samples, batch, sum(map(len, found)))
        return torch.cat(found)
>>>>>>> main

    def _at_exit(
        self,
        plan: Plan,
        batch: Any,
        score: Score,
        learn: bool,
        exit: Exit | None = None,
        model: nn.Module | None = None,
        economy: Economy | None = None,
    ) -> Tensor:
        """Scores of some samples by as much of them as is looked at."""
<<<<<<< HEAD
        seen = self.economy.viewed(self.call, batch)
        with self.economy.lowered(self.device):
            chosen = self.economy.chosen(plan, seen)
            return self.exit.score(chosen, self.model, seen, score, learn)

    def _measure_precision(self, plan: Plan, batch: Any) -> None:
        """On the first candidates: is bf16 faster here? Ranks in step take the first one's word."""
        self.economy.measure(lambda: self._scored(plan, batch, learn=False), self.device)
=======
        exit, economy = exit or self.exit, economy or self.economy
        seen = economy.viewed(self.call, batch)
        with economy.lowered(self.device):
            return exit.score(economy.chosen(plan, seen), model or self.model, seen, score, learn)

    def _measure_precision(self, plan: Plan, batch: Any) -> None:
        """Once, on the first candidates: is bf16 faster here? Ranks in step take the first one's word."""
        self.economy.measure(lambda: self.scored(plan, batch, learn=False), self.device)
>>>>>>> main
        if self.ranks is not None:
            self.economy.low = self.ranks.gather(self.economy.low)[0]
        if self.economy.low and first_rank():
            say("candidates are scored in bf16, which was measured to be faster here")

    def _given(self, batch: Any) -> tuple[Any, bool]:
        """A batch where it is scored, and whether nothing of the model is run for it."""
        known = self.kind(batch) in self.plans
        still = known and not self.exit.runs  # nothing to be quiet about, nothing to move
        return (batch if still else self.moved(batch)), still

    def rehearse(
        self, batch: Any, ids: Sequence[Any] | None, *, learn: bool = True
    ) -> dict[str, Tensor]:
        """The scores of every scorer that competes, of a batch that nothing is chosen from.

        Args:
            ids: of its samples, where they are known.
            learn: whether those with weights of their own learn from it.
        """
        assert isinstance(self.exit, AutoExit)
        moved, still = self._given(batch)
        with torch.no_grad() if still else self._pass():
            plan = self._planned(moved)
            if plan is None:
                return {}
            economy = self.economy
            seen = economy.viewed(self.call, moved)
            with economy.drawing(advance=learn), economy.lowered(self.device):
                return self.exit.scores_of_all(
                    economy.chosen(plan, seen), self.model, seen, self.score, learn=learn, ids=ids
                )

    def examine(self, batch: Any, *, early: bool) -> list[Examined] | None:
        """Piece by piece: exact losses, what is misclassified, and the exit's own losses.

        None where there are no labels, and so no exact loss.

        Args:
            early: whether the exit's losses are wanted.
        """
        moved = self.moved(batch)
        with self._pass():
            plan = self._planned(moved)
            if plan is None or any(part.labels is None for part in plan.parts):
                return None
            found: list[Examined] = []
            with self.economy.drawing(advance=False):
                for piece in self.pieces(moved):
                    exact_B, wrong_B = self._exact.examine(plan, self.model, piece)
                    early_B = self._at_exit(plan, piece, "loss", False) if early else None
                    found.append((exact_B, wrong_B, early_B))
        return found

    def check(self, batch: Any) -> None:
        """Find out how the model is scored, so that what cannot work fails on the first batch."""
        known = self.plans.get(self.kind(batch))
        if known is not None:
            self.plan = known
            return
        moved = self.moved(batch)
        with self._pass():
            plan = self._planned(moved)
            if plan is not None and not self.idle:
                self._try_everything(plan, moved)

    def _try_everything(self, plan: Plan, batch: Any) -> None:
        """Score and examine some samples, so that nothing fails for the first time later on."""
        samples = self.call.samples
        size = samples.size(batch)
        some = samples.take(batch, torch.arange(min(size, 2)), size=size)
        if self.exit.runs:
            with self.economy.naming(), self.economy.drawing(advance=False):
                self._at_exit(plan, some, self.score, False)
        if all(part.labels is not None for part in plan.parts):
            self._exact.examine(plan, self.model, some)

    def losses(self, output: Any, batch: Any) -> Tensor | None:
        """Each sample's loss from the output of the user's own forward; None where it does not fit."""
        if self.plan is None:
            return None
        with torch.no_grad():
            return self.plan.trusting(batch).losses(output, self.moved(batch))

    def note_autocast(self) -> None:
        """Remember the autocast that is open now, in the user's training forward."""
        device = self.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.autocast = DTYPES.index(dtype) if dtype in DTYPES else 0

    @property
    def autocasts(self) -> torch.dtype | None:
        """The precision of the user's training forward, where autocast is open in it."""
        return DTYPES[self.autocast]

    def moved(self, batch: Any) -> Any:
        """A batch on the model's device."""
        return to_device(batch, self.device)

    def pieces(self, batch: Any) -> list[Any]:
        samples = self.call.samples
        return samples.split(batch, self.batch_size or samples.size(batch))

    @contextmanager
    def _pass(self) -> Iterator[None]:
        with self.busy(), no_trace(self.model), self.mirrored_autocast():
            yield

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While open, forwards of the model in this thread are not the user's own."""
        before, self._busy.now = self.active, True
        try:
            yield
        finally:
            self._busy.now = before

    def mirrored_autocast(self) -> AbstractContextManager[Any]:
        """The autocast of the user's training forward, which is open only in the loop's body."""
        device, dtype = self.device.type, self.autocasts
        if dtype is None or torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, dtype=dtype)
<<<<<<< HEAD

    def _kind(self, batch: Any) -> tuple[Any, ...]:
        """What a plan goes by. Ranks in step must find theirs at once, whatever labels each has."""
        # only a model's own loss can ignore a class that nobody was told of
        zeros = self.ranks is None and self.loss_fn is None and self.losses_fn is None
        return signature(
            self.call, batch, zeros=zeros and self.call.takes_labels(self.model, batch)
        )

    def _planned(self, batch: Any) -> Plan | None:
        """How the model is scored on such a batch; None while no sample with a label was seen."""
        kind = self._kind(batch)
        if kind in self._plans and self._holds(kind, batch):
            self.plan = self._plans[kind]
            return self.plan
        rows, probe = self._probe(batch)
        if probe is None:
            self._unplanned += 1
            if self._unplanned == UNPLANNED:
                warn_user(
                    f"{UNPLANNED} batches had no sample with a label, so the kept were picked at random: "
                    f"look at {', '.join(self.call.labels_of(batch))}, or pass labels="
                )
            return None
        plan = Plan.resolve(
            self.call,
            self.model,
            probe,
            self.loss_fn,
            losses=self.losses_fn,
            score=None if self._by_default and self.losses_fn is not None else self.score,
            rows=rows,
        )
        if self.sharded:
            plan = in_step(plan)
        if not self.idle:
            if self._by_default and self.exit.default_score != "loss":
                self.score = plan.default_score()
            plan = plan.for_score(self.score, self.model, probe)
            plan = self.economy.planned(plan, self.score)
            self.economy.check(self.call, batch)
            with self.economy.naming():
                self.exit.prepare(plan, self.model, self.economy.viewed(self.call, probe))
        plan.check_batch(batch)
        self._verify(kind, plan, batch)
        if (not self._plans or kind in self._plans) and first_rank():
            say(f"the objective that is scored is {plan.describe()}")
        if plan.kind == "model":
            warn_user(
                "the model's loss is not one that its logits and labels explain (smoothing, weights, "
                "or no logits), so exact losses are taken from it one sample at a time, which is "
                "slow: pass forward= that returns the logits, and loss_fn="
            )
        self.plan = self._plans[kind] = plan
        return plan

    def _holds(self, kind: tuple[Any, ...], batch: Any) -> bool:
        """Whether a plan gives the model's own loss of a batch with classes that it was not tried on."""
        plan = self._plans[kind]
        still = self.ranks is not None or not self.exit.runs  # nothing more is run for it
        if still or self._evidence[kind].suffices(plan, batch):
            return True
        try:
            self._verify(kind, plan, batch)
        except ValueError:  # found anew, or refused
            self._evidence[kind] = Evidence()
            return False
        return True

    def _verify(self, kind: tuple[Any, ...], plan: Plan, batch: Any) -> None:
        evidence = self._evidence.setdefault(kind, Evidence())
        if not verifiable(plan, self.model, batch):
            evidence.checks = MOST_CHECKS
            return
        piece = to_verify(plan, batch)
        verify(plan, self.model, piece)
        evidence.add(plan, piece)

    def _probe(self, batch: Any) -> tuple[Tensor | None, Any | None]:
        """Some samples with labels to find out with; the same on all ranks that stay in step.

        What is tried with a sharded model takes as many forwards on every rank.
        """
        rows = probe_rows(self.call, batch)
        probe = None if rows is None else self.call.samples.take(batch, rows)
        if self.ranks is None:
            return rows, probe
        if probe is not None:
            probe = to_device(probe, torch.device("cpu"))
        probe = self.ranks.share_first(probe)
        return None, None if probe is None else self.moved(probe)
=======
>>>>>>> main
