"""What the autopilot may use of a training loop: its held-out samples, its length, its step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import Subset

from sifting.data.tree import describe
from sifting.measure.audit import warn_user
from sifting.model.failed_call import FAILURES
from sifting.model.no_trace import buffers_of, no_trace, put_buffers_back


@dataclass(frozen=True)
class Trial:
    """Tells a sifter with keep="auto" how to judge what it might do.

    >>> import torch
    >>> held_out = [(torch.zeros(8, 4), torch.zeros(8).long())]
    >>> Trial(held_out=held_out, updates=1000).updates
    1000

    With held-out samples it looks now and then on which of them progress is made. With the loss
    and the optimizer too, it can also train a short piece both ways and put everything back.

    Args:
        held_out: batches like those of the loader, of samples that are not trained: a list, or a
            loader. They are read once and kept.
        updates: batches that the whole run trains, where it is known: looks are planned by it.
        loss: `loss(model, batch)`, a scalar to go backward from.
        optimizer: over the model's parameters.
        accumulate: batches whose gradients make one update.
        clip: largest norm of the gradient; None for any.
        schedule: of the learning rate, which you step once an update. With it and `updates` the run ends
            sooner where selection pays: the schedule is moved on by what is gained, and the loader ends
            when the progress of so many plain batches is made.
        cost: what scoring a batch takes, as a share of the time of training it. By default the clock
            tells in the first steps, so that on a busy machine a run may decide otherwise than the same
            run on an idle one.
    """

    held_out: Iterable[Any] | None = None
    updates: int | None = None
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    optimizer: Optimizer | None = None
    accumulate: int = 1
    clip: float | None = None
    schedule: LRScheduler | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.accumulate, bool)
            or not isinstance(self.accumulate, int)
            or self.accumulate < 1
        ):
            raise ValueError(
                f"accumulate={self.accumulate!r}: give the number of batches that make an update"
            )
        if self.clip is not None and (not isinstance(self.clip, int | float) or not self.clip > 0):
            raise ValueError(f"clip={self.clip!r} must be above 0, or None")
        if self.updates is not None and (
            isinstance(self.updates, bool) or not isinstance(self.updates, int) or self.updates < 1
        ):
            raise ValueError(
                f"updates={self.updates!r}: give the number of batches that are trained"
            )
        cost = self.cost
        if cost is not None and (
            isinstance(cost, bool)
            or not isinstance(cost, int | float)
            or not 0 <= cost < float("inf")
        ):
            raise ValueError(f"cost={cost!r}: give a share of a training step, from 0, or None")
        if (self.loss is None) != (self.optimizer is None):
            missing = "optimizer" if self.optimizer is None else "loss"
            raise ValueError(f"a trial trains with loss= and optimizer=, and {missing}= is missing")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(
                f"loss={self.loss!r}: give a function loss(model, batch) that returns a scalar"
            )
        if self.loss is not None and not _takes_two(self.loss):
            raise TypeError(
                f"loss={getattr(self.loss, '__name__', self.loss)}{inspect.signature(self.loss)} cannot be called "
                "with a model and a batch: give a function loss(model, batch) that returns a scalar"
            )
        if self.optimizer is not None and not hasattr(self.optimizer, "param_groups"):
            raise TypeError(
                f"optimizer={type(self.optimizer).__name__}: give the torch.optim optimizer that trains the model"
            )
        self._check_schedule()
        self._check_held_out()

    def _check_held_out(self) -> None:
        held_out = self.held_out
        if held_out is None:
            return
        if isinstance(held_out, Tensor | str | bytes | Mapping) or not isinstance(
            held_out, Iterable
        ):
            # a data set gives samples, and a tensor or a dictionary of them is one batch
            one = isinstance(held_out, Tensor | Mapping)
            remedy = ": [batch] where it is one" if one else ", as DataLoader(data, batch_size) is"
            raise TypeError(
                f"held_out={describe(held_out) if one else repr(held_out)}: give batches of held-out samples, a "
                f"list or a loader{remedy}"
            )
        with suppress(TypeError):  # a loader of a stream has no length
            if isinstance(held_out, Sized) and len(held_out) == 0:
                raise ValueError(NO_BATCH)

    def check_model(self, model: nn.Module) -> None:
        """Refuse an optimizer that trains another model.

        Args:
            model: that the sifter is made of.
        """
        if self.optimizer is None:
            return
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if trained.isdisjoint(map(id, model.parameters())):
            raise ValueError(
                f"optimizer= of the Trial has no parameter of this {type(model).__name__}: give the one that "
                "trains it, made of model.parameters()"
            )

    def try_loss(self, model: nn.Module, batch: Any) -> None:
        """Refuse a loss that is no scalar: a trial, which goes backward from it, may be hours away.

        One that raises is left to a trial: it may be that it cannot be had of so few samples, or of a model
        in eval mode.

        Args:
            model: that is trained.
            batch: a few held-out samples.
        """
        if self.loss is None:
            return
        buffers = [(module, buffers_of(module)) for module in model.modules()]
        try:
            with no_trace(model):
                found = self.loss(model, batch)
        except FAILURES:
            return
        finally:  # a loss may put the model into train mode itself
            for module, copies in buffers:
                # not for nothing: one may belong to a graph that the user still holds
                if any(saved and not torch.equal(*saved[:2]) for saved in copies.values()):
                    put_buffers_back(module, copies, always=True)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise TypeError(
                f"loss= of the Trial returned {describe(found)}: give a function loss(model, batch) that returns "
                "a scalar tensor, the mean over the batch"
            )

    def _check_schedule(self) -> None:
        schedule = self.schedule
        if schedule is None:
            return
        if not isinstance(schedule, LRScheduler) or isinstance(schedule, ReduceLROnPlateau):
            raise TypeError(
                f"schedule={type(schedule).__name__}: give a torch.optim.lr_scheduler that is stepped once an "
                "update, whatever the loss"
            )
        if self.updates is None:
            raise ValueError(
                "schedule= lets a run end sooner than planned, and updates= is missing: give how many batches "
                "the plain run trains"
            )


def read_held_out(batches: Iterable[Any], *, most: int, size: Callable[[Any], int]) -> list[Any]:
    """As many batches as make up a number of samples.

    >>> read_held_out([[1, 2], [3, 4], [5, 6]], most=3, size=len)
    [[1, 2], [3, 4]]
    """
    found: list[Any] = []
    seen = 0
    for batch in islice(batches, most):
        found.append(batch)
        with naming_held_out(batch, len(found)):
            seen += size(batch)
        if seen >= most:
            break
    return found


NO_BATCH = "held_out= of the Trial holds no batch: give samples that are not trained"
TRAINED = (
    "held_out= is the data that is trained: samples that were trained say nothing of what is still to be learned, "
    "and the autopilot would go by what is learned by heart. Hold samples back that are not trained, or leave "
    "held_out= out (an eval_dataset of its own, under a trainer)"
)


def trained_too(held_out: Any, loader: Any) -> bool:
    """Whether held-out batches are plainly those that are trained: of one loader, or of one data set.

    >>> data = [1, 2, 3]
    >>> loaders = [torch.utils.data.DataLoader(data) for _ in range(2)]
    >>> trained_too(*loaders), trained_too(torch.utils.data.DataLoader([4]), loaders[0])
    (True, False)

    So are parts (`Subset`) of one data set that overlap. A copy is not seen.
    """
    if held_out is None:
        return False
    (one, some), (other, more) = (
        _part(getattr(given, "dataset", given)) for given in (held_out, loader)
    )
    if one is other:
        return some is None or more is None or not some.isdisjoint(more)
    marks = [
        getattr(data, "_fingerprint", None) for data in (one, other)
    ]  # of Hugging Face's datasets
    return None not in marks and marks[0] == marks[1]


def _part(data: Any) -> tuple[Any, set[int] | None]:
    """The data set that a part is of, and which of its samples; None for all."""
    indices: list[int] | None = None
    while isinstance(data, Subset):
        own = [int(i) for i in data.indices]
        indices, data = own if indices is None else [own[i] for i in indices], data.dataset
    return data, None if indices is None else set(indices)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two arguments, as far as it says."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are built in do not say
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


def say_if_trained(held_out: Any, loader: Any) -> None:
    """Warn where held-out batches are plainly those that are trained."""
    if trained_too(held_out, loader):
        warn_user(TRAINED)


@contextmanager
def naming_held_out(batch: Any, number: int) -> Iterator[None]:
    """While open, an error is one of the held-out samples, which a run comes to in its midst.

    >>> with naming_held_out(torch.zeros(4, 3), 2):
    ...     raise ValueError("no labels are found")
    Traceback (most recent call last):
    ValueError: batch 2 of the Trial's held_out= is (4, 3): no labels are found. Give a list or a loader of ...

    Args:
        batch: that is read or scored.
        number: of it, from 1.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"batch {number} of the Trial's held_out= is {describe(batch)}: {str(error).rstrip('.')}. Give "
            "a list or a loader of batches like those that are trained"
        ) from error
