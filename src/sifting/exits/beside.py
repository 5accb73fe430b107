"""Scoring beside the training step: the next candidates, in a thread, with the weights of this step.

main thread   refresh ─ start ─▶ the user's forward and backward ─▶ │ optimizer.step ─▶ take: learn, choose
thread                   └──── truncated forward of the copy ─────▶ ┘ (the step waits for it)

The thread runs a copy of the model's modules over the same parameters (`model/replica.py`), and nothing
else: it draws no random number, talks to no other rank, and what an exit would learn it sets aside.
Parameters are written by optimizers, each of which waits until nothing reads them. On CUDA the thread has a
stream of its own, and it is the device that waits (`exits/turns.py`).
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sifting.exits.base import Exit
from sifting.exits.drawn_ahead import (
    DrawnAhead,
    check_copy,
    check_originals,
    check_repeatable,
    check_unwritten,
    versions_of,
)
from sifting.exits.economy import Economy
from sifting.exits.thread_context import Context, prepare_thread
from sifting.exits.turns import ThreadTurn, side_stream
from sifting.model.plan import Plan
from sifting.model.replica import Replica, modules_run
from sifting.rng import RandomState

if TYPE_CHECKING:
    from sifting.exits.scoring import Scorer


class Left(NamedTuple):
    """What was drawn ahead when a loop was left, for a state that is taken then.

    Attributes:
        plain: as a state has it.
        generator: state of the sifter's generator, with the positions that were drawn ahead.
        undone: the same without them, by which it is told whether anything came after.
    """

    plain: dict[str, Any]
    generator: Tensor
    undone: Tensor


class Beside:
    """Scores the candidates of the next step while this one is trained.

    Args:
        scorer: of the sifter.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.ahead: DrawnAhead | None = None  # what is drawn, and perhaps scored, for the next step
        self._replica: Replica | None = None
        self._proven: set[tuple[Any, ...]] = set()  # kinds of batches that the copy scores alike
        self._executor: ThreadPoolExecutor | None = None
        self._handle: Any = None
        self._stream: Any = None
        self.owner: object = None  # of the epoch under way
        self._left: Left | None = None  # what was drawn ahead when a loop was left
        _EVERY.add(self)

    def drawn(self, batch: Any, streams: RandomState) -> None:
        """Take note of candidates that were drawn ahead."""
        self.ahead = DrawnAhead(batch, streams)

    def begin(self) -> None:
        """Begin to score what was drawn ahead, once the copy is known to score such batches alike."""
        ahead, scorer = self.ahead, self.scorer
        assert ahead is not None
        plan = scorer.known(ahead.batch)
        if plan is None or self.wants_proof(ahead.batch):
            scorer.score_here(ahead.batch, learn=False, beside=self)
            plan = scorer.known(ahead.batch)
        if plan is None or not scorer.exit.runs:
            return  # nothing has a label, or nothing of the model is run
        assert self._replica is not None
        self._replica.refresh()
        ahead.versions = versions_of(scorer.model)
        if self._executor is None:
            # its thread ends with the executor, and before the interpreter does
            self._executor = ThreadPoolExecutor(1, "sifting-ahead", initializer=prepare_thread)
            # a compiled step calls it too, between its graphs
            held = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
            self._handle = register_optimizer_step_pre_hook(held)
        generator = scorer.economy.generator
        ahead.undo = generator, generator.get_state()
        with scorer.economy.drawing(advance=True):
            economy = scorer.economy.again()
        exit, plan = self._twins(plan)
        self._stream = self._stream or side_stream(scorer.device)
        context = Context(scorer.device, scorer.autocasts, torch.get_default_device(), self._stream)
        ahead.turn = ThreadTurn(self._stream)
        ahead.future = self._executor.submit(
            self._scored, ahead.batch, exit, plan, economy, context, ahead.turn
        )
        ahead.future.add_done_callback(ahead.turn.ended)

    def prove(
        self, batch: Any, plan: Plan, scores_B: Tensor, random: bool, hooks: list[str]
    ) -> None:
        """Hold the copy against the model on a batch that the model has scored, once for each kind.

        Args:
            batch: on the model's device.
            plan: how it is scored.
            scores_B: by the model itself.
            random: whether a random number was drawn for them.
            hooks: of the user's, that changed what passed through the model.

        Raises:
            ValueError: where it cannot take the model's place.
        """
        check_repeatable(random, hooks)
        if self._replica is None:
            self._replica = Replica(self.scorer.model)
        else:
            self._replica.refresh()
        exit, plan = self._twins(plan)
        device, scorer = self.scorer.device, self.scorer
        context = Context(device, scorer.autocasts, torch.get_default_device(), None)
        with modules_run(scorer.model) as originals:
            again = scorer.economy.again()
            try:
                found_B, _ = self._scored(batch, exit, plan, again, context, None)
            except Exception:
                check_originals(originals)  # where they ran, the copy was passed by: say that
                raise
        check_copy(originals, found_B, scores_B.cpu(), exact=device.type == "cpu")
        self._proven.add(scorer.kind(batch))

    def wants_proof(self, batch: Any) -> bool:
        """Whether such a batch has not been held against the copy yet."""
        return self.scorer.exit.runs and self.scorer.kind(batch) not in self._proven

    def take(self, batch: Any) -> Tensor | None:
        """The scores of a batch that was drawn ahead, waiting for them; None where it was not scored.

        What an exit wants to learn from it is handed to it. What failed in the thread is raised here.
        """
        ahead = self.ahead
        if ahead is None or ahead.batch is not batch:
            return None
        self.hold()
        self.ahead = None
        if ahead.future is not None:
            ahead.scores, ahead.lessons = ahead.future.result()
        if ahead.scores is None:
            return None
        self.scorer.exit.take_in(ahead.lessons)
        return ahead.scores

    def wait(self) -> None:
        """Wait until nothing is read any more that training may write, whatever stream writes it."""
        ahead = self.ahead
        if ahead is not None and ahead.future is not None:
            wait([ahead.future])
        self.hold()

    def hold(self) -> None:
        """Let nothing that is queued from here on write what is read: a device waits, not its host."""
        ahead = self.ahead
        if ahead is None or ahead.turn is None:
            return
        ahead.turn.hold()  # each time: a second optimizer may work in another stream
        if not ahead.settled:
            ahead.settled = True
            check_unwritten(self.scorer.model, ahead.versions)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Hook of every optimizer."""
        self.hold()

    def drop(self) -> None:
        """Forget what was drawn ahead; nothing of it was learned yet."""
        ahead, self.ahead, self._left = self.ahead, None, None
        if ahead is not None and ahead.future is not None:
            ahead.future.cancel()
            wait([ahead.future])
        if ahead is not None and ahead.undo is not None:
            generator, state = ahead.undo
            generator.set_state(state)

    def open(self) -> object:
        """Begin an epoch; gives what `close` takes. What a state named to be scored ahead stays."""
        if self.ahead is None or self.ahead.batch is not None:
            self.drop()
        self.owner = object()
        return self.owner

    def close(self, owner: object) -> None:
        """End the thread and let go of the optimizers, unless another epoch has begun meanwhile."""
        if owner is None or owner is not self.owner:
            return
        self._leave()
        executor, self._executor = self._executor, None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
        if executor is not None:
            executor.shutdown(wait=True)

    def _leave(self) -> None:
        """The loop is left: who goes on draws again, but a state that is taken now knows what was scored."""
        ahead, generator = self.ahead, self.scorer.economy.generator
        known = ahead is not None and ahead.batch is not None
        plain = ahead.to_plain() if known and ahead is not None else None
        before = generator.get_state()
        self.drop()
        if plain is not None:
            self._left = Left(plain, before, generator.get_state())

    def state_dict(self) -> dict[str, Any] | None:
        """What was drawn and scored ahead, for whoever continues from here: nobody has these weights again."""
        left = self._left_now()
        if left is not None:
            return left.plain
        return None if self.ahead is None else self.ahead.to_plain()

    def generator_state(self) -> Tensor:
        """The state of the sifter's generator that goes with `state_dict`."""
        left = self._left_now()
        return self.scorer.economy.generator.get_state() if left is None else left.generator

    def _left_now(self) -> Left | None:
        """What was left, unless something was drawn since."""
        left, now = self._left, self.scorer.economy.generator.get_state()
        return left if left is not None and torch.equal(left.undone, now) else None

    def _twins(self, plan: Plan) -> tuple[Exit, Plan]:
        assert self._replica is not None
        return self.scorer.exit.beside(self._replica.twin), plan.beside(self._replica.twin)

    def _scored(
        self,
        batch: Any,
        exit: Exit,
        plan: Plan,
        economy: Economy,
        context: Context,
        turn: ThreadTurn | None,
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Scores by the copy, and what is to be learned from them: what the thread does in its turn."""
        assert self._replica is not None
        scorer, model = self.scorer, self._replica.model
        with scorer.busy(), context.open():
            with nullcontext() if turn is None else turn.working(batch):
                trusted = plan if turn is None else plan.trusting(batch)
                scores_B = scorer.scored(
                    trusted,
                    scorer.moved(batch),
                    learn=turn is not None,
                    host=batch,
                    exit=exit,
                    model=model,
                    economy=economy,
                )
            # read here, where nobody waits for it but this thread
            return scores_B.float().cpu(), exit.unlearned()


_EVERY: weakref.WeakSet[Beside] = weakref.WeakSet()


def _before_fork() -> None:
    """A process is not divided (a loader starts its workers) while a thread holds locks of libraries."""
    for beside in list(_EVERY):
        ahead = beside.ahead
        if ahead is not None and ahead.future is not None:
            wait([ahead.future])


@atexit.register
def _at_exit() -> None:
    """A loop that was left open is closed while there is still something to close it with."""
    for beside in list(_EVERY):
        beside.close(beside.owner)
        beside.owner = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
