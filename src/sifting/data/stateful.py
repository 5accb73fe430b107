"""Loaders that keep their own place, torchdata's: what one has begun, continues from, and says of it.

A `StatefulDataLoader` over a map-style data set is drawn from by index as any other. What it says of
its place is what a plain loop would have it say after as many steps, so that its states and those of
a plain loop serve each other; and where it was begun or given a state, its order continues from there.

state of a loader        torchdata's `state_dict`: the order, the data set and, of workers, their seeds
`Said`                   the part of it that is the order's
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import GeneratorType
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch.utils.data import IterableDataset

from sifting.data.generators import chain_of, generators_of, states_of
from sifting.data.hugging_face import loses_samples
from sifting.plain import Plain

# samplers that, begun again from a state of the loader, give the same order again
TELLING = {
    "torch": {"BatchSampler", "SequentialSampler", "DistributedSampler"},
    "torchdata": {"BatchSampler", "RandomSampler", "StatefulDistributedSampler"},
    "accelerate": {"BatchSamplerShard"},  # its seedable sampler is put in after the order is drawn
}

# of an epoch that a loader's worker processes read before the sifter saw it
LOST = (
    "the loader's worker processes were sent the first batches before it was sifted (by its state_dict, which "
    "Accelerate asks for with use_stateful_dataloader), in an order that its sampler has drawn and does not tell. "
    "Leave out use_stateful_dataloader, since a sifter finds its place by itself; or give a StatefulDataLoader "
    "with shuffle=True, whose sampler tells; or num_workers=0"
)


class Said(NamedTuple):
    """What a batch sampler, and an iteration over it, say of their place; None of those that do not."""

    sampler: Any = None
    iterator: Any = None

    @classmethod
    def by(cls, sampler: Any, iterator: Any) -> Said:
        """By both, now."""
        return cls(*(one.state_dict() if _stateful(one) else None for one in (sampler, iterator)))


@dataclass(frozen=True)
class OwnPlace:
    """Where a loader is by its own state.

    Attributes:
        state: of the loader, exactly at the place.
        batches: of its order that came before.
        samples: in those of them that a stream has drawn.
    """

    state: Any
    batches: int = 0
    samples: int = 0

    @property
    def said(self) -> Said:
        """What the state says of the order."""
        order = _order_in(self.state)
        return Said(order.get("_index_sampler_state"), order.get("_sampler_iter_state"))

    def to_plain(self) -> dict[str, Any]:
        """As it was given, to be saved."""
        return {"state": self.state, "batches": self.batches, "samples": self.samples}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> OwnPlace:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the loader's own place")
        found.inside("state")
        return cls(found.get("state"), found.whole("batches"), found.whole("samples"))


@dataclass(frozen=True)
class Beginning:
    """How the next epoch of a loader begins, where that is settled already.

    Attributes:
        order: an iteration over the batch sampler that was begun, with nothing taken from it yet.
        own: the loader's own place that it begins from.
        generators: the loader's, as they were before the order was drawn.
        drawn: whether what an iteration draws when it begins is drawn.
        kept: the order, where it was drawn as a whole from streams that nobody knows any more.
    """

    order: Iterator[Any] | None = None
    own: OwnPlace | None = None
    generators: Mapping[str, Tensor] | None = None
    drawn: bool = False
    kept: tuple[Any, ...] | None = None


def base_of(loader: Any) -> Any:
    """The loader itself, where Accelerate has wrapped it."""
    return getattr(loader, "__dict__", {}).get("base_dataloader", loader)


def keeps_its_place(loader: Any) -> bool:
    """Whether a loader resumes by itself: `torchdata`'s does, prepared by Accelerate or not.

    One that Accelerate reads on one process for all says the first one's place alone.
    """
    return "Dispatcher" not in type(loader).__name__ and any(
        kind.__name__ == "StatefulDataLoader" and kind.__module__.split(".")[0] == "torchdata"
        for kind in type(base_of(loader)).__mro__
    )


def resumes_by_itself(loader: Any) -> bool:
    """Whether a loader that is given its state continues with the same samples.

    Where its sampler does not tell its order, that is drawn again; and some streams lose samples.
    """
    if not keeps_its_place(loader):
        return False
    base = base_of(loader)
    if isinstance(base.dataset, IterableDataset):
        return not loses_samples(base.dataset)
    return _order_is_told(base)


def order_is_lost(loader: Any) -> bool:
    """Whether worker processes read an epoch already whose order nobody can tell any more.

    Accelerate asks a loader for its state when it prepares it, by which its workers are sent the first
    batches. Such a loader must be iterated as it is, to be trained in its own order.
    """
    base = base_of(loader)
    return _has_begun(base) and base.num_workers > 0 and not _order_is_told(base)


def settled(loader: Any) -> Beginning:
    """How an epoch begins that a loader has begun, or has a state to continue from; taken from it."""
    if not keeps_its_place(loader):
        return Beginning()
    base = base_of(loader)
    if _has_begun(base):
        return _taken_over(loader, base)
    state = base.__dict__.get("next_iter_state")
    if state is None:
        return Beginning()
    if state.get("_iterator_finished"):
        over = base._get_iterator()  # as a plain loop does, which then begins another
        base.__dict__["_iterator"] = over if base.persistent_workers else None
        return Beginning()
    forget(loader)
    return Beginning(own=_exactly(base.batch_sampler, state))


def forget(loader: Any) -> None:
    """Leave out what a loader was told to continue from: whoever iterates it knows better."""
    base = base_of(loader)
    if "next_iter_state" in getattr(base, "__dict__", {}):
        base.__dict__.update(next_iter_state=None)
    if _has_begun(base):
        base.__dict__.update(_initial_iter_for_state_dict=False, _iterator=None)


def _taken_over(loader: Any, base: Any) -> Beginning:
    """An iteration that `state_dict` began, which draws the seed of workers and, at times, the order."""
    iterator = base.__dict__["_iterator"]
    if (
        base.num_workers
    ):  # theirs are sent the first batches, and are started again with their seeds
        own = OwnPlace(iterator.state_dict())
        forget(loader)
        return Beginning(own=own, drawn=True)
    forget(loader)
    indices = iterator._sampler_iter
    kept = None if _order_is_told(base) else _drawn_whole(indices)
    if kept is not None:
        indices = with_order(indices, kept)
    # torchdata's own samplers have drawn their order already, and remember from what
    order = getattr(indices, "sampler_iter", None)
    drawn_from = getattr(getattr(order, "sampler", None), "generator", None)
    before = getattr(order, "generator_state", None)
    states = states_of(loader)
    for name, generator in generators_of(loader).items():
        if generator is drawn_from and isinstance(before, Tensor):
            states[name] = before
    return Beginning(order=indices, generators=states, drawn=True, kept=kept)


def _drawn_whole(indices: Any) -> tuple[Any, ...] | None:
    """What an iteration over a sampler has drawn already; None of one that draws as it goes."""
    source = getattr(indices, "sampler_iter", indices)
    if isinstance(source, GeneratorType) or type(source).__module__ != "builtins":
        return None
    return tuple(source)


def with_order(indices: Any, order: Sequence[Any]) -> Iterator[Any]:
    """An iteration over a batch sampler, as torchdata has it, that gives another order."""
    if not hasattr(indices, "sampler_iter"):
        return iter(order)
    indices.sampler_iter = iter(order)
    return cast("Iterator[Any]", indices)


class FirstPass:
    """An iteration over a batch sampler, from a place on that is found as torchdata finds it.

    That may draw the order again, and so is done when the first batch is asked for: by then whoever
    iterates has drawn what comes before.

    Args:
        sampler: the loader's.
        own: where to begin; None for the beginning.
        begun: an iteration that was begun already, to continue with.
        again: whether the order is drawn again as it was the first time: then one that cannot be
            determined is passed over up to the place, and not drawn once more, as torchdata would.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        own: OwnPlace | None,
        begun: Iterator[Any] | None = None,
        *,
        again: bool = False,
    ) -> None:
        self._sampler, self._own, self._again = sampler, own, again
        self._order = iter(sampler) if begun is None else begun

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.find()
        return next(self._order)

    def find(self) -> None:
        """Go to the place, where that was not done yet."""
        own, self._own = self._own, None
        if own is not None:
            self._find(own)

    @property
    def tells(self) -> bool:
        """Whether its place can be told, and found without passing over what is before."""
        return _stateful(self._sampler) or _stateful(self._order)

    def said(self) -> Said:
        """What it says of its place now."""
        return self._own.said if self._own is not None else Said.by(self._sampler, self._order)

    def _find(self, own: OwnPlace) -> None:
        sampler: Any = self._sampler
        if self._again and not _says_its_order(self._order):
            for _ in islice(self._order, own.batches):
                pass
            return
        if not self.tells:
            # not before it is asked for, when a plain loop would draw it
            self._order = islice(self._order, own.batches, None)
            return
        if _stateful(sampler):
            sampler.load_state_dict(own.said.sampler)
            self._order = iter(sampler)
        order: Any = self._order
        if _stateful(order) and own.said.iterator is not None:
            order.load_state_dict(own.said.iterator)


