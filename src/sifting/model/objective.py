"""What is trained, sample by sample: which logits belong to which labels, by which loss.

A model's own reduced loss is the reference. Each way in which logits and labels could fit is
tried on two samples, and the one that reproduces the model's loss best is used, so that what is
scored is what is trained: sums of parts (MLM + NSP), shifted labels (causal models), multi-label
and regression losses alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import describe
from sifting.model.by_sample import reduced_losses
from sifting.model.call import Call, logits_of
from sifting.model.matching import match_parts, one_each, reproducing, tolerances, usual
from sifting.model.own_loss import loss_of
from sifting.model.parts import (
    IGNORE,
    Part,
    check_labels,
    reduced_loss,
)
from sifting.model.sample_losses import PerSampleLoss
from sifting.model.time_first import refuse_time_first

GIVEN = "as given by you"  # how an objective is known that the user states


@dataclass(frozen=True)
class Objective:
    """What was found out about a model's loss.

    Attributes:
        call: how the model is to be called from now on.
        parts: the terms; none where no logits fit the labels.
        logits: the logits of the samples it was found with.
        explained: whether the parts add up to what is trained. Where they do not, the loss is
            taken from the model, one sample at a time.
        reference: the model's own loss of the samples, where it gives one.
        loss_fn: a loss module of the model's own that reproduces it, where the parts do not.
    """

    call: Call
    parts: tuple[Part, ...]
    logits: dict[str, Tensor]
    explained: bool
    reference: Tensor | None = None
    loss_fn: PerSampleLoss | None = None

    def origin(self, custom: bool) -> str:
        """How it is known, for people."""
        if custom:
            return GIVEN
        if self.loss_fn is not None:
            return "found inside the model, and giving the model's own loss"
        if not self.explained:
            return (
                "the model's own loss, one sample at a time, since no loss that was tried gives it"
            )
        if self.reference is not None and self.parts:
            return "found by matching the model's own loss"
        return "assumed, since the model gives no loss of its own"


def resolve(
    call: Call,
    model: nn.Module,
    batch: Any,
    *,
    custom: bool = False,
    ignore: int = IGNORE,
    rows: Tensor | None = None,
) -> Objective:
    """Find the terms of a model's objective on some samples.

    Args:
        custom: whether the user gave the loss, so that the parts need not explain it.
        ignore: the label that means none, where the user's loss says so.
        rows: the rows of these samples in the batch that they are from.
    """
    labels = call.labels_of(batch)
    reference: Tensor | None = None
    given: dict[str, Tensor] | None = None
    if call.takes_labels(model, batch):
        output = _with_labels(call, model, batch, rows)
        reference, given = loss_of(output, model), logits_of(output)
        call = replace(call, always_labels=_needs_labels(call, model, batch, given))
    if given is None or not call.always_labels:
        output = call.run(model, batch)
        given = logits_of(output)
        reference = loss_of(output, model) if reference is None and not given else reference
    refuse_time_first(call, model, batch, given)
    if not custom:
        _refuse_contrast(call, model, batch, given)
    options = match_parts(given, labels, ignore=ignore)
    if not options:
        if labels and reference is None and not custom:
            raise _unfit(call, batch, labels, given)
        bare = () if labels or reference is not None else given
        parts = tuple(Part(name, None, "classes") for name in bare)
        return Objective(call, parts, given, not labels, reference)
    if reference is not None and not custom:
        parts, exact = reproducing(reference, options, given, labels, model)
        if parts and (exact or _holds(parts, call, model, batch, given)):
            return Objective(call, parts, given, explained=True, reference=reference)
    likely = [usual(ways, labels[str(ways[0].labels)]) for ways in options]
    parts = tuple(part for part in likely if part is not None)
    if reference is None and not custom:
        _check_usual(options, likely, given, labels)
        parts = one_each(parts)
    found = None if custom or reference is None else _inside(model, reference, given, labels)
    return Objective(call, parts, given, reference is None and not custom, reference, found)


def _unfit(
    call: Call, batch: Any, labels: dict[str, Tensor], given: dict[str, Tensor]
) -> ValueError:
    """Why labels fit none of the outputs: of another kind, or of another number of samples."""
    size = call.samples.size(batch)
    rows = {name: len(value) for name, value in given.items() if len(value) != size}
    if rows and len(rows) == len(given):
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        return ValueError(
            f"of {size} samples ({describe(batch)}) the model puts out {shapes}: not a row for each. Where "
            "samples are not along the first dimension of all that the model takes (time first), let the "
            "collate function put them there (batch_first=True), or pass take=lambda batch, indices: …, which "
            "gives a batch of those samples; else forward= that returns a row for each sample"
        )
    return ValueError(
        f"{described(labels)} fit none of the model's outputs: {described(given) or 'none'}. "
        "Pass loss_fn=, or forward= that returns the logits"
    )


def _refuse_contrast(call: Call, model: nn.Module, batch: Any, given: dict[str, Tensor]) -> None:
    """Raise where the classes are the other samples of the batch, so that alone there is but one."""
    size = call.samples.size(batch)
    square = [name for name, value in given.items() if value.shape == (size, size)]
    if size < 2 or not square:
        return
    try:
        alone = logits_of(call.run(model, call.samples.take(batch, torch.tensor([0]), size=size)))
    except (RuntimeError, ValueError, IndexError):  # a batch that cannot be divided says so itself
        return
    for name in square:
        if name in alone and alone[name].shape == (1, 1):
            raise ValueError(
                f"{name} (B, B): the model compares each sample with the others of its batch, and has no loss of "
                "one sample alone: pass losses=lambda model, batch: … that returns one loss per sample among "
                "those given, such as F.cross_entropy(scores, torch.arange(len(scores)), reduction='none')"
            )


def _holds(
    parts: tuple[Part, ...], call: Call, model: nn.Module, batch: Any, logits: dict[str, Tensor]
) -> bool:
    """Whether parts that come close to the model's loss of a batch do so for each sample too."""
    size = call.samples.size(batch)
    for i in range(size):
        sample = call.samples.take(batch, torch.tensor([i]), size=size)
        own, labels = (
            loss_of(call.run(model, sample, with_labels=True), model),
            call.labels_of(sample),
        )
        if own is None or not bool(own.isfinite()):
            continue
        ours = sum(
            part.weight
            * float(reduced_loss(part, logits[part.logits][i : i + 1], labels[str(part.labels)]))
            for part in parts
        )
        if abs(ours - float(own)) > tolerances(own, model)[1]:
            return False
    return True


