"""Which logits could belong to which labels, and which way reproduces the model's own loss."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.count import EXACT
from sifting.model.parts import IGNORE, Part, PartKind, reduced_loss

MOST_IGNORED = 8  # numbers that are tried as the one that means no label


def match_parts(
    logits: dict[str, Tensor], labels: dict[str, Tensor], *, ignore: int = IGNORE
) -> list[list[Part]]:
    """For each of the labels, the ways in which it could fit some of the logits.

    >>> [[part]] = match_parts({"logits": torch.zeros(2, 3)}, {"labels": torch.tensor([0, 2])})
    >>> print(part)
    logits → labels by cross-entropy

    Args:
        ignore: the label that means none.
    """
    found: list[list[Part]] = []
    for name, values in labels.items():
        options = [
            Part(key, name, kind, shift, ignore=ignore)
            for key, outputs in logits.items()
            for kind, shift in _fits(outputs, values)
        ]
        # start_positions belong to start_logits though end_logits have the same shape
        named = [part for part in options if part.logits.startswith(f"{name.split('_')[0]}_")]
        if options:
            found.append(named or options)
    return found


def _fits(logits: Tensor, labels: Tensor) -> list[tuple[PartKind, int]]:
    if labels.ndim == 0 or logits.shape[0] != labels.shape[0]:
        return []
    one_each = logits.numel() == labels.numel()
    if labels.is_floating_point():
        if logits.shape != labels.shape:
            return [("squares", 0), ("binary", 0)] if one_each else []
        distributions = (
            labels.ndim == 2
            and labels.shape[1] > 1
            and bool((labels >= 0).all())
            and torch.allclose(
                labels.sum(dim=1).float(), torch.ones(()).to(labels.device), atol=1e-3
            )
        )
        known: list[tuple[PartKind, int]] = [("soft", 0), ("binary", 0), ("squares", 0)]
        return known if distributions else known[1:]
    if labels.dtype == torch.bool:
        return [("binary", 0)] if one_each else []
    if one_each:  # whole numbers, and one logit for each: a single class cannot be wrong
        return [("binary", 0), ("squares", 0)]
    if logits.ndim < 2:
        return []
    found: list[tuple[PartKind, int]] = []
    if logits.shape[:-1] == labels.shape:
        token_level = labels.ndim == 2 and labels.shape[1] > 1
        found += [("classes", 0), ("classes", 1)] if token_level else [("classes", 0)]
    if labels.ndim > 1 and logits.ndim == labels.ndim + 1 and logits.shape[2:] == labels.shape[1:]:
        found.append(("classes_first", 0))
    if not found and labels.numel() == labels.shape[0] and logits.ndim == 2:
        found.append(("classes", 0))
    return found


def one_each(parts: Sequence[Part]) -> tuple[Part, ...]:
    """At most one set of labels for each output, where no loss of the model says that it has several.

    >>> both = [Part("logits", "labels", "classes"), Part("logits", "label_lengths", "classes")]
    >>> [str(part.labels) for part in one_each(both)]
    ['labels']

    Those named just "labels" or "targets" are meant; where none or several are, nothing says which.
    """
    kept: list[Part] = []
    for logits in dict.fromkeys(part.logits for part in parts):
        found = [part for part in parts if part.logits == logits]
        meant = [part for part in found if part.labels in EXACT] if len(found) > 1 else found
        if len(meant) != 1:
            names = [str(part.labels) for part in found]
            raise ValueError(
                f"the batch has {', '.join(map(repr, names))}, which all fit the model's {logits}, and nothing "
                f"says which is trained: pass labels=lambda batch: batch[{names[0]!r}], or losses=lambda model, "
                "batch: … that returns one loss a sample where it is the sum of several"
            )
        kept += meant
    return tuple(kept)


def usual(ways: Sequence[Part], labels: Tensor) -> Part | None:
    """Without a loss to compare with: cross-entropy, as documented for pairs.

    >>> ways = [Part("logits", "labels", "binary"), Part("logits", "labels", "squares")]
    >>> usual(ways, torch.tensor([0, 1, 1])).kind
    'binary'
    >>> usual(ways, torch.tensor([0.0, 1.0]))   # float labels may be regression too
    """
    if {"classes", "classes_first"} <= {part.kind for part in ways}:
        return None  # as many positions as classes: which is which?
    order: tuple[PartKind, ...] = ("classes", "classes_first", "soft")
    if not labels.is_floating_point() and bool(((labels == 0) | (labels == 1)).all()):
        order = (*order, "binary")
    for kind in order:
        for part in ways:
            if part.kind == kind:
                return part
    return None


def reproducing(
    reference: Tensor,
    options: list[list[Part]],
    logits: dict[str, Tensor],
    labels: dict[str, Tensor],
    model: nn.Module,
) -> tuple[tuple[Part, ...], bool]:
    """The combination of parts that comes closest to the model's own loss; none if none does.

    Gives also whether the two differ by no more than rounding, which cannot be chance.

    The closest, since an untrained model's loss is nearly the same for any labels. Among those
    that differ by no more than rounding, the one that suits the model's kind. Only where none
    reproduces it, other numbers than −100 are tried as the label that means none.
    """
    closest = _closest(reference, options, logits, labels, model)
    if closest[0] or not any(
        part.kind in ("classes", "classes_first") for o in options for part in o
    ):
        return closest
    wider = [
        [
            replace(part, ignore=number)
            for part in ways
            for number in _ignorable(part, labels[str(part.labels)])
        ]
        for ways in options
    ]
    return _closest(reference, wider, logits, labels, model)


def _closest(
    reference: Tensor,
    options: list[list[Part]],
    logits: dict[str, Tensor],
    labels: dict[str, Tensor],
    model: nn.Module,
) -> tuple[tuple[Part, ...], bool]:
    rounding, tolerance = tolerances(reference, model)
    value = float(reference)
    causal = int(any("CausalLM" in str(n) or "LMHead" in str(n) for n in _kinds(model)))
    best: tuple[tuple[float, int], tuple[Part, ...]] = ((tolerance, 0), ())
    known: dict[Part, float] = {}
    for parts in itertools.product(*options):
        for part in parts:
            if part not in known:
                known[part] = _value(part, logits[part.logits], labels[str(part.labels)])
        terms = [known[part] for part in parts]
        unlike = sum(part.shift != causal for part in parts)
        for weight in dict.fromkeys((1.0, 1.0 / len(terms))):
            error = abs(weight * sum(terms) - value)
            rank = (0.0 if error <= rounding else error, unlike)
            if rank < best[0]:
                best = (rank, tuple(replace(part, weight=weight) for part in parts))
    return best[1], best[0][0] == 0.0


def tolerances(value: Tensor, model: nn.Module) -> tuple[float, float]:
    """By how much equal losses may differ by rounding, and at all, in the model's precision."""
    half = (torch.float16, torch.bfloat16)
    low = value.dtype in half or any(p.dtype in half for p in model.parameters())
    scale = max(1.0, abs(float(value)))
    return (2**-8 * scale, 2e-2 * scale) if low else (1e-6 * scale, 1e-4 * scale)


