"""Candidates drawn from a `DataLoader` by index: its data set, order, workers and collating."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from sifting.data.begun import take_begun
from sifting.data.documents import nothing_to_choose
from sifting.data.generators import chain_of, generators_of, restore_generators
from sifting.data.position import DrawnStep, IndexPosition
from sifting.data.samples import Samples
from sifting.data.stream import IndexStream
from sifting.rng import RandomState

# Plans a step: its number in the epoch, its size -> how many candidates, or the step's own size.
CandidatePlan = Callable[[int, int], int]
# Makes a choice by index: the step's number, the candidates, its size -> what to read.
Choose = Callable[[int, list[Any], int], DrawnStep]


class IndexSampler:
    """A batch sampler that gives each step's candidates; anything else, the user's own answers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._begin: Callable[[], Iterator[list[Any]]] = lambda: iter(())

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_begin"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def feed(self, begin: Callable[[], Iterator[list[Any]]]) -> None:
        """Set what makes the next iteration, at the moment when the user's own would begin."""
        self._begin = begin

    def __iter__(self) -> Iterator[list[Any]]:
        return self._begin()


def draws_by_index(loader: Any) -> bool:
    """Whether a loader is a `DataLoader` that collates samples of a map-style data set itself.

    >>> draws_by_index(DataLoader([1, 2, 3], batch_size=2)), draws_by_index([1, 2])
    (True, False)
    """
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and "Dispatcher" not in type(loader).__name__  # Accelerate's reads on one rank for all
        and _iterates_as_usual(type(loader))
    )


def _iterates_as_usual(kind: type) -> bool:
    """Whether a class of loaders makes a new iterator over its batch sampler for each epoch."""
    owner = next(base for base in kind.__mro__ if "__iter__" in base.__dict__)
    return owner is DataLoader or owner.__module__.split(".")[0] in ("accelerate", "torchdata")


def twin_of(loader: Any, sampler: IndexSampler) -> Any:
    """The same loader with another batch sampler: its data set, workers, collating and class."""
    twin = object.__new__(type(loader))
    twin.__dict__.update(loader.__dict__)
    base = loader.__dict__.get("base_dataloader")  # Accelerate's adapters iterate one inside
    if isinstance(base, DataLoader):
        twin.__dict__["base_dataloader"] = twin_of(base, sampler)
    if "batch_sampler" in loader.__dict__:
        twin.__dict__["batch_sampler"] = sampler
    if "_iterator" in loader.__dict__:
        twin.__dict__["_iterator"] = None  # workers of its own
    if "_initial_iter_for_state_dict" in loader.__dict__:  # torchdata's: it has such an iterator
        twin.__dict__["_initial_iter_for_state_dict"] = False
    return twin


def samples_drawn(samples: Samples, batch: Any, draw: DrawnStep, *, by_id: str = "") -> int:
    """How many samples a batch is, of those that were drawn; raises where that cannot be worked with.

    >>> import torch
    >>> samples_drawn(Samples(), torch.zeros(3, 8), DrawnStep([4, 2, 9, 7], 2, 4, sifts=True))
    3

    A row of the data set may hold several documents, each a sample of its own; a collate function
    may drop samples, or make several of one.

    Args:
        samples: how batches divide.
        batch: what the collate function made.
        draw: of what.
        by_id: the exit, for people, where it goes by which sample is which.
    """
    found, drawn = samples.size(batch), len(draw.indices)
    if found != drawn and by_id:
        raise ValueError(
            f"the collate function makes {found} samples of the {drawn} that were drawn, so nobody knows which "
            f"they are, and {by_id} goes by that: let it make one of each, or pass draws='batch' and ids= "
            "(the member of the batch that names them)"
        )
    if found < 2 <= drawn and draw.sifts:
        raise nothing_to_choose(batch, found, drawn=drawn)
    return found


def count_steps(samples: int, size: int, plan: CandidatePlan) -> int:
    """Steps that a number of candidates makes.

    >>> count_steps(10, 2, lambda step, size: 2 * size)
    3
    """
    steps = 0
    while samples > 0:
        samples -= plan(steps, size)
        steps += 1
    return steps


