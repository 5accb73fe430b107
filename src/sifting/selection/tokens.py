"""How a document's score is made of its tokens': pure functions.

A mean over thousands of tokens flattens what selection could see: what is hard in a document may be
a few of its lines.

Shapes: D documents, T tokens of the longest, B rows of T positions, N scored positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sifting.selection.scores import mean_where


@runtime_checkable
class Tokens(Protocol):
    """A way of making one score of a document's tokens. `HardestTokens` is a short example."""

    @property
    def name(self) -> str:
        """What it is called in logs."""

    @property
    def grows(self) -> bool:
        """Whether a document twice as long has twice the score."""

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        """One score per document; 0 for one without tokens.

        Args:
            scores_DT: of its tokens, 0 where there is none.
            mask_DT: where there are.
        """


@dataclass(frozen=True)
class MeanOfTokens:
    """The mean over a document's tokens: what training takes the gradient of."""

    name: ClassVar[str] = "mean"
    grows: ClassVar[bool] = False

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        return scores_DT.sum(dim=1) / mask_DT.sum(dim=1).clamp_min(1)


@dataclass(frozen=True)
class SumOfTokens:
    """The sum: of two documents alike, the longer one has the higher score."""

    name: ClassVar[str] = "sum"
    grows: ClassVar[bool] = True

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        return scores_DT.sum(dim=1)


@dataclass(frozen=True)
class ShareOfTokens:
    """The share of a document's tokens whose score is above a threshold.

    >>> ShareOfTokens(above=2.0).weigh(torch.tensor([[3.0, 1.0]]), torch.ones(1, 2).bool())
    tensor([0.5000])

    Args:
        above: the threshold; by loss or entropy, in nats.
    """

    above: float = 1.0
    name: ClassVar[str] = "share"
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.above, bool) or not isinstance(self.above, int | float):
            raise TypeError(f"above={self.above!r}: give a number")
        if not math.isfinite(self.above):
            raise ValueError(f"above={self.above!r}: give a finite number")

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        # what is not a number stays so: it is to be seen, not counted as low
        above_DT = (scores_DT > self.above).to(scores_DT.dtype) + 0 * scores_DT
        return (above_DT * mask_DT).sum(dim=1) / mask_DT.sum(dim=1).clamp_min(1)


@dataclass(frozen=True)
class HardestTokens:
    """The mean of a document's highest token scores.

    >>> HardestTokens(0.5).weigh(torch.tensor([[3.0, 1.0, 5.0, 0.0]]), torch.ones(1, 4).bool())
    tensor([4.])

    Args:
        portion: how many of its tokens, as a share in (0, 1]; at least one.
    """

    portion: float = 0.1
    name: ClassVar[str] = "hardest"
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.portion, bool) or not isinstance(self.portion, int | float):
            raise TypeError(f"portion={self.portion!r}: give a number")
        if not 0 < self.portion <= 1:
            raise ValueError(
                f"portion={self.portion!r} is not in (0, 1]: it is a share of a document's tokens"
            )

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        count_D = mask_DT.sum(dim=1)
        wanted_D = (self.portion * count_D - 1e-6).ceil().clamp_min(1).minimum(count_D)
        ranked_DT = scores_DT.masked_fill(~mask_DT, -math.inf).sort(dim=1, descending=True).values
        places_T = torch.arange(scores_DT.shape[1], device=scores_DT.device)
        hardest_DT = ranked_DT.masked_fill(places_T >= wanted_D[:, None], 0)
        return hardest_DT.sum(dim=1) / wanted_D.clamp_min(1)


