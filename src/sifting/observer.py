"""The batch that is being trained, and what its forward tells: exact losses, for free."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.autopilot.evidence import say_unheard
from sifting.autopilot.pilot import Pilot
from sifting.data.tree import shallow_copy
from sifting.exits.base import Exit, TrainedBatch
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor, explored_means, warn_user
from sifting.measure.meter import SPAN, Meter
from sifting.model.call import logits_of
from sifting.model.no_trace import first_parameter
from sifting.model.trained_loss import TrainedLoss
from sifting.model.wrong_labels import FAILURES, wrong_label
from sifting.parallel.detect import data_parallel_under_way
from sifting.step import Selection, Step

VOCABULARY_EVERY = 16  # a pass over a vocabulary is not free: read training losses this seldom


class Observer:
    """Keeps the step under way, and reads the user's training forward.

    Args:
        scorer: knows how losses are made of a model's output.
        exit: is told them, where it observes.
        meter: where ρ_approx of the random picks is kept.
        auditor: warns by it.
        trims: whether candidates are trimmed, for which no random pick stands.
        idle: whether nothing is ever chosen by score, so that nobody wants to know.
        pilot: decides what is kept, where that is left to it.
        wrapped: is told where the model is trained in a wrapper that was made after the sifter.
    """

    def __init__(
        self,
        scorer: Scorer,
        exit: Exit,
        *,
        meter: Meter,
        auditor: Auditor,
        trims: bool,
        idle: bool,
        pilot: Pilot | None = None,
        wrapped: weakref.WeakMethod[Callable[[nn.Module], None]] | None = None,
    ) -> None:
        self.scorer, self.exit, self.meter, self.auditor = scorer, exit, meter, auditor
        self.trims, self.pilot, self._wrapped = trims, pilot, wrapped
        self.under_way = 0  # samples of the step that is being trained; 0 between steps
        self.current: Step | None = None  # the batch handed out last, or that is being trained
        self._heard = False  # whether its losses were reported
        self._unheard = 0  # batches whose losses the pilot waited for in vain
        self._tells_exit = exit.observes and not idle
        self._idle = idle
        self._check = TrainedLoss(compares=not idle)
        self._around: nn.Module | None = None  # the wrapper whose forward was read last
        self._batch: Any = None  # that is being trained, while its step is open
        self._shapes: dict[str, Sequence[int]] = {}  # of the outputs of its forward
        self._version = -1  # of the weights then

    def hand_out(self, step: Step, batch: Any) -> Step:
        """Take note of a batch that is about to be trained."""
        if self._tells_exit and not self._stands_aside:
            with self._timed():
                # in a container of its own: the user may take members out of theirs
                step = replace(step, members=shallow_copy(batch))
                # where it was not scored, nobody has asked yet how losses are made
                self.scorer.check(batch)
        if self.pilot is not None:
            met = self.pilot.meet(batch, step)
            step = replace(step, rehearsed=met)
        self.current, self._heard = step, False
        self.under_way = step.size
        return step

    @property
    def _stands_aside(self) -> bool:
        """Whether an autopilot has found that choosing cannot pay, so that nobody has a use for losses."""
        return self.pilot is not None and self.pilot.pacing.hopeless

    def _timed(self) -> AbstractContextManager[None]:
        """Charge what runs inside to the clock of what a sifter does beside the user's own step."""
        return nullcontext() if self._idle else self.meter.time("observing", self.scorer.device)

    @property
    def weights(self) -> Tensor:
        """Of the batch that is being trained; all ones where nothing was selected."""
        step = self.current
        if step is None:
            raise RuntimeError("no batch was handed out yet, so there are no weights")
        if step.selection is not None:
            return step.selection.weights
        return torch.ones(step.size, device=self.scorer.device)

    @property
    def wanted(self) -> bool:
        """Whether anybody has a use for the losses of the batch under way, which nobody reported yet."""
        step = self.current
        if step is None or self._heard:
            return False
        explored = step.selection is not None and step.explored > 0
        return explored or step.members is not None or step.rehearsed is not None

    def forget(self) -> None:
        """There is no batch under way any more."""
        self.current = None

    def end_step(self) -> None:
        """The batch under way is trained: its losses have been reported by now, or are lost."""
        step = self.current
        with self._timed():
            if step is not None and step.members is not None and not self._heard:
                self.exit.missed()
            self.exit.end_step()
        if step is not None and step.rehearsed is not None:
            self._unheard += 1
            say_unheard(self._unheard, read=self.meter.counts["losses_read"])
        self.end_owed()
        if self._check.noted and step is not None:
            self._compare(step)
        steps = self.meter.counts["steps"]
        if step is not None and step.selection is not None and steps % SPAN == 0:
            self.auditor.speak_of_cost(steps)  # whether or not anything is audited

    def end_owed(self) -> None:
        """Tell the pilot that a step is over, where it has not been told: also one before a resume."""
        size, self.under_way = self.under_way, 0
        if size and self.pilot is not None:
            self.pilot.after_step(size)

    def _compare(self, step: Step) -> None:
        """Warn where the loss that is trained is not the one that is scored."""
        batch = _members(step)
        wrong = self._check.compare(
            self.scorer.plan,
            None if batch is None else self.scorer.moved(batch),
            weights_B=None if step.selection is None else step.selection.weights,
            step=self.meter.counts["steps"],
        )
        if wrong is not None:
            warn_user(wrong)

    @contextmanager
    def training(
        self, model: nn.Module, step: Step | None = None, *, batch: Any = None
    ) -> Iterator[None]:
        """While open, the user's step runs: time it, and listen to the model's forward in it.

        Args:
            model: whose forward it is.
            step: of the batch that is trained, where it is not the one handed out last, since
                several are fetched before the first is trained.
            batch: that is trained, for the message where its labels cannot be.
        """
        if step is not None:
            self.current, self._heard, self.under_way = step, False, step.size
        if self.pilot is not None and self.current is not None and self.current.rehearsed:
            self.pilot.listen()
        self._batch, self._shapes = batch, {}
        handle = model.register_forward_hook(Listener(self))
        handed = None if self.current is None else self.current.handed
        try:
            with (
                self.naming(),
                nullcontext() if handed is None else handed.offered(),
                self.meter.time("between", self.scorer.device),
            ):
                yield
            self.end_step()
        except GeneratorExit:  # the loop was left, and nobody tells a generator why
            stepped = self._version != self._weights_version()  # so its loss was one
            found = None if stepped else self.wrong_label(None)
            if found is not None:
                warn_user(f"the loop was left in the middle of a step: {found}")
            raise
        finally:
            self._batch = None
            handle.remove()
            if self.pilot is not None:
                self.pilot.unlisten()

    def _weights_version(self) -> int:
        """A number that an optimizer's step changes."""
        weights = first_parameter(self.scorer.model)
        return -1 if weights is None else weights._version

    @contextmanager
    def naming(self) -> Iterator[None]:
        """While open, a step that fails on a label of no class raises an error that names it."""
        try:
            yield
        except FAILURES as error:
            found = self.wrong_label(error)
            if found is None:
                raise
            raise found from error

    def wrong_label(self, error: BaseException | None) -> ValueError | None:
        """An error that names the label which the step under way failed on; None where it was another cause.

        Args:
            error: of the step; None where it is not known.
        """
        batch, shapes, self._batch = self._batch, self._shapes, None  # said once
        if batch is None:
            return None
        try:
            if (
                not shapes and error is not None
            ):  # a model that makes its own loss fails before it returns
                shapes = self.scorer.output_shapes(batch)
            return wrong_label(self.scorer.call, shapes, batch, error)
        except Exception:  # a batch of another kind: the step's own error is what is to be seen
            return None

    def observe(self, losses_B: Tensor) -> None:
        """Take in the exact losses of the batch under way, as the user reports them."""
        with self._timed():
            self._take_in(losses_B)

    def _take_in(self, losses_B: Tensor) -> None:
        step = self.current
        if step is None or (step.selection is None and step.members is None):
            return
        if losses_B.shape != (step.size,):
            raise ValueError(
                f"observe() takes one loss for each of the {step.size} samples handed out last, "
                f"got a tensor of shape {tuple(losses_B.shape)}"
            )
        self._heard = True
        self.meter.counts["losses_read"] += 1
        self._tell_pilot(step, losses_B)
        if step.members is not None:
            trained = TrainedBatch(self.scorer.call, step.members, step.ids)
            self.exit.observe(trained, losses_B)
        selection = step.selection
        # where samples were trimmed, no random pick stands for them; and with a reference the loss
        # is not what is chosen by
        if selection is None or not 0 < step.explored < step.kept or self.trims:
            return
        if self.scorer.reference is not None:
            return
        self._measure(losses_B, step, selection)

    def _measure(self, losses_B: Tensor, step: Step, selection: Selection) -> None:
        means = explored_means(
            losses_B,
            selection.explored,
            explored=step.explored,
            candidates=len(selection.scores),
            kept=step.kept,
        )
        self.meter.observe(means)
        if self.meter.observed % SPAN == 0:
            self.auditor.speak_up(self.meter.counts["steps"])

    def read(self, output: Any) -> None:
        """Learn from the model's forward in the user's step: its autocast, and its exact losses.

        From the first that fits the batch: a second may be of other weights (SAM), of other
        inputs, or a recomputation.
        """
        if self.scorer.active or not torch.is_grad_enabled():
            return
        with self._timed():
            self._read(output)

    def _read(self, output: Any) -> None:
        self.scorer.note_autocast()
        self._shapes = {name: logits.shape for name, logits in logits_of(output).items()}
        self._version = self._weights_version()
        around = data_parallel_under_way()
        if around is not self._around:
            self._around = around
            told = None if self._wrapped is None else self._wrapped()
            if around is not None and told is not None:
                told(around)
        plan, step = self.scorer.plan, self.current
        compares = self._check.due(self.meter.counts["steps"])
        if compares and plan is not None and step is not None and _members(step) is not None:
            self._check.listen(output, step.size)
        if self._heard or plan is None or step is None:
            return
        members = step.members
        if members is None:
            if step.selection is None or step.explored == 0:
                return
            if plan.heads and self.meter.counts["selections"] % VOCABULARY_EVERY:
                return
            members = step.selection.batch
        elif plan.heads and self.pilot is not None and step.rehearsed is None:
            turn = step.explored and self.meter.counts["selections"] % VOCABULARY_EVERY == 0
            if not turn and not self.exit.by_id:
                return  # nobody has a use for them
        losses_B = self.scorer.losses(output, members)
        if losses_B is not None and losses_B.shape == (step.size,):
            self._tell_pilot(step, losses_B, output)
            self._take_in(losses_B)

    def _tell_pilot(self, step: Step, losses_B: Tensor, output: Any = None) -> None:
        """Hand the losses of a rehearsed batch to the pilot, once."""
        if self.pilot is None or step.rehearsed is None or step is not self.current:
            return
        self.current = replace(step, rehearsed=None)
        self.pilot.hear(step.rehearsed, losses_B, output, step.members, step.ids)


def _members(step: Step) -> Any:
    """The batch of a step, where it is known."""
    if step.members is not None:
        return step.members
    return None if step.selection is None else step.selection.batch


class Listener:
    """Forward hook that reads the user's training forward.

    It does not keep the observer alive, and is mute in a copy: a model that is deep-copied or
    pickled in the middle of a step takes no sifter with it.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = None if observer is None else weakref.ref(observer)

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        observer = None if self._observer is None else self._observer()
        if observer is not None and not torch.compiler.is_compiling():
            observer.read(output)

    def __reduce__(self) -> tuple[type[Listener], tuple[()]]:
        return Listener, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Listener:
        return Listener()