class IndexSource:
    """Reads each step's candidates through a twin of the user's loader.

    Args:
        loader: the user's.
        whole: whether an epoch has as many steps as the loader; otherwise one pass.
        twins: of loaders whose workers live on from one epoch to the next.
    """

    def __init__(
        self, loader: Any, *, whole: bool, twins: MutableMapping[Any, Any] | None = None
    ) -> None:
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "the DataLoader has in_order=False, so that nobody knows which sample comes when: leave it "
                "out, or pass draws='batch' to choose within the batches as they come"
            )
        self.loader, self.whole = loader, whole
        known = None if twins is None else twins.get(loader)
        if known is None:
            sampler = IndexSampler(loader.batch_sampler)
            known = sampler, twin_of(loader, sampler)
            if twins is not None and loader.persistent_workers:
                twins[loader] = known
        self.sampler: IndexSampler = known[0]
        self.twin: Any = known[1]
        self._stream: IndexStream | None = None
        self._queue: deque[DrawnStep] = deque()
        # the generators to go on from, after what was read again
        self._here: tuple[RandomState, Mapping[str, Tensor]] | None = None
        # the generators before the twin drew a seed for workers, which it need not have
        self._unseeded: tuple[RandomState, Mapping[str, Tensor]] | None = None
        self._drawn = 0

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sifted_ahead(self) -> int:
        """Choices that are to be made, or were made, among what is drawn and not handed out."""
        return sum(draw.sifts for draw in self._queue)

    def steps_of_a_pass(self, plan: CandidatePlan) -> int:
        """Training steps of one pass over the candidates."""
        inner = self.sampler.inner
        size, samples = getattr(inner, "batch_size", None), getattr(inner, "sampler", None)
        if not isinstance(size, int) or not isinstance(samples, Sized):
            raise TypeError(
                f"how many samples a {type(inner).__name__} gives cannot be told, so the number of steps of "
                "a pass cannot either"
            )
        left = len(inner) * size if getattr(inner, "drop_last", False) else len(samples)
        return count_steps(left, size, plan)

    def _warm(self) -> bool:
        base = self.twin.__dict__.get("base_dataloader", self.twin)
        return bool(base.persistent_workers and base._iterator is not None)

    def start(
        self, resumed: IndexPosition | None, *, seed: int, plan: CandidatePlan, choose: Choose
    ) -> Iterator[tuple[Any, DrawnStep, IndexPosition]]:
        """Iterate: each step's candidates, how they were drawn, and the place after them.

        Args:
            resumed: the place to go on from; None for the beginning.
            seed: of passes after the first.
            plan: how many candidates a step has.
            choose: what of them is read.
        """
        begun = take_begun(self.loader)
        if resumed is None:
            states = self._states() if begun is None else begun.generators
            place = IndexPosition(RandomState.now(), states, self._warm(), seed)
            place = replace(place, iteration=self._iteration, replicas=self._replicas())
            place = replace(place, begun=begun is not None)
            here = None
        else:
            place, here, begun = resumed, RandomState.now(), None
            self._check_ranks(resumed)
            if resumed.warm and not self._warm():
                self.sampler.feed(lambda: iter(()))
                iter(self.twin)  # workers that live on draw their seed only when first started
            resumed.start.restore()
            restore_generators(self.loader, resumed.generators)
            if resumed.iteration is not None:
                self.loader.iteration = resumed.iteration
        if self._iteration is not None:
            self.twin.iteration = self._iteration

        def begin() -> Iterator[list[Any]]:
            self._queue.clear()
            self._drawn = place.steps
            first = None if begun is None else begun.indices
            inner, seed = self.sampler.inner, place.seed
            self._stream = IndexStream(inner, seed=seed, whole=self.whole, first=first)
            if place.begun:
                self._unseeded = RandomState.now(), self._states()
            return self._indices(self._stream, place, here, plan, choose)

        self.sampler.feed(begin)
        source = iter(self.twin)
        self._settle()
        return self._read(source, place)

    @property
    def _iteration(self) -> int | None:
        """The number of epochs begun, by which Accelerate's loaders shuffle."""
        found: int | None = getattr(self.loader, "iteration", None)
        return found

    def _replicas(self) -> int | None:
        """Among how many ranks the sampler divides one order, which it tells."""
        found = (getattr(node, "num_replicas", None) for node in chain_of(self.sampler.inner))
        return next((count for count in found if isinstance(count, int)), None)

    def _check_ranks(self, resumed: IndexPosition) -> None:
        if resumed.ranks is not None and self._replicas() != resumed.ranks:
            raise ValueError(
                f"cannot resume on {resumed.ranks} ranks: they go on with one order that a sampler divides "
                f"among them, and this loader's divides it among {self._replicas() or 'none'}: give it a "
                f"DistributedSampler(num_replicas={resumed.ranks})"
            )

    def _indices(
        self,
        stream: IndexStream,
        place: IndexPosition,
        here: RandomState | None,
        plan: CandidatePlan,
        choose: Choose,
    ) -> Iterator[list[Any]]:
        """What the twin reads, batch by batch; it asks ahead where it has workers."""
        single = self.loader.num_workers == 0
        if self._unseeded is not None:
            state, generators = self._unseeded
            state.restore()
            restore_generators(self.loader, generators)
            self._unseeded = None
        if here is not None:
            stream.go_to(place.stream)
            self._here = here, place.later
            for draw in place.ahead:
                self._queue.append(draw)
                self._drawn += 1
                if single and draw.state is not None:
                    draw.state.restore()  # read again as it was the first time
                yield draw.indices
            self._settle()
        while True:
            number = self._drawn
            drawn = stream.draw(lambda size: plan(number, size))  # noqa: B023 - used at once
            if drawn is None:
                return
            draw = choose(number, drawn, stream.size)
            if single:
                draw = replace(draw, state=RandomState.now())
            self._queue.append(draw)
            self._drawn += 1
            yield draw.indices

    def _states(self) -> dict[str, Tensor]:
        """Of the generators that the loader and its samplers draw from, by where they are."""
        return {name: found.get_state() for name, found in generators_of(self.loader).items()}

    def _settle(self) -> None:
        """After what was read again, the generators go on from where the user has them."""
        if self._here is not None:
            here, generators = self._here
            here.restore()
            restore_generators(self.loader, generators)
            self._here = None

    def _read(
        self, source: Iterator[Any], place: IndexPosition
    ) -> Iterator[tuple[Any, DrawnStep, IndexPosition]]:
        steps, generators = place.steps, generators_of(self.loader)
        for batch in source:
            self._settle()
            draw = self._queue.popleft()
            steps += 1
            assert self._stream is not None
            later = {name: generator.get_state() for name, generator in generators.items()}
            stream, ahead = self._stream.position, tuple(self._queue)
            yield (
                batch,
                draw,
                replace(place, steps=steps, stream=stream, ahead=ahead, later=later, ranks=None),
            )
        if self._iteration is not None:
            self.loader.iteration = self.twin.iteration