def _check_usual(
    options: list[list[Part]],
    likely: list[Part | None],
    given: dict[str, Tensor],
    labels: dict[str, Tensor],
) -> None:
    """Raise where nothing says what the loss is, and cross-entropy cannot be it."""
    for ways, part in zip(options, likely, strict=True):
        name = str(ways[0].labels)
        if part is not None:
            continue
        if any(way.has_classes for way in ways):
            shape = described({ways[0].logits: given[ways[0].logits]})
            raise ValueError(
                f"{described({name: labels[name]})} fit {shape} in two ways, with the class last "
                "and with the class second: pass loss_fn=nn.CrossEntropyLoss() for the class second, as "
                "torch has it, or loss_fn=lambda z, y: F.cross_entropy(z.movedim(-1, 1), y, reduction='none')"
            )
        raise ValueError(
            f"{described({name: labels[name]})}: these are not classes, so cross-entropy does not "
            f"apply: {_remedy(labels)}"
        )


def _remedy(labels: dict[str, Tensor]) -> str:
    if len(labels) == 1:
        return "pass loss_fn=nn.MSELoss(), nn.BCEWithLogitsLoss() or your own"
    return (
        "there are several labels, so pass losses=lambda model, batch: … that returns one loss per sample, the "
        "sum of its terms with reduction='none'"
    )


def _with_labels(call: Call, model: nn.Module, batch: Any, rows: Tensor | None) -> Any:
    """The model's output with its labels; labels that it cannot take are named by row and value."""
    try:
        return call.run(model, batch, with_labels=True)
    except (IndexError, RuntimeError, ValueError) as error:
        try:
            given = logits_of(call.run(model, batch))
        except Exception:  # whatever a model raises when it misses its labels
            raise error from None
        labels = call.labels_of(batch)
        for ways in match_parts(given, labels):
            for part in ways[:1] if ways[0].has_classes else ():
                try:
                    check_labels(
                        part, given[part.logits].shape, labels[str(part.labels)], rows=rows
                    )
                except ValueError as named:
                    raise named from error
        if isinstance(error, IndexError):  # where nothing says what the classes are
            reduced_losses(call, model, batch, rows=rows)  # names its row
        raise


def _inside(
    model: nn.Module, reference: Tensor, logits: dict[str, Tensor], labels: dict[str, Tensor]
) -> PerSampleLoss | None:
    """A loss module inside the model that gives the model's loss (class weights, smoothing)."""
    if len(logits) != 1 or len(labels) != 1:
        return None
    (z,), (y,) = logits.values(), labels.values()
    _, tolerance = tolerances(reference, model)
    for module in model.modules():
        if not hasattr(module, "reduction") or any(True for _ in module.children()):
            continue
        for shift in (0, 1) if y.ndim == 2 and y.shape[1] > 1 and z.ndim > 2 else (0,):
            candidate = PerSampleLoss(module, shift=shift)
            try:
                value = float(candidate.reduced(z, y))
                candidate.check(z, y)
            except Exception:  # a loss of something else in this model
                continue
            if abs(value - float(reference)) <= tolerance:
                return candidate
    return None


def _needs_labels(call: Call, model: nn.Module, batch: Any, given: dict[str, Tensor]) -> bool:
    """Whether the logits are others, or cannot be had, without the labels."""
    try:
        bare = logits_of(replace(call, always_labels=False).run(model, batch))
    except Exception:  # whatever a model raises when it misses its labels
        return True
    if bare and not given:  # a fused head: with labels it gives its loss alone
        return False
    return bare.keys() != given.keys() or any(
        bare[name].shape != value.shape
        or float((bare[name] - value).abs().max()) > 1e-3 * float(value.abs().max())
        for name, value in given.items()
        if value.is_floating_point()
    )


def described(tensors: dict[str, Tensor]) -> str:
    """Names, shapes of a sample's part and types.

    >>> described({"labels": torch.zeros(4, 7, dtype=torch.long)})
    'labels (B, 7) of int64'
    """
    return ", ".join(
        f"{name} ({', '.join(['B', *map(str, value.shape[1:])])}) of {str(value.dtype)[6:]}"
        for name, value in tensors.items()
    )
