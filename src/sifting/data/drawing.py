"""Candidates drawn from a `DataLoader` by index: its data set, order, workers and collating."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from sifting.data.stream import (
    IndexStream,
    StreamPosition,
    generators_of,
    restore_generators,
)
from sifting.rng import RandomState


@dataclass(frozen=True)
class Draw:
    """One step's candidates, before they are read.

    Attributes:
        indices: what is read, as the data set takes them.
        size: samples that the step trains.
        candidates: how many it chooses among, also where the choice is made already.
        sifts: whether there is a choice to be made.
        choice: what is known of a choice that was made by index; anything plain.
        state: the global random generators before it was read, where reading uses them.
    """

    indices: list[Any]
    size: int
    candidates: int
    sifts: bool
    choice: Any = None
    state: RandomState | None = None

    def to_plain(self) -> dict[str, Any]:
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**plain, "state": None if self.state is None else self.state.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Draw:
        state = plain["state"]
        return cls(**{**plain, "state": None if state is None else RandomState.from_plain(state)})


@dataclass(frozen=True)
class IndexPosition:
    """Where an epoch over a `DataLoader` stands.

    Attributes:
        start: the global random generators when it began, from which its order was drawn.
        generators: then, those of the loader and its samplers, by where they are.
        warm: whether persistent workers were running already.
        seed: of the passes after the first.
        steps: training batches handed out.
        stream: the place in the order.
        ahead: what was drawn, and perhaps read, but not handed out.
    """

    start: RandomState
    generators: Mapping[str, Tensor] = field(default_factory=dict)
    warm: bool = False
    seed: int = 0
    steps: int = 0
    stream: StreamPosition = field(default_factory=StreamPosition)
    ahead: tuple[Draw, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        return {
            "kind": "indices",
            "start": self.start.to_plain(),
            "generators": dict(self.generators),
            "warm": self.warm,
            "seed": self.seed,
            "steps": self.steps,
            "stream": {
                "extra": self.stream.extra,
                "taken": self.stream.taken,
                "over": self.stream.over,
                "carry": list(self.stream.carry),
                "sizes": list(self.stream.sizes),
            },
            "ahead": [draw.to_plain() for draw in self.ahead],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> IndexPosition:
        """Back from what `to_plain` gave."""
        stream = dict(plain["stream"])
        place = StreamPosition(
            **{**stream, "carry": tuple(stream["carry"]), "sizes": tuple(stream["sizes"])}
        )
        return cls(
            RandomState.from_plain(plain["start"]),
            dict(plain["generators"]),
            bool(plain["warm"]),
            int(plain["seed"]),
            int(plain["steps"]),
            place,
            tuple(Draw.from_plain(draw) for draw in plain["ahead"]),
        )


# Plans a step: its number in the epoch, its size -> how many candidates, or the step's own size.
Plan = Callable[[int, int], int]
# Makes a choice by index: the step's number, the candidates, its size -> what to read.
Choose = Callable[[int, list[Any], int], Draw]


class IndexSampler:
    """A batch sampler that gives each step's candidates; anything else, the user's own answers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._source: Iterator[list[Any]] = iter(())

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_source"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def feed(self, source: Iterator[list[Any]]) -> None:
        """Set what the next iteration gives."""
        self._source = source

    def __iter__(self) -> Iterator[list[Any]]:
        return self._source


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
    )


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
    return twin


def count_steps(samples: int, size: int, plan: Plan) -> int:
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
    """

    def __init__(self, loader: Any, *, whole: bool) -> None:
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "the DataLoader has in_order=False, so that nobody knows which sample comes when: leave it "
                "out, or pass draws='batch' to choose within the batches as they come"
            )
        self.loader, self.whole = loader, whole
        self.sampler = IndexSampler(loader.batch_sampler)
        self.twin = twin_of(loader, self.sampler)
        self._queue: deque[Draw] = deque()
        self._here: RandomState | None = None  # to go on from, after what was read again
        self._drawn = 0

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sifted_ahead(self) -> int:
        """Choices that are to be made, or were made, among what is drawn and not handed out."""
        return sum(draw.sifts for draw in self._queue)

    def steps_of_a_pass(self, plan: Plan) -> int:
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
        self, resumed: IndexPosition | None, *, seed: int, plan: Plan, choose: Choose
    ) -> Iterator[tuple[Any, Draw, IndexPosition]]:
        """Iterate: each step's candidates, how they were drawn, and the place after them.

        Args:
            resumed: the place to go on from; None for the beginning.
            seed: of passes after the first.
            plan: how many candidates a step has.
            choose: what of them is read.
        """
        if resumed is None:
            states = {name: g.get_state() for name, g in generators_of(self.loader).items()}
            resumed = IndexPosition(RandomState.now(), states, self._warm(), seed)
            here = None
        else:
            here = RandomState.now()
            if resumed.warm and not self._warm():
                self.sampler.feed(iter(()))
                iter(self.twin)  # workers that live on draw their seed only when first started
            resumed.start.restore()
            restore_generators(self.loader, resumed.generators)
        if hasattr(self.loader, "iteration"):
            self.twin.iteration = self.loader.iteration
        self._queue.clear()
        self._drawn = resumed.steps
        stream = IndexStream(self.sampler.inner, seed=resumed.seed, whole=self.whole)
        self.sampler.feed(self._indices(stream, resumed, here, plan, choose))
        source = iter(self.twin)
        self._settle()
        return self._read(source, stream, resumed)

    def _indices(
        self,
        stream: IndexStream,
        resumed: IndexPosition,
        here: RandomState | None,
        plan: Plan,
        choose: Choose,
    ) -> Iterator[list[Any]]:
        """What the twin reads, batch by batch; it asks ahead where it has workers."""
        single = self.loader.num_workers == 0
        if here is not None:
            stream.go_to(resumed.stream)
            self._here = here
            for draw in resumed.ahead:
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
                draw = Draw(
                    draw.indices,
                    draw.size,
                    draw.candidates,
                    draw.sifts,
                    draw.choice,
                    RandomState.now(),
                )
            self._queue.append(draw)
            self._drawn += 1
            yield draw.indices

    def _settle(self) -> None:
        """After what was read again, the generators go on from where the user has them."""
        if self._here is not None:
            self._here.restore()
            self._here = None

    def _read(
        self, source: Iterator[Any], stream: IndexStream, place: IndexPosition
    ) -> Iterator[tuple[Any, Draw, IndexPosition]]:
        steps = place.steps
        for batch in source:
            self._settle()
            draw = self._queue.popleft()
            steps += 1
            yield (
                batch,
                draw,
                IndexPosition(
                    place.start,
                    place.generators,
                    place.warm,
                    place.seed,
                    steps,
                    stream.position,
                    tuple(self._queue),
                ),
            )
        if hasattr(self.loader, "iteration"):
            self.loader.iteration = self.twin.iteration
