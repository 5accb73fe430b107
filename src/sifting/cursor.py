"""Where a sifter is in its loader, between the loaders that are made of it; saved, and found again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from sifting.data.drawing import IndexSource
from sifting.data.pooling import PoolPosition, PoolSource
from sifting.data.position import DrawnStep, IndexPosition, Position
from sifting.data.splitting import BatchSource
from sifting.data.stateful import LOST
from sifting.data.twin import draws_by_index
from sifting.plain import Plain, damaged
from sifting.step import IdChoice

KINDS: dict[str, Any] = {"batches": Position, "indices": IndexPosition, "pool": PoolPosition}
LoaderPlace = Position | IndexPosition | PoolPosition


class Cursor:
    """Where a sifter is in its loader, between the loaders that are made of it.

    Attributes:
        position: in the epoch that is iterated; None between epochs.
        resuming: whether the next iteration continues from there instead of starting over.
        batches_met: candidate batches since warm-up ended, where they come as batches.
    """

    def __init__(self) -> None:
        self.position: LoaderPlace | None = None
        self.resuming = False
        self.batches_met = 0

    def restart(self) -> None:
        """The next iteration starts a new epoch."""
        self.position, self.resuming = None, False

    def state_dict(self) -> dict[str, Any]:
        position = None if self.position is None else self.position.to_plain()
        return {"batches_met": self.batches_met, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a place; a state that is damaged changes nothing."""
        self.adopt(*self.checked(state))

    @staticmethod
    def checked(state: Any, *, steps: int | None = None) -> tuple[int, LoaderPlace | None]:
        """What a state says: batches met, and the place.

        Args:
            state: what `state_dict` gave.
            steps: training steps in all, of which an epoch's are some.

        Raises:
            ValueError: where that cannot be.
        """
        found = Plain(state, "the place in the loader")
        place = _place(found.get("position"))
        inside = getattr(place, "steps", 0)
        if steps is not None and inside > steps:
            raise damaged(f"{inside} steps of an epoch are made, and {steps} in all")
        return found.whole("batches_met"), place

    def adopt(self, batches_met: int, position: LoaderPlace | None) -> None:
        """Continue from what `checked` found."""
        self.batches_met, self.position = batches_met, position
        self.resuming = position is not None

    @staticmethod
    def divided(states: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
        """The state that one of `world` ranks continues with, from those of the ranks that saved."""
        met, own = int(states[0]["batches_met"]), _place(states[rank % len(states)]["position"])
        if own is None:
            return {"batches_met": met, "position": None}
        places = [_place(state["position"]) for state in states]
        if isinstance(own, IndexPosition):
            alike = [place for place in places if isinstance(place, IndexPosition)]
            return {"batches_met": met, "position": own.divided(alike, world).to_plain()}
        if not isinstance(own, Position):
            raise ValueError(
                f"a run that {len(states)} ranks saved in the middle of an epoch cannot continue with {world}: "
                "they pool the batches of an iterable, each its own. Save between epochs "
                "(state_dict(epoch_over=True)) to continue with another number, or use draws='batch'"
            )
        if own.pieces:  # trained again from its start, and so met again
            met -= own.counted
        known = [place for place in places if isinstance(place, Position)]
        return {"batches_met": met, "position": own.divided(known, rank, world).to_plain()}


def _place(plain: Mapping[str, Any] | None) -> LoaderPlace | None:
    if plain is None:
        return None
    found = Plain(plain, "the place in the loader")
    if found.get("kind") not in tuple(KINDS):
        found.refuse("kind", f"one of {', '.join(KINDS)}")
    place: LoaderPlace = KINDS[found.get("kind")].from_plain(plain)
    if isinstance(place, IndexPosition):
        for draw in place.ahead:
            if draw.choice is not None:
                choice_of(draw)
    return place


def among(place: LoaderPlace) -> str:
    """What a place is counted in, for people."""
    if isinstance(place, Position):
        return "candidate batches"
    return "indices of a DataLoader" if isinstance(place, IndexPosition) else "pooled batches"


def check_loader(loader: Any, *, sifted: bool) -> None:
    """Raise unless something gives batches that were not chosen from already.

    >>> check_loader(5, sifted=False)
    Traceback (most recent call last):
    TypeError: sifter(5): give the loader that your loop iterates, such as a DataLoader

    Args:
        loader: what was passed to a sifter.
        sifted: whether that came from a sifter.
    """
    if sifted:
        raise TypeError(
            "the loader is sifted already, and its batches would be chosen from once more: pass the loader "
            "itself, and where the loop is made anew each epoch, give sifter(loader) a name of its own"
        )
    if isinstance(loader, Dataset) and not isinstance(loader, Iterable):
        kind = type(loader).__name__
        raise TypeError(
            f"a {kind} is a data set, which gives samples and no batches: pass DataLoader({kind}(…), batch_size=…)"
            ", with batch_size=None where each of its entries is a batch"
        )
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TypeError(
            f"sifter({loader!r}): give the loader that your loop iterates, such as a DataLoader"
        )


def check_place(place: LoaderPlace | None, source: type, loader: Any, *, draws: str) -> None:
    """Raise unless a loader can be resumed at a place.

    Args:
        place: to go on from; None for the beginning.
        source: what reads the loader.
        loader: the user's.
        draws: as the sifter was told.
    """
    if isinstance(place, PoolPosition) and draws_by_index(loader):
        raise ValueError(f"cannot resume in the middle of this epoch: {LOST}")
    wanted = {BatchSource: Position, IndexSource: IndexPosition, PoolSource: PoolPosition}
    if place is not None and not isinstance(place, wanted[source]):
        raise ValueError(
            f"cannot resume: the state is a position among {among(place)}, and a {type(loader).__name__} with "
            f"draws={draws!r} has no such position: give the loader and draws= it was saved with"
        )


def choice_of(draw: DrawnStep) -> tuple[IdChoice, bool]:
    """A choice that was made by IDs, and whether everything is read for it."""
    found = Plain(draw.choice, "a choice made ahead")
    plain = {name: found.get(name) for name in found if name != "everything"}
    return IdChoice.from_plain(plain), found.flag("everything")
