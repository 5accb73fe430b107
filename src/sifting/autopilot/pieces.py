"""Training a short piece from weights as they are, the learning rate cooled to zero.

Shapes: M held-out samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from sifting.autopilot.aside import Aside
from sifting.autopilot.options import PLAIN, Option
from sifting.autopilot.predicting import predict
from sifting.autopilot.trial import Trial
from sifting.data.by_index import IndexDraws, OwnStreams, namer
from sifting.data.stream import plain_indices
from sifting.exits.auto import MEMORY, PREDICTED, AutoExit
from sifting.exits.base import TrainedBatch
from sifting.exits.scoring import Scorer
from sifting.measure.meter import Meter
from sifting.parallel.detect import data_parallel, replicated
from sifting.rng import RandomState
from sifting.selection.choice import Rule


class Pieces:
    """Trains pieces plainly and with an option, and leaves no trace but a count of their updates.

    Candidates are drawn by index from the loader's data set, by a generator of its own. An exit
    with weights scores with them as they are; a memory learns within a piece, and forgets it.

    Args:
        scorer: scores batches.
        exit: the scorers that compete.
        rule: how samples are chosen by their scores.
        trial: the loss and the optimizer.
        meter: where updates are counted.
        seed: of every random choice; another on each rank that trains other data.
    """

    def __init__(
        self,
        scorer: Scorer,
        exit: AutoExit,
        *,
        rule: Rule,
        trial: Trial,
        meter: Meter,
        seed: int,
    ) -> None:
        self.scorer, self.exit, self.rule, self.trial = scorer, exit, rule, trial
        self.meter, self.seed = meter, seed
        self.draws: IndexDraws | None = None
        self._loader: Any = None
        self._single: bool | None = None  # whether each index is one sample, once it was tried
        self._name: Callable[[Sequence[Any]], list[Any]] = (
            plain_indices  # from what is drawn to IDs
        )
        self._seen: list[Any] = []  # by a state, for a loader that is not there yet
        self._generator = torch.Generator()

    def reads(self, loader: Any) -> None:
        """Take note of the loader that is iterated from now on."""
        if loader is not self._loader:
            self._loader, self.draws, self._single = loader, IndexDraws.of(loader), None
            self._name = plain_indices if self.draws is None else namer(loader)
            self.note(self._seen)
            self._seen = []

    def note(self, drawn: Sequence[Any] | None) -> None:
        """Take note of what a batch that is trained was drawn by; None where its samples are others."""
        if self.draws is None:
            return
        if drawn is None:
            self._single = False
        else:
            self.draws.note(drawn)

    @property
    def seen(self) -> list[Any]:
        """What was noted, to be saved."""
        return self._seen if self.draws is None else self.draws.seen

    @seen.setter
    def seen(self, drawn: list[Any]) -> None:
        self._loader, self.draws, self._seen = None, None, drawn

    @property
    def _own_updates(self) -> bool:
        return replicated(self.scorer.whole) and data_parallel(self.scorer.whole) is None

    def check(self) -> None:
        """Refuse an optimizer of another model; one that makes no trials may hold other tensors."""
        if not self.scorer.sharded and not self._own_updates:
            self.trial.check_model(self.scorer.whole)

    def unable(self, size: int) -> str | None:
        """Why no piece can be trained, in words; None where one can."""
        if self.trial.loss is None:
            return "no loss= and optimizer= were given"
        if self.draws is None:
            return (
                f"a {type(self._loader).__name__} cannot be read beside the run: pieces need a DataLoader "
                "over a data set with indices"
            )
        if self._single is not False and len(self.draws.among) < 2 * size:
            return f"its data set has {len(self.draws.among)} samples for batches of {size}"
        if not self._one_each(self.draws):
            return "an index of its data set is not one sample (rows of several documents)"
        if self.scorer.sharded:
            return "its parameters are sharded"
        if self._own_updates:
            return "DeepSpeed's engine makes its own updates"
        if isinstance(self.trial.optimizer, LBFGS):
            return "LBFGS calls the loss by itself"
        return None

    def _one_each(self, draws: IndexDraws) -> bool:
        """Whether two indices make a batch of two samples, read without a trace."""
        if self._single is None:
            streams, own = RandomState.now(), OwnStreams(draws.loader.dataset)
            try:
                some = list(islice(draws.among, 2))
                self._single = self.scorer.call.samples.size(draws.read(some)) == len(some)
            finally:
                streams.restore()
                own.restore()
        return self._single

    @contextmanager
    def open(self) -> Iterator[Aside]:
        """While open, pieces may be trained; afterwards everything is as it was."""
        assert self.draws is not None
        assert self.trial.optimizer is not None
        plan, memory = self.scorer.plan, self.exit.memory
        remembered = None if memory is None else memory.state_dict()
        aside = Aside(self.scorer.whole, self.trial.optimizer, self.draws.loader.dataset)
        try:
            with self.scorer.busy(), aside.used():
                yield aside
        finally:
            self.scorer.plan = plan
            if memory is not None and remembered is not None:
                memory.load_state_dict(remembered)

    def train(self, aside: Aside, option: Option, *, updates: int, size: int, draw: int) -> None:
        """Train a piece from the weights that were set aside.

        Args:
            aside: what `open` gave; everything is put back to it first.
            option: what is kept.
            updates: that are made.
            size: samples of a batch.
            draw: number of the draw: pieces with the same one meet the same samples first.
        """
        optimizer, draws, model = self.trial.optimizer, self.draws, self.scorer.whole
        assert optimizer is not None
        assert draws is not None
        aside.restore()
        if not model.training:  # an evaluation may have come between two steps
            model.train()
        draws.begin(self.seed + draw)
        self._generator.manual_seed(self.seed + draw)
        device = self.scorer.device
        half = self.scorer.autocasts is torch.float16
        scaler = torch.amp.GradScaler(
            device.type, enabled=half
        )  # of its own: the run's is not touched
        with torch.inference_mode(False), torch.enable_grad():
            for number in range(updates):
                for group, rate in zip(optimizer.param_groups, aside.rates, strict=True):
                    group["lr"] = _like(group["lr"], rate * (1 - number / updates))
                for parameter, _ in aside.weights:
                    parameter.grad = None
                for _ in range(self.trial.accumulate):
                    self._backward(scaler, option, size)
                if self.trial.clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), self.trial.clip)
                scaler.step(optimizer)
                scaler.update()

    def _backward(self, scaler: Any, option: Option, size: int) -> None:
        assert self.trial.loss is not None
        batch, ids = self._batch(option, size)
        memory = self.exit.memory if option.scorer in (MEMORY, PREDICTED) else None
        heard: list[Any] = []
        with self._listening(heard, memory is not None), self.scorer.mirrored_autocast():
            loss = self.trial.loss(self.scorer.whole, batch) / self.trial.accumulate
        if memory is not None and heard:
            losses_B = self.scorer.losses(heard[0], batch)
            if losses_B is not None and losses_B.shape == (len(ids),):
                memory.observe(TrainedBatch(self.scorer.call, batch, ids), losses_B)
        torch.autograd.backward(scaler.scale(loss))

    @contextmanager
    def _listening(self, heard: list[Any], wanted: bool) -> Iterator[None]:
        """Hear what the model puts out, where it is wanted."""
        if not wanted:
            yield
            return
        model = self.scorer.whole
        handle = model.register_forward_hook(lambda module, args, output: heard.append(output))
        try:
            yield
        finally:
            handle.remove()

    def _batch(self, option: Option, size: int) -> tuple[Any, list[Any]]:
        """What is trained next, and the IDs of its samples."""
        draws, samples = self.draws, self.scorer.call.samples
        assert draws is not None
        if option == PLAIN:
            drawn = draws.indices(size)
            return self.scorer.moved(draws.read(drawn)), self._name(drawn)
        drawn = draws.indices(size * option.ratio)
        ids = self._name(drawn)
        memory = self.exit.memory
        if option.scorer == MEMORY and memory is not None:
            scores_B: Tensor = memory.score_ids(ids)
            kept = [drawn[i] for i in self._choose(scores_B, size)]
            return self.scorer.moved(draws.read(kept)), self._name(kept)
        batch = self.scorer.moved(draws.read(drawn))
        found = self.scorer.rehearse(batch, None, learn=False)
        if option.scorer == PREDICTED:
            found = predict(self.scorer, self.exit, batch, found, ids, note=False)
        chosen = self._choose(found.get(option.scorer, torch.zeros(len(ids))), size)
        rows = torch.tensor(chosen, device=self.scorer.device)
        return samples.take(batch, rows, size=len(ids)), [ids[i] for i in chosen]

    def _choose(self, scores_B: Tensor, size: int) -> list[int]:
        sound_B = scores_B.float().cpu().nan_to_num(float("-inf"), float("-inf"), float("-inf"))
        found: list[int] = self.rule(sound_B, size, self._generator).indices_K.tolist()
        return found


def _like(old: Any, rate: float) -> Any:
    """A learning rate, as a tensor where the optimizer has it so."""
    return torch.full_like(old, rate) if isinstance(old, Tensor) else rate
