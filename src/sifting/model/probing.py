"""The first batch: which of its samples are tried, and what is tried with them.

Shapes: B samples, X entries of a sample's labels.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from sifting.model.call import Call
from sifting.model.parts import IGNORE

MOST_CLASSES = 1000  # more are a vocabulary
PROBE_ROWS = 2  # samples of the first batch that the objective and the heads are found with


def probe_rows(call: Call, batch: Any) -> Tensor | None:
    """Samples to find a plan with: some that have each of the labels; None where one has none.

    >>> probe_rows(Call(), (torch.zeros(5, 3), torch.tensor([1, 1, 2, -1, 0])))
    tensor([0, 1, 2, 3, 4])

    Those that tell most are among them: another label than the first sample's (a weight of its
    class), 0 and a negative one that torch does not know (both may mean none), where a sample has many
    the longest run of one label at the end (padding) and the largest (255), and, among float labels, one
    that is no distribution.
    """
    size = call.samples.size(batch)
    chosen: set[int] = set()
    for labels in call.labels_of(batch).values():
        if len(labels) != size:
            continue
        flat_BX = labels.reshape(size, -1)
        if labels.is_floating_point():
            chosen |= set(_no_distribution(flat_BX).nonzero().squeeze(1)[:1].tolist())
            continue
        labelled_B = (flat_BX >= 0).any(dim=1)
        if not bool(labelled_B.any()):
            labelled_B = (flat_BX != IGNORE).any(dim=1)  # classes may be numbered −1 and 1
        rows = labelled_B.nonzero().squeeze(1)[:PROBE_ROWS].tolist()
        if not rows:
            return None
        chosen |= set(rows) | set(_telling(flat_BX, rows[0]))
    others = (row for row in range(size) if row not in chosen)
    chosen |= set(itertools.islice(others, max(0, PROBE_ROWS - len(chosen))))
    return torch.tensor(sorted(chosen))


def _no_distribution(labels_BX: Tensor) -> Tensor:
    return (labels_BX < 0).any(dim=1) | ((labels_BX.sum(dim=1) - 1).abs() > 1e-3)


def _telling(flat_BX: Tensor, first: int) -> list[int]:
    """Rows of whole-number labels that others may not stand for."""
    found: list[int] = []
    if flat_BX.shape[1] == 1:
        other_B = (flat_BX != flat_BX[first]).any(dim=1) & (flat_BX >= 0).any(dim=1)
        found += other_B.nonzero().squeeze(1)[:1].tolist()
    else:
        # the same label over and over at the end: padding, whatever its number
        tail_B = (flat_BX == flat_BX[:, -1:]).flip(1).long().cumprod(dim=1).sum(dim=1)
        longest = int(tail_B.argmax())
        found += [longest] if 1 < int(tail_B[longest]) < flat_BX.shape[1] else []
        largest_B = flat_BX.long().amax(dim=1)
        if int(largest_B.max()) < MOST_CLASSES:  # 255, say; of a vocabulary, any may be the largest
            found.append(int(largest_B.argmax()))
    zero_B = (flat_BX == 0).any(dim=1)  # padding, perhaps
    found += zero_B.nonzero().squeeze(1)[:1].tolist()
    odd_B = ((flat_BX < 0) & (flat_BX != IGNORE)).any(dim=1)
    return found + odd_B.nonzero().squeeze(1)[:1].tolist()


def signature(call: Call, batch: Any, *, zeros: bool = False) -> tuple[Any, ...]:
    """What of a batch's labels a plan depends on: names, kinds, dimensions, odd numbers.

    >>> signature(Call(), (torch.zeros(2, 3), torch.tensor([1, -1])))
    (('labels', False, 1, -1),)

    A negative label other than −100 may mean none, or be wrong: it is looked into when it is met.

    Args:
        zeros: whether it is told apart if there is a 0, which means none where it is padding.
    """
    labels = call.labels_of(batch)
    found = tuple((n, v.is_floating_point(), v.ndim, _odd(v)) for n, v in sorted(labels.items()))
    if not zeros:
        return found
    whole = (v for v in labels.values() if not v.is_floating_point() and v.dtype != torch.bool)
    return (*found, any(bool((v == 0).any()) for v in whole))


def _odd(labels: Tensor) -> int | None:
    """The one negative number other than −100 among labels; 0 for several, None for none.

    For float labels that could be probabilities of classes, 0 where they are not.
    """
    if labels.dtype == torch.bool or not labels.numel():
        return None
    if labels.is_floating_point():
        if labels.ndim != 2 or labels.shape[1] < 2:
            return None
        return 0 if bool(_no_distribution(labels).any()) else None
    if int(labels.min()) >= 0:
        return None
    numbers = labels[(labels < 0) & (labels != IGNORE)]
    if not len(numbers):
        return None
    first = int(numbers[0])
    return first if bool((numbers == first).all()) else 0
