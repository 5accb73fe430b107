"""Which classes a model's own loss has been held against: weights of the others would not have shown.

Shapes: B samples, X entries of a sample's labels, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
            for name, labels_BX, mask, _ in _classes(plan, batch)
        )

    def add(self, plan: Plan, batch: Any) -> None:
        """Count a batch as one in which the plan gave the model's own loss."""
        self.checks += 1
        for name, labels_BX, mask_BX, classes in _classes(plan, batch):
            told_C = telling(labels_BX, mask_BX, classes).cpu()
            known_C = self._known.get(name)
            if known_C is None or not bool(known_C.any()):
                self._known[name] = told_C
            elif bool((known_C & told_C).any()):  # else nothing compares the one with the other
                self._known[name] = known_C | told_C


def telling(labels_BX: Tensor, mask_BX: Tensor, classes: int) -> Tensor:
    """Classes of which some samples have more than others, so that a weight of theirs shows.

    >>> y = torch.tensor([[0, 1], [1, 0], [2, 1]])
    >>> telling(y, y >= 0, 4).tolist()
    [True, False, True, False]
    """
    counts_BC = torch.zeros(len(labels_BX), classes, device=labels_BX.device)
    counts_BC.scatter_add_(1, labels_BX.where(mask_BX, 0), mask_BX.float())
    labelled_BC = counts_BC[mask_BX.any(dim=1)]
    if not len(labelled_BC):
        return torch.zeros(classes, dtype=torch.bool)
    shares_BC = labelled_BC / labelled_BC.sum(dim=1, keepdim=True)
    return shares_BC.amax(dim=0) > shares_BC.amin(dim=0)


def _classes(plan: Plan, batch: Any) -> list[tuple[str, Tensor, Tensor, int]]:
    """Of each set of labels that are classes, not too many: name, labels, which count, how many classes."""
    found = []
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
        found.append((str(part.labels), flat_BX, mask_BX, classes))
    if (
        plan.kind == "model" and not plan.parts
    ):  # nothing says which logits, so any number may be a class
        for name, values in labels.items():
            if not values.is_floating_point():
                flat_BX = values.reshape(len(values), -1).long()
                mask_BX = (flat_BX >= 0) & (flat_BX < MOST_CLASSES)
                found.append((name, flat_BX, mask_BX, MOST_CLASSES))
    return found
