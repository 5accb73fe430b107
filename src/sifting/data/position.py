"""A place in an epoch: saved in the middle of it, and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

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
    candidates: int | None = None
    ranks: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("start", "fetch", "before"):
            plain[name] = None if plain[name] is None else plain[name].to_plain()
        return {"kind": "batches", **plain, "generators": dict(self.generators)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Position:
        """Back from what `to_plain` gave."""
        known = {item.name: plain[item.name] for item in fields(cls)}
        for name in ("start", "fetch", "before"):
            if known[name] is not None:
                known[name] = RandomState.from_plain(known[name])
        return cls(**known)

    def divided(self, everyones: Sequence[Position], rank: int, world: int) -> Position:
        """This place for one of another number of ranks; a batch half-trained starts anew.

        Args:
            everyones: the places of the ranks that saved.
            rank: of the rank that goes on.
            world: number of ranks that go on.
        """
        total = sum(theirs.samples for theirs in everyones)
        own = divide(total, rank, world)
        return replace(self, candidates=total, ranks=world, samples=own, pieces=0)


def divide(total: int, rank: int, world: int) -> int:
    """One rank's part of a sum, the first ranks taking what is left over.

    >>> [divide(7, rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    return total // world + (rank < total % world)