def exact_state(state: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """A loader's state with the place of its order put in, and nothing to be read up to it.

    With `snapshot_every_n_steps`, torchdata says where the loader was at the last snapshot, and how
    many batches it has given since.
    """
    order = {"_index_sampler_state": said.sampler, "_sampler_iter_state": said.iterator}
    since, snapshot = state.get("_steps_since_snapshot", 0), state.get("_snapshot")
    if snapshot is None:
        return {**state, **order, "_iterator_finished": False}
    main = snapshot["_main_snapshot"]
    workers = main["_num_workers"]
    main = {**main, **order, "_sampler_iter_yielded": main["_sampler_iter_yielded"] + since}
    worker = (snapshot["_last_yielded_worker_id"] + since) % workers
    moved = {"_main_snapshot": main, "_last_yielded_worker_id": worker}
    moved["_snapshot_step"] = snapshot["_snapshot_step"] + since
    there = {"_steps_since_snapshot": 0, "_iterator_finished": False}
    return {**state, "_snapshot": {**snapshot, **moved}, **there}


def fits(own: OwnPlace, loader: Any) -> bool:
    """Whether a loader takes the state: it has as many workers as the one that it is of."""
    snapshot = own.state.get("_snapshot")
    workers = 0 if snapshot is None else snapshot["_main_snapshot"]["_num_workers"]
    return bool(base_of(loader).num_workers == workers)


def _exactly(sampler: Any, state: Mapping[str, Any]) -> OwnPlace:
    """The place that a state is of, also where the last snapshot was some batches before."""
    since = state.get("_steps_since_snapshot", 0)
    batches = _order_in(state)["_sampler_iter_yielded"]
    there = OwnPlace(state, batches)
    if since:
        order = FirstPass(sampler, there)
        if order.tells:
            for _ in islice(order, since):
                pass
        there = OwnPlace(exact_state(state, order.said()), batches + since)
    return there


def _order_is_told(base: Any) -> bool:
    return all(
        type(node).__name__ in TELLING.get(type(node).__module__.split(".")[0], ())
        for node in chain_of(base._index_sampler)
    )


def _order_in(state: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = state.get("_snapshot", {}).get("_main_snapshot", state)
    return found


def _has_begun(base: Any) -> bool:
    return bool(getattr(base, "__dict__", {}).get("_initial_iter_for_state_dict"))


def _says_its_order(order: Any) -> bool:
    """Whether an iteration of torchdata's over a sampler holds what that sampler says, if anything."""
    inside = (getattr(order, "sampler", order), getattr(order, "sampler_iter", order))
    return any(map(_stateful, inside))


def _stateful(one: Any) -> bool:
    return all(callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict"))