@dataclass(frozen=True)
class TokensByFunction:
    """A user's function `(scores, mask) -> scores`, of documents by tokens, as a way of weighing them.

    >>> highest = TokensByFunction(lambda scores, mask: scores.amax(dim=1))
    >>> highest.weigh(torch.tensor([[3.0, 1.0]]), torch.ones(1, 2).bool())
    tensor([3.])

    Args:
        function: the user's.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    grows: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "a function")

    def weigh(self, scores_DT: Tensor, mask_DT: Tensor) -> Tensor:
        found = self.function(scores_DT, mask_DT)
        if not isinstance(found, Tensor) or found.shape != scores_DT.shape[:1]:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"tokens={self.name} gave {got} for {len(scores_DT)} documents: return a tensor of shape "
                f"({len(scores_DT)},)"
            )
        return found.float()


MEAN = MeanOfTokens()
BY_NAME: Mapping[str, Tokens] = {
    way.name: way for way in (MEAN, SumOfTokens(), ShareOfTokens(), HardestTokens())
}


def find_tokens(tokens: Any) -> Tokens:
    """The way that the argument `tokens=` stands for.

    >>> find_tokens("hardest"), find_tokens(HardestTokens(0.2)).portion
    (HardestTokens(portion=0.1), 0.2)
    """
    if isinstance(tokens, str) and tokens in BY_NAME:
        return BY_NAME[tokens]
    if isinstance(tokens, Tokens) and not isinstance(tokens, type):
        return tokens
    if callable(tokens) and not isinstance(tokens, type):
        return TokensByFunction(tokens)
    names = ", ".join(BY_NAME)
    kind = ValueError if isinstance(tokens, str) else TypeError
    raise kind(
        f"tokens={tokens!r}: give a name ({names}), an object such as HardestTokens(0.2), or a function "
        "(scores, mask) -> scores of documents by tokens"
    )


def described(tokens: Tokens) -> str:
    """What a way of weighing is, with its settings: two of the same description score alike.

    >>> described(HardestTokens(0.2)), described(MEAN)
    ('HardestTokens(portion=0.2)', 'MeanOfTokens()')
    """
    return repr(tokens) if isinstance(tokens, tuple(map(type, BY_NAME.values()))) else tokens.name


class Layout(NamedTuple):
    """Of each scored position, which document it is of and where among those of it that are scored.

    >>> documents_BT = torch.tensor([[0, 0, 1], [1, 2, -1]])
    >>> found = Layout.of(documents_BT, *(documents_BT >= 0).nonzero(as_tuple=True))
    >>> found.place_N, found.documents, found.longest
    (tensor([0, 1, 0, 1, 0]), 3, 2)

    Attributes:
        number_N, place_N: the two.
        documents: how many there are.
        longest: scored positions of the one that has most; 1 where there are none.
    """

    number_N: Tensor
    place_N: Tensor
    documents: int
    longest: int

    @classmethod
    def of(cls, documents_BT: Tensor, b_N: Tensor, t_N: Tensor) -> Layout:
        """Of positions in row-major order, and so by ascending document."""
        count = int(documents_BT.max()) + 1
        number_N = documents_BT[b_N, t_N]
        counts_D = torch.bincount(number_N, minlength=count)
        starts_D = counts_D.cumsum(0) - counts_D
        place_N = torch.arange(len(number_N), device=number_N.device) - starts_D[number_N]
        return cls(number_N, place_N, count, max(1, int(counts_D.max())))

    def each(self, change: Callable[[Tensor], Tensor]) -> Layout:
        """The same with something done to its tensors."""
        return self._replace(number_N=change(self.number_N), place_N=change(self.place_N))


def weighed(
    scores_N: Tensor,
    mask_BT: Tensor,
    documents_BT: Tensor | None,
    tokens: Tokens = MEAN,
    *,
    layout: Layout | None = None,
) -> Tensor:
    """One score per document from those of its positions.

    >>> weighed(torch.tensor([1.0, 3.0, 5.0]), torch.ones(1, 3).bool(),
    ...         torch.tensor([[0, 0, 1]]), SumOfTokens())
    tensor([4., 5.])

    Args:
        scores_N: one score for each true entry of the mask, in row-major order.
        mask_BT: which positions of which row were scored.
        documents_BT: the document of each position, where a row holds several; −1 for none.
        tokens: how they are weighed.
        layout: of those documents, where it is known; else the device is asked, and waited for.
    """
    if isinstance(tokens, MeanOfTokens):
        count = None if layout is None else layout.documents
        return mean_where(scores_N, mask_BT, documents_BT, count=count)
    return tokens.weigh(*by_document(scores_N, mask_BT, documents_BT, layout))


def by_document(
    scores_N: Tensor, mask_BT: Tensor, documents_BT: Tensor | None, layout: Layout | None = None
) -> tuple[Tensor, Tensor]:
    """Scores of positions laid out by document, and where there are any."""
    if documents_BT is None:
        return scores_N.new_zeros(mask_BT.shape).masked_scatter_(mask_BT, scores_N), mask_BT
    layout = layout or Layout.of(documents_BT, *mask_BT.nonzero(as_tuple=True))
    where = (layout.number_N, layout.place_N)
    scores_DT = scores_N.new_zeros(layout.documents, layout.longest)
    scores_DT[where] = scores_N
    mask_DT = torch.zeros_like(scores_DT, dtype=torch.bool)
    mask_DT[where] = True
    return scores_DT, mask_DT
