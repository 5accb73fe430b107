"""Running a model to score candidates: by a plan, without a trace, under the user's autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.stream import plain_indices
from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit
from sifting.exits.beside import Beside
from sifting.exits.block import BlockExit, Examined, take_off
from sifting.exits.checks import check_count, check_take
from sifting.exits.economy import Economy
from sifting.exits.graphs import Graphs
from sifting.exits.planning import Planner
from sifting.exits.reference import Reference
from sifting.exits.reuse import Reuse
from sifting.model.by_sample import Losses
from sifting.model.call import Call, logits_of
from sifting.model.failed_call import failed_calls
from sifting.model.no_trace import no_trace
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.replica import changing_hooks
from sifting.model.sample_losses import PerSampleLoss
from sifting.model.sampling import located
from sifting.parallel.detect import first_rank, sharded, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import StreamWatch
from sifting.selection.tokens import MEAN, Tokens

DTYPES = (None, torch.bfloat16, torch.float16)  # of autocast, by their number in the state


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
        reference: whose losses are taken off the exit's; None for none.
        tokens: how a sample's positions make its score.
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
        reference: Reference | None = None,
        tokens: Tokens = MEAN,
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
        self.graphs = Graphs(model)
        self.ranks: Ranks | None = None  # those that have to run the model in step with this one
        self._busy = threading.local()
        self.beside: Beside | None = None  # scores the next candidates while a step is trained
        self.reuse: Reuse | None = None  # hands a frozen prefix's states to the training forward
        self._passes = 0  # in which candidates were chosen from
        self.autocast = 0  # of the user's training forward, as a place in DTYPES
        self._exact = BlockExit("last")
        self.reference, self.tokens = reference, tokens
        if reference is not None and exit.by_id:
            exit.reference = reference.of_ids

    @property
    def active(self) -> bool:
        """Whether this thread runs the model to score; the user's own may train it meanwhile."""
        return getattr(self._busy, "now", False)

    def scores(self, batch: Any, *, learn: bool, ids: Sequence[Any] | None = None) -> Tensor | None:
        """Scores of a batch, whose IDs may be known; None where no sample has a label."""
        beside = self.beside if learn else None
        found_B = None if beside is None else beside.take(batch)
        if found_B is None:
            return self.score_here(batch, learn=learn, beside=beside, ids=ids)
        self.check(batch)  # in a run that was resumed, the plan is not known yet
        if self.plan is not None:
            with torch.no_grad():
                self.exit.learn(self.plan)
        return found_B

    def score_here(
        self,
        batch: Any,
        *,
        learn: bool,
        beside: Beside | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Tensor | None:
        """Scores of a batch, made now.

        Args:
            learn: whether an exit with weights of its own learns from it.
            beside: holds its copy of the model against this, where it has not yet.
            ids: of its samples, where they are known.
        """
        moved, still = self._given(batch)
        with torch.no_grad() if still else self._pass():
            plan = self._planned(moved, batch)
            if plan is None:
                return None
            if type(self.exit).by_id is True and ids is not None:
                return self.exit.score_ids(plain_indices(ids)).float().to(self.device)
            plan = plan.trusting(batch)
            if learn:
                self._measure(plan, moved)
            proves = beside is not None and not still and beside.wants_proof(moved)
            with ExitStack() as stack:
                hooks = stack.enter_context(changing_hooks(self.model)) if proves else []
                if self.reuse is not None and learn:
                    stack.enter_context(self.reuse.watching(moved))
                streams = StreamWatch(self.device) if proves else None
                scores_B = self.scored(plan, moved, learn=learn, host=batch)
                scores_B = self.exit.refined(plan, self.model, moved, scores_B, ids)
                random = streams is not None and streams.drawn
            if proves:
                assert beside is not None
                beside.prove(moved, plan, scores_B.float(), random, hooks)
            if learn:
                self.exit.learn(plan)  # after all of them, so that their scores can be compared
            if self.reference is not None and not self.exit.by_id:
                self.reference.check(self.call, batch, ids)
                off_B = self.reference.losses(plan, self.model, moved, ids)
                scores_B = scores_B - off_B.to(scores_B)
        return scores_B.float().to(self.device)

    def scored(
        self,
        plan: Plan,
        batch: Any,
        *,
        learn: bool,
        host: Any = None,
        exit: Exit | None = None,
        model: nn.Module | None = None,
        economy: Economy | None = None,
    ) -> Tensor:
        """Scores of a batch at the exit, piece by piece.

        Args:
            host: the same batch before it was moved, where what is in it can be asked without waiting.
            exit, model, economy: those of a copy of the model, whose positions are drawn already.
        """
        host = batch if host is None else host
        with nullcontext() if economy is not None else self.economy.drawing(advance=learn):
            found = [
                self._at_exit(plan, piece, told, self.score, learn, exit, model, economy)
                for piece, told in self.call.samples.split_both(batch, host, self.batch_size)
            ]
        check_count(self.call.samples, host, sum(map(len, found)))
        return torch.cat(found)

    def _at_exit(
        self,
        plan: Plan,
        batch: Any,
        host: Any,
        score: Score,
        learn: bool,
        exit: Exit | None = None,
        model: nn.Module | None = None,
        economy: Economy | None = None,
    ) -> Tensor:
        """Scores of some samples by as much of them as is looked at."""
        economy = economy or self.economy
        if learn and exit is None and not self.exit.settled:
            self.exit.see_whole(located(plan, host), self.model, batch, score)
        chosen, seen = economy.placed(plan, self.call, batch, host)
        own = nullcontext() if exit is not None else self.graphs.opened(self.exit, plan)
        with economy.lowered(self.device), own:
            return (exit or self.exit).score(chosen, model or self.model, seen, score, learn)

    def _measure(self, plan: Plan, batch: Any) -> None:
        """Once, on the first candidates: in what precision, and soon by graphs of our own or not?"""

        def run() -> Tensor:
            return self.scored(plan, batch, learn=False)

        if self.economy.low is None:
            self.economy.measure(run, self.device, ranks=self.ranks, tell=first_rank())
        self._passes += 1
        if self.beside is None and self.graphs.on is not False and self.graphs.fit(self.exit, plan):
            # not the first time: what autocast is trained under is read from a training forward
            if self.graphs.on is None and self._passes < 2:
                return
            self.graphs.seen(self.exit, self.model, lambda: self.call.run(self.model, batch))
            if self.graphs.on is None:
                self.graphs.measure(run, self.device)

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
            with economy.drawing(advance=learn), economy.lowered(self.device):
                chosen, seen = economy.placed(plan, self.call, moved, batch)
                return self.exit.scores_of_all(
                    chosen, self.model, seen, self.score, learn=learn, ids=ids
                )

    def examine(
        self, batch: Any, *, early: bool, ids: Sequence[Any] | None = None
    ) -> list[Examined] | None:
        """Piece by piece: exact losses, what is misclassified, and the exit's own losses.

        None where there are no labels, and so no exact loss. Losses are less a reference's. The
        exit's are found where they are wanted (`early`).
        """
        moved = self.moved(batch)
        with self._pass():
            plan = self._planned(moved)
            if plan is None or not plan.labelled:
                return None
            found: list[Examined] = []
            with self.economy.drawing(advance=False):
                for piece in self.pieces(moved):
                    exact = self._exact.examine(plan, self.model, piece)
                    early_B = self._at_exit(plan, piece, piece, "loss", False) if early else None
                    found.append(exact._replace(early=early_B))
            if self.reference is not None:
                found = take_off(found, self.reference.losses(plan, self.model, moved, ids))
        return found

    def check(self, batch: Any) -> None:
        """Find out how the model is scored, so that what cannot work fails on the first batch."""
        if self.reference is not None and not self.idle:
            self.reference.begin(self.call, batch)
        known = self.plans.get(self.kind(batch))
        if known is not None:
            self.plan = known
            return
        moved = self.moved(batch)
        with self._pass():
            plan = self._planned(moved)
            if plan is not None and not self.idle:
                self._try_everything(plan, moved)

    @failed_calls()
    def _try_everything(self, plan: Plan, batch: Any) -> None:
        """Score and examine some samples, so that nothing fails for the first time later on."""
        samples = self.call.samples
        check_take(self.call, batch)
        size = samples.size(batch)
        some = samples.take(batch, torch.arange(min(size, 2)), size=size)
        if self.exit.runs:
            with self.economy.naming(), self.economy.drawing(advance=False):
                scores_B = self._at_exit(plan, some, some, self.score, False)
            check_count(samples, some, len(scores_B))
        if plan.labelled:
            self._exact.examine(plan, self.model, some)

    def losses(self, output: Any, batch: Any) -> Tensor | None:
        """Each sample's loss from the output of the user's own forward; None where it does not fit."""
        if self.plan is None:
            return None
        with torch.no_grad():
            quick_B = self.plan.quick_losses(output, batch)
            if quick_B is not None:
                return quick_B
            return located(self.plan.trusting(batch), batch).losses(output, self.moved(batch))

    def output_shapes(self, batch: Any) -> dict[str, Sequence[int]]:
        """Shapes of what the model gives without labels, by name; none where ranks would have to take part."""
        if self.sharded:
            return {}
        with self._pass():
            given = logits_of(self.call.run(self.model, self.moved(batch)))
        return {name: logits.shape for name, logits in given.items()}

    def note_autocast(self) -> None:
        """Remember the autocast that is open now, in the user's training forward."""
        device = self.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.autocast = DTYPES.index(dtype) if dtype in DTYPES else 0

    @property
    def autocasts(self) -> torch.dtype | None:
        """The precision of the user's training forward, where autocast is open in it."""
        return DTYPES[self.autocast]

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
