"""A place in an epoch: saved in the middle of it, and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from sifting.data.generators import Streams, checked_states
from sifting.data.marks import LoaderMark, mark_of
from sifting.data.stateful import OwnPlace
from sifting.data.stream import StreamPosition, plain_index, plain_indices
from sifting.plain import Plain
from sifting.rng import RandomState


@dataclass(frozen=True)
class Position:
    """Where an epoch over a loader of candidate batches stands.

    Attributes:
        start: the global random streams when the epoch began, from which its order was drawn.
        generators: state, then, of the generators that the loader and its samplers draw from, by
            where they are.
        warm: whether persistent workers were running already.
        batches: candidate batches used up.
        pieces: training batches made of one that is not, in warm-up.
        samples: candidates in the batches used up.
        counted: whether the batch begun last counts as met since warm-up.
        fetch: the global random streams before the batch used last was fetched.
        before: before the one before, for a loader that looks ahead by one (Accelerate's).
        mark: where the loader was then by its own state, where it keeps one (torchdata's).
        candidates: of all ranks that saved this, where others go on.
        ranks: how many go on then.
    """

    start: RandomState
    generators: Mapping[str, Tensor] = field(default_factory=dict)
    warm: bool = False
    batches: int = 0
    pieces: int = 0
    samples: int = 0
    counted: bool = False
    fetch: RandomState | None = None
    before: RandomState | None = None
    mark: LoaderMark | None = None
    candidates: int | None = None
    ranks: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("start", "fetch", "before"):
            plain[name] = None if plain[name] is None else plain[name].to_plain()
        plain["mark"] = None if self.mark is None else list(self.mark)
        return {"kind": "batches", **plain, "generators": dict(self.generators)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Position:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the place in the loader")
        return cls(
            start=found.made("start", RandomState.from_plain),
            generators=checked_states(found, "generators"),
            warm=found.flag("warm"),
            batches=found.whole("batches"),
            pieces=found.whole("pieces"),
            samples=found.whole("samples"),
            counted=found.flag("counted"),
            fetch=None
            if found.get("fetch") is None
            else found.made("fetch", RandomState.from_plain),
            before=None
            if found.get("before") is None
            else found.made("before", RandomState.from_plain),
            mark=None if found.get("mark") is None else found.made("mark", mark_of),
            candidates=optional(found, "candidates"),
            ranks=optional(found, "ranks", least=1),
        )

    def divided(self, everyones: Sequence[Position], rank: int, world: int) -> Position:
        """This place for one of another number of ranks; a batch half-trained starts over.

        Args:
            everyones: the places of the ranks that saved.
            rank: of the rank that resumes.
            world: number of ranks that resume.
        """
        total = sum(theirs.samples for theirs in everyones)
        own = divide(total, rank, world)
        return replace(self, candidates=total, ranks=world, samples=own, pieces=0, mark=None)


@dataclass(frozen=True)
class DrawnStep:
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
        state = None if self.state is None else self.state.to_plain()
        return {**plain, "indices": plain_indices(self.indices), "state": state}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DrawnStep:
        found = Plain(plain, "a step drawn ahead")
        size = found.whole("size", least=1)
        state = found.get("state")
        return cls(
            indices=found.items("indices"),
            size=size,
            candidates=found.whole("candidates", least=size),
            sifts=found.flag("sifts"),
            choice=found.get("choice"),
            state=None if state is None else found.made("state", RandomState.from_plain),
        )


@dataclass(frozen=True)
class IndexPosition:
    """Where an epoch over a `DataLoader` stands.

    Attributes:
        begun: the random streams when the loader's order was begun.
        asked: when it was asked for its first indices.
        seed: of the passes after the first.
        steps: training batches handed out.
        stream: the place in the order.
        ahead: what was drawn, and perhaps read, but not handed out.
        later: the generators of the loader and its samplers by now.
        iteration: epochs begun before, where the loader counts them (Accelerate's).
        replicas: among how many ranks the loader's sampler divides its order; None where it
            does not.
        ranks: how many go on, where they are not as many.
        own: where the loader is by its own state, where it keeps one (torchdata's).
        order: what its sampler drew before the loader was sifted, from streams that nobody knows.
        samples: of the loader's data set, where it says.
    """

    begun: Streams
    asked: Streams
    seed: int = 0
    steps: int = 0
    stream: StreamPosition = field(default_factory=StreamPosition)
    ahead: tuple[DrawnStep, ...] = ()
    later: Mapping[str, Tensor] = field(default_factory=dict)
    iteration: int | None = None
    replicas: int | None = None
    ranks: int | None = None
    own: OwnPlace | None = None
    order: tuple[Any, ...] | None = None
    samples: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            **plain,
            "kind": "indices",
            "own": None if self.own is None else self.own.to_plain(),
            "begun": self.begun.to_plain(),
            "asked": self.asked.to_plain(),
            "later": dict(self.later),
            "stream": self.stream.to_plain(),
            "ahead": [draw.to_plain() for draw in self.ahead],
            "order": None if self.order is None else list(map(_plain_batch, self.order)),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> IndexPosition:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the place in the loader")
        return cls(
            begun=found.made("begun", Streams.from_plain),
            asked=found.made("asked", Streams.from_plain),
            seed=found.whole("seed", most=2**64),
            steps=found.whole("steps"),
            stream=found.made("stream", StreamPosition.from_plain),
            ahead=tuple(map(DrawnStep.from_plain, found.items("ahead"))),
            later=checked_states(found, "later"),
            iteration=optional(found, "iteration"),
            replicas=optional(found, "replicas", least=1),
            ranks=optional(found, "ranks", least=1),
            own=None if found.get("own") is None else found.made("own", OwnPlace.from_plain),
            order=None if plain.get("order") is None else tuple(found.items("order")),
            samples=optional(found, "samples") if "samples" in found else None,
        )

    def check_data(self, data: Any) -> None:
        """Raise where a data set has not the samples among which this is a place.

        Of others, an order that was drawn by the same seed would train some twice in this epoch.
        """
        now = size_of(data)
        if None not in (self.samples, now) and self.samples != now:
            raise ValueError(
                f"cannot resume: the state was saved in the middle of an epoch of {self.samples} samples, and the "
                f"data set has {now} (rows, where documents are packed): give the data that it was saved with, "
                "or start over"
            )

    def divided(self, everyones: Sequence[IndexPosition], world: int) -> IndexPosition:
        """This place for each of another number of ranks, all of which divide the same order.

        It holds where every rank is at the same place, between two batches of the order, and where
        `world` ranks together draw as many candidates a step.

        Args:
            everyones: the places of the ranks that saved.
            world: number of ranks that resume.
        """
        ranks, stream = len(everyones), self.stream
        scaled = [(size * ranks, count) for size, count in stream.sizes]
        why = None
        if any(theirs.replicas != ranks for theirs in everyones):
            why = "their sampler does not divide one order among them, as a DistributedSampler does"
        elif any(theirs.stream != stream for theirs in everyones) or stream.carry:
            why = "they stopped between two batches of the order"
        elif any(theirs.ahead for theirs in everyones):
            why = "their loaders had read ahead (num_workers, Accelerate)"
        elif stream.passed * ranks % world or any(size % world for size, _ in scaled):
            why = f"their batches do not divide among {world}"
        if why is not None:
            raise ValueError(
                f"a run that {ranks} ranks saved in the middle of an epoch cannot continue with {world}: {why}. "
                f"Continue with {ranks}, or save between epochs (state_dict(epoch_over=True))"
            )
        sizes = tuple((size // world, count) for size, count in scaled)
        place = replace(stream, passed=stream.passed * ranks // world, sizes=sizes)
        return replace(self, stream=place, ranks=world, own=None)


def size_of(data: Any) -> int | None:
    """How many samples a data set has; None where it does not say."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):  # there is a `__len__` for other cases
        return None


def _plain_batch(drawn: Any) -> Any:
    """What a sampler gives, an index or a batch of them, as Python has it."""
    one = plain_index(drawn)
    return plain_indices(one) if isinstance(one, list) or hasattr(one, "ndim") else one


def divide(total: int, rank: int, world: int) -> int:
    """One rank's part of a sum, the first ranks taking what is left over.

    >>> [divide(7, rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    return total // world + (rank < total % world)


def optional(found: Plain, name: str, least: int = 0) -> int | None:
    """A whole number of a state, or None."""
    return None if found.get(name) is None else found.whole(name, least=least)
