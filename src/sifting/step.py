"""One training step: what was chosen, and what is known of the batch. Plain values.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from sifting.model.prefix import PrefixStates
from sifting.plain import Plain


@dataclass(frozen=True)
class Selection:
    """What was chosen from one batch of candidates.

    Attributes:
        indices: the kept candidates, ascending; on the CPU.
        weights: what to multiply each kept loss by; all ones unless policy="proportional".
        scores: the score of every candidate.
        batch: the kept samples, of the same type and with the same keys as the candidates.
        explored: which of the kept were random picks.

    Where ranks choose together (scope="global"), candidates are those of all ranks, rank 0's
    first; the kept are the part of them that this rank trains.
    """

    indices: Tensor
    weights: Tensor
    scores: Tensor
    batch: Any
    explored: Tensor


@dataclass(frozen=True)
class Rehearsed:
    """What is known of a batch that is trained as it is, before it is.

    Attributes:
        scores: of its samples, by scorer.
        new_B: which of them were never trained before; None where nobody can tell.
    """

    scores: Mapping[str, Tensor]
    new_B: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One training batch, and what is known of it.

    Attributes:
        size: samples in it.
        selection: what was chosen; None where nothing was.
        explored: random picks among the kept, of all ranks that chose together.
        kept: how many those ranks keep in all.
        members: the batch, for an exit that observes what is trained.
        ids: of its samples, where the sifter drew them itself.
        drawn: those samples as their sampler drew them, which may be more than an ID.
        rehearsed: what an autopilot noted of it, where it compares scorers and nothing was chosen.
        handed: states of its samples that a training forward can begin with.
    """

    size: int
    selection: Selection | None = None
    explored: int = 0
    kept: int = 0
    members: Any = None
    ids: Sequence[Any] | None = None
    drawn: Sequence[Any] | None = None
    rehearsed: Rehearsed | None = None
    handed: PrefixStates | None = None

    def of_ids(self, candidates: Sequence[Any], drawn: Sequence[Any]) -> Step:
        """The same step with the IDs of its samples, from those of the candidates, and as drawn."""
        assert self.selection is not None
        kept = self.selection.indices.tolist()
        return replace(self, ids=[candidates[i] for i in kept], drawn=[drawn[i] for i in kept])


@dataclass(frozen=True)
class IdChoice:
    """What was chosen by IDs: a `Selection` before its samples are read.

    Attributes:
        ids: of the samples that this rank trains, as their sampler draws them.
        indices, weights, scores, explored: see `Selection`.
        explored_count: random picks, of all ranks that chose together.
        kept: how many those ranks keep in all.
        chosen: those, among the candidates of all ranks; None where this one chose alone.
        first: the place of this rank's first candidate among them.
    """

    ids: list[Any]
    indices: Tensor
    weights: Tensor
    scores: Tensor
    explored: Tensor
    explored_count: int
    kept: int
    chosen: Tensor | None = None
    first: int = 0

    def rows(self, candidates: int) -> list[int]:
        """Where what is trained stands, if this rank's candidates are read, then others' samples."""
        rows, others = [], candidates
        for place in (self.indices - self.first).tolist():
            own = 0 <= place < candidates
            rows.append(place if own else others)
            others += not own
        return rows

    def with_candidates(self, ids: list[Any]) -> list[Any]:
        """What is read for an audit: this rank's candidates, then what it trains of others'."""
        rows = self.rows(len(ids))
        return ids + [one for one, row in zip(self.ids, rows, strict=True) if row >= len(ids)]

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> IdChoice:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "a choice made ahead")
        return cls(
            ids=found.items("ids"),
            indices=found.tensor("indices", dims=1),
            weights=found.tensor("weights", dims=1),
            scores=found.tensor("scores", dims=1),
            explored=found.tensor("explored", dims=1),
            explored_count=found.whole("explored_count"),
            kept=found.whole("kept"),
            chosen=None if found.get("chosen") is None else found.tensor("chosen", dims=1),
            first=found.whole("first"),
        )