def _value(part: Part, logits: Tensor, labels: Tensor) -> float:
    """A part's reduced loss; not a number where labels are of no class under this reading."""
    if part.kind in ("classes", "classes_first"):
        classes = logits.shape[1 if part.kind == "classes_first" else -1]
        labels_seen = (
            labels[:, part.shift :] if part.shift else labels
        )  # nothing predicts the first
        counted = labels_seen[labels_seen != part.ignore]
        if bool(((counted < 0) | (counted >= classes)).any()):
            return float("nan")
    return float(reduced_loss(part, logits, labels))


def _ignorable(part: Part, labels: Tensor) -> list[int]:
    """Numbers among the labels that may mean none: those of no class, 0, and the most frequent."""
    if part.kind not in ("classes", "classes_first"):
        return [part.ignore]
    numbers, counts = torch.unique(labels, return_counts=True)
    often = numbers[counts.argsort(descending=True, stable=True)].tolist()
    negative = [number for number in often if number < 0]
    return list(dict.fromkeys([part.ignore, *negative, *often]))[:MOST_IGNORED]


def _kinds(model: nn.Module) -> list[Any]:
    """What a model calls itself, and what it says its loss is."""
    inner = getattr(model, "get_base_model", None)
    model = inner() if callable(inner) else model
    return [type(model).__name__, getattr(model, "loss_type", None)]
