"""Running a model to score candidates: by a plan, without a trace, under the user's autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import describe, to_device
from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit
from sifting.exits.beside import Beside
from sifting.exits.block import BlockExit
from sifting.exits.in_step import in_step
from sifting.exits.reuse import Reuse
from sifting.log import say
from sifting.measure.audit import warn_user
from sifting.model.agreement import verify
from sifting.model.by_sample import Losses
from sifting.model.call import Call
from sifting.model.no_trace import no_trace
from sifting.model.objective import PerSampleLoss, Score
from sifting.model.plan import Plan, probe_rows, signature
from sifting.model.replica import changing_hooks
from sifting.parallel.detect import first_rank, sharded, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import StreamWatch

UNPLANNED = 10  # batches without any label before a warning
DTYPES = (None, torch.bfloat16, torch.float16)  # of autocast, by their number in the state

Examined = tuple[Tensor, Tensor | None, Tensor | None]


class Scorer:
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
    ) -> None:
        self.whole, self.model = model, unwrap(model)
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
        self.plan: Plan | None = None  # the one used last
        self.plans: dict[tuple[Any, ...], Plan] = {}  # by the kind of labels
        self._unplanned = 0  # batches in which nothing had a label
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
            plan = self._planned(moved, self.kind(batch))
            if plan is None:
                return None
            plan = plan.trusting(batch)
            proves = beside is not None and not still and beside.wants_proof(moved)
            with ExitStack() as stack:
                hooks = stack.enter_context(changing_hooks(self.model)) if proves else []
                if self.reuse is not None and learn:
                    stack.enter_context(self.reuse.watching(moved))
                streams = StreamWatch(self.device) if proves else None
                found = [
                    self.exit.score(plan, self.model, piece, self.score, learn)
                    for piece in self.pieces(moved)
                ]
                random = streams is not None and streams.drawn
            scores_B = torch.cat(found)
            self.check_count(moved, len(scores_B))
            if proves:
                assert beside is not None
                beside.prove(moved, plan, scores_B.float(), random, hooks)
            if learn:
                self.exit.learn(plan)  # after all of them, so that their scores can be compared
        return scores_B.float().to(self.device)

    def check_count(self, batch: Any, count: int) -> None:
        """Raise where there is not one score for each sample."""
        samples = self.call.samples
        size = samples.size(batch)
        if count == size:
            return
        if samples.documents(batch) is not None:
            raise ValueError(
                f"the batch is packed, {size} documents in {count} rows, and what is scored has one value a "
                "row: leave loss_fn= and score= to the library where the model trains cross-entropy, or pass "
                "losses=lambda model, batch: … that returns one loss a document"
            )
        raise ValueError(
            f"the batch holds {size} samples ({describe(batch)}), and the model's outputs make {count} scores of "
            "it: say how many samples there are with batch_size=, and how to take some of them with "
            "take=lambda batch, indices: … where they are not along the first dimension; or pass forward= "
            "that returns a row for each sample"
        )

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
            return self.exit.scores_of_all(
                plan, self.model, moved, self.score, learn=learn, ids=ids
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
            for piece in self.pieces(moved):
                exact_B, wrong_B = self._exact.examine(plan, self.model, piece)
                early_B = self.exit.score(plan, self.model, piece, "loss", False) if early else None
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
            self.exit.score(plan, self.model, some, self.score, False)
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

    def kind(self, batch: Any) -> tuple[Any, ...]:
        """What a plan goes by. Ranks in step must find theirs at once, whatever labels each has."""
        # only a model's own loss can ignore a class that nobody was told of
        zeros = self.ranks is None and self.loss_fn is None and self.losses_fn is None
        return signature(
            self.call, batch, zeros=zeros and self.call.takes_labels(self.model, batch)
        )

    def _planned(self, batch: Any, kind: tuple[Any, ...] | None = None) -> Plan | None:
        """How the model is scored on such a batch; None while no sample with a label was seen.

        Args:
            kind: of the batch, where it was asked for on the host.
        """
        kind = self.kind(batch) if kind is None else kind
        if kind in self.plans:
            self.plan = self.plans[kind]
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
            self.exit.prepare(plan, self.model, probe)
        plan.check_batch(batch)
        verify(plan, self.model, batch)
        if not self.plans and first_rank():
            say(f"the objective that is scored is {plan.describe()}")
        if plan.kind == "model":
            warn_user(
                "the model's loss is not one that its logits and labels explain (smoothing, weights, "
                "or no logits), so exact losses are taken from it one sample at a time, which is "
                "slow: pass forward= that returns the logits, and loss_fn="
            )
        self.plan = self.plans[kind] = plan
        return plan

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
