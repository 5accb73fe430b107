"""Which classes a model's own loss has been held against: weights of the others would not have shown.

Shapes: B samples, X entries of a sample's labels, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sifting.model.by_sample import most_frequent

if TYPE_CHECKING:
    from sifting.model.plan import Plan

MOST_CLASSES = 1000  # of which each is looked for; a vocabulary is taken as a whole
MOST_CHECKS = 32  # each takes a forward


class CheckedClasses:
    """What the batches have shown in which a plan gave the model's own loss.

    Two samples of one class cannot tell that classes have weights, nor can a class that is not among
    them mean "no label". So a plan is checked again when a class is met that no check has had.
    """

    def __init__(self) -> None:
        self.checks = 0
        self._known: dict[str, Tensor] = {}

    def suffices(self, plan: Plan, batch: Any) -> bool:
        """Whether every class among a batch's labels was part of a check that could tell."""
        if self.checks >= MOST_CHECKS:
            return True
        return all(
            name in self._known
            and bool(self._known[name].to(labels_BX.device)[labels_BX[mask]].all())
            for name, labels_BX, mask, *_ in _classes(plan, batch)
        )

    def add(self, plan: Plan, batch: Any) -> None:
        """Count a batch as one in which the plan gave the model's own loss."""
        self.checks += 1
        for name, labels_BX, mask_BX, classes, ignorable in _classes(plan, batch):
            told_C = telling(labels_BX, mask_BX, classes, ignorable).cpu()
            if ignorable and labels_BX.shape[1] > 1:
                # nor need the first be a label: of a model that shifts it is none
                rest = labels_BX[:, 1:], mask_BX[:, 1:]
                told_C &= telling(*rest, classes, ignorable).cpu()
            known_C = self._known.get(name)
            if known_C is None or not bool(known_C.any()):
                self._known[name] = told_C
            elif bool((known_C & told_C).any()):  # else nothing compares the one with the other
                self._known[name] = known_C | told_C


def telling(
    labels_BX: Tensor, mask_BX: Tensor, classes: int, ignorable: Sequence[int] = ()
) -> Tensor:
    """Classes of which some samples have more than others, so that a weight of theirs shows.

    >>> y = torch.tensor([[0, 1], [1, 0], [2, 1]])
    >>> telling(y, y >= 0, 4).tolist()
    [True, False, True, False]
    >>> y = torch.tensor([[0, 1, 3, 3], [0, 1, 0, 1]])  # as many 0 as 1, if 3 is no class
    >>> telling(y, y >= 0, 4, ignorable=[3]).tolist()
    [False, False, False, True]

    Args:
        labels_BX: of some samples.
        mask_BX: which of them are classes.
        classes: how many there are at most.
        ignorable: numbers of which any may mean no label. A class must tell without it, too, unless it
            is then the only one, whose weight is that of all.
    """
    counts_BC = torch.zeros(len(labels_BX), classes, device=labels_BX.device)
    counts_BC.scatter_add_(1, labels_BX.where(mask_BX, 0), mask_BX.float())
    told_C, _ = _shares(counts_BC)
    for number in ignorable:
        without_BC = counts_BC.index_fill(1, torch.tensor([number], device=labels_BX.device), 0.0)
        differs_C, alone_C = _shares(without_BC)
        itself_C = torch.arange(classes, device=labels_BX.device) == number
        told_C = told_C & (differs_C | alone_C | itself_C)
    return told_C


def _shares(counts_BC: Tensor) -> tuple[Tensor, Tensor]:
    """Classes whose shares differ from sample to sample; and the one that is alone, if any is."""
    labelled_BC = counts_BC[counts_BC.any(dim=1)]
    if not len(labelled_BC):
        none_C = torch.zeros(counts_BC.shape[1], dtype=torch.bool, device=counts_BC.device)
        return none_C, none_C
    shares_BC = labelled_BC / labelled_BC.sum(dim=1, keepdim=True)
    least_C, most_C = shares_BC.amin(dim=0), shares_BC.amax(dim=0)
    return most_C > least_C, least_C == 1


def _classes(plan: Plan, batch: Any) -> list[tuple[str, Tensor, Tensor, int, list[int]]]:
    """Of each set of labels that are classes, not too many: name, labels, which count, how many classes.

    Last come numbers that may mean no label, where nobody knows.
    """
    found: list[tuple[str, Tensor, Tensor, int, list[int]]] = []
    labels = plan.call.labels_of(batch)
    for part in plan.parts:
        values, shape = labels.get(str(part.labels)), plan.shapes.get(part.logits)
        if values is None or not shape or not part.has_classes or values.is_floating_point():
            continue
        classes = shape[0] if part.kind == "classes_first" else shape[-1]
        if classes > MOST_CLASSES:
            continue
        flat_BX = values[:, part.shift :] if part.shift and values.ndim > 1 else values
        flat_BX = flat_BX.reshape(len(values), -1).long()
        mask_BX = (flat_BX >= 0) & (flat_BX < classes) & (flat_BX != part.ignore)
        # where its loss is not the part's, the model may leave out labels that the part has
        numbers = most_frequent(flat_BX[mask_BX]) if plan.kind == "model" else []
        found.append((str(part.labels), flat_BX, mask_BX, classes, numbers))
    # nothing says which logits, so any number may be a class, or mean none
    if plan.kind == "model" and not plan.parts:
        for name, values in labels.items():
            if not values.is_floating_point():
                flat_BX = values.reshape(len(values), -1).long()
                mask_BX = (flat_BX >= 0) & (flat_BX < MOST_CLASSES)
                numbers = most_frequent(flat_BX[mask_BX])
                found.append((name, flat_BX, mask_BX, MOST_CLASSES, numbers))
    return found
